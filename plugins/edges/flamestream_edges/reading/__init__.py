"""Reading of files in pieces: as lines, and only as long as they are the ones that were begun.

`seal` tells whether a file is still the one that was read, `splitting` cuts a stream of bytes into lines, and
`linereader` makes readers of both.
"""
