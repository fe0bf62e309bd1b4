"""Spool: a folder that executors fill with rows, and a front reads in one order."""
