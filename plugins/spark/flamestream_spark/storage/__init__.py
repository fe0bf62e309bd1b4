"""Storage: files by their names below one place, a folder or a URL.

It does not depend on spools or tables.
"""
