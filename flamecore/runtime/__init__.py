"""The runtime: how a flow is computed, in rooms of its own.

Only commands and hosts among the plugins may import it. `launch` is the door through which jobs start.
"""
