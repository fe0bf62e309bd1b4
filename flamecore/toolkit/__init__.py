"""The toolkit: code that several drivers share.

Imports the contracts. The runtime uses none of it, except private folders, processes and closings.
"""
