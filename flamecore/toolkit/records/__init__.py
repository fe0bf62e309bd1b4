"""Payloads as plain data and back, for drivers: what the types that flows declare look like outside of Python.

Knows types and values; opens nothing.

plain    payloads as JSON, and as cells of a table
shapes   types as columns
tables   payloads as rows
parse    JSON and rows as payloads
"""
