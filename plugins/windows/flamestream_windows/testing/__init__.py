"""The test kit: scripts, cases as data, laws on drawn runs, and an oracle."""

from flamestream_windows.testing.script import Script, script

__all__ = ["Script", "script"]
