"""The checks of drivers, one module for each contract, and the process that the checks of sinks kill."""
