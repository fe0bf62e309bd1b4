"""Command that prints the path of the program for spark-submit.

Call it as `python -m flamestream_spark.submit`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).with_name("flamestream_job.py")
"""The program: see there."""

if __name__ == "__main__":
    print(SCRIPT)
