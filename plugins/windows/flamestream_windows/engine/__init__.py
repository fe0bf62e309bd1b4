"""The engine: pure steps, `step(record, input, moment) → record', outputs`.

A record is all that is known of one key: an immutable value of plain data. No I/O here, no clock, no chance.
A function of the user that raises leaves the record as it was, for nothing of it is changed in place.
"""
