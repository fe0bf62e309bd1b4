"""`python -m flamestream_spark.submit` prints the path of the program that spark-submit is given."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).with_name("flamestream_job.py")
"""The program: see there."""

if __name__ == "__main__":
    print(SCRIPT)
