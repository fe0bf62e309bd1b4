"""The spool: a folder that executors fill with rows, and that a front reads in one order."""
