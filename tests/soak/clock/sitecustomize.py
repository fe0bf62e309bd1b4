"""On the path of a process this sets its wall clock wrong: by so many seconds as the file of SOAK_CLOCK says, now."""

import os
import time
from pathlib import Path

_file = Path(os.environ["SOAK_CLOCK"])
_time, _time_ns = time.time, time.time_ns


def _wrong_by() -> float:
    try:
        return float(_file.read_text() or 0)
    except FileNotFoundError:
        return 0.0


time.time = lambda: _time() + _wrong_by()
time.time_ns = lambda: _time_ns() + int(_wrong_by() * 1e9)
