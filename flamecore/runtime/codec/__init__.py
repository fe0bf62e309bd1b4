"""The codec: values as bytes, in columns; decoding never runs code.

Imports the model only.
"""
