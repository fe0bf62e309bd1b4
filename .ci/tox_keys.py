"""Fail on keys of tox.ini that tox does not know: it ignores them without a word."""

from __future__ import annotations

import subprocess
import sys

shown = subprocess.run([sys.executable, "-m", "tox", "config"], capture_output=True, text=True, check=False)
if "[testenv:" not in shown.stdout:  # its exit code also tells of interpreters that are not there
    sys.exit(shown.stdout + shown.stderr)
unknown = [line for line in shown.stdout.splitlines() if "# !!! unused" in line]
print("\n".join(unknown or ["tox.ini: every key is known"]))
sys.exit(bool(unknown))
