"""The test kit: scripts of elements, watermarks and clocks, cases as data, and an oracle that shares no engine."""

from flamestream_windows.testing.script import Script, script

__all__ = ["Script", "script"]
