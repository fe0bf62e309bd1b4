"""The environments in which the checks test a driver.

They run its processes and cause its faults.
"""
