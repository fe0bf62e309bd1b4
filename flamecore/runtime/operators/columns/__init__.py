"""The columns: operators that store one thing of all keys together.

They take items in columns. Operators around them do not depend on how their state is stored.
"""
