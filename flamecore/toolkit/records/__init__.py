"""Payloads as plain data and back, for drivers.

The package defines how the types that flows declare look outside of Python. It opens nothing.

plain    payloads as JSON, and as cells of a table
shapes   types as columns
tables   payloads as rows
parse    JSON and rows as payloads
"""
