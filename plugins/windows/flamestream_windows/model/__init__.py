"""The model: times, windows, triggers, strategies, aggregates and panes.

Values that print and compare. Nothing here keeps state: a trigger or an aggregate is given its state and returns the
next one.
"""
