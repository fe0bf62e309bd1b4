"""The checks of drivers, one module for each contract.

The package also has the process that the checks of sinks kill.
"""
