"""The contracts: what a plugin promises, one module each.

Imports the model; holds no implementation.
"""
