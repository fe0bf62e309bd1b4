"""Reading of files in pieces: as lines, and only as long as they are the ones that were begun.

`openfiles` has as many files open as may be, `seal` tells whether a file is still the one that was read, `splitting`
cuts a stream of bytes into lines, and `linereader` makes readers of them.
"""
