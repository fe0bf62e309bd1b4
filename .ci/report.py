"""A check that a test run has written its report.

Usage: report.py begin REPORT, and after the run: report.py end REPORT

A run whose process ends in the midst of it, whatever its exit code, leaves no report, and must not pass.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(when: str, report: str) -> str | None:
    """Take away what an earlier run has left; or say what is wrong."""
    path = Path(report)
    if when == "begin":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    elif not path.is_file() or not path.stat().st_size:
        return f"the test run has ended before its end: there is no report in {path}"
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
