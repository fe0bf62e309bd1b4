"""PostgreSQL for flamestream.

`sink` is the driver, `columns` maps payloads to rows, `server` starts a server.
"""
