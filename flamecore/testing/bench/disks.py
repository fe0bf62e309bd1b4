"""Disks that refuse writes."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def file_limit(limit_bytes: int) -> Iterator[None]:
    """Limit the size of this process's files: writes beyond it fail with `EFBIG`.

    Only in the main thread, which alone may set handlers of signals.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        with contextlib.suppress(TypeError):  # a handler that was not set by Python
            signal.signal(signal.SIGXFSZ, handler)
