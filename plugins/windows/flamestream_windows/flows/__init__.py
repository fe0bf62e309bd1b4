"""The flows: what joins the words and the engine with the streams of the core.

A stream with event time is a stream whose payloads tell their times. Its vertices are of two kinds of the core: a
marking, which says watermarks, and ordered operations, whose work is a step of the engine.
"""
