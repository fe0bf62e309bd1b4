"""Edges of a flow: drivers for memory, files, standard streams and SQLite.

Each module that is named in an entry point is one driver, or a source and a sink of one name:

    memory, lines, jsonl, csv, wikipedia, stdio (stdin and stdout), sqlite

The others are shared by these: `files` (paths, partitions, fingerprints), `reading` (files in pieces, as lines),
`outfile`, `position` and `checksums` (a file that takes batches exactly once), `pageparser` (XML), and `durable`
(writes that survive the end of the machine).
`flamecore.toolkit.records` makes payloads JSON and rows.
"""
