"""Storage: files by their names below one place, be that a folder or a URL. Knows no spool and no table."""
