"""The checks of flows, standard flows, drawn flows, and the reference interpreter.

Every deployment must run the standard flows as the reference interpreter does.
"""
