"""Fail on keys of tox.ini that tox does not know, which it ignores, and on environments of labels that it refuses."""

from __future__ import annotations

import subprocess
import sys


def tox(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Call tox, and return what it has said."""
    return subprocess.run([sys.executable, "-m", "tox", *arguments], capture_output=True, text=True, check=False)


shown = tox("config")
if "[testenv:" not in shown.stdout:  # its exit code also tells of interpreters that are not there
    sys.exit(shown.stdout + shown.stderr)
unknown = [line for line in shown.stdout.splitlines() if "# !!! unused" in line]
# By name: tox looks for their factors then, and not where a label chooses them. One key, which needs no interpreter.
listed = tox("list", "--no-desc", "--quiet").stdout.split()
named = tox("config", "-e", ",".join(listed), "-k", "description")
if named.returncode or not listed:
    sys.exit(named.stdout + named.stderr)
print("\n".join(unknown or [f"tox.ini: every key and each of {len(listed)} environments is known"]))
sys.exit(bool(unknown))
