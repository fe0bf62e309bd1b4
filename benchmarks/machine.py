"""The machine that the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flamecore.runtime.tasks.event_loop import loop_factory


def facts() -> dict[str, Any]:
    """Return processor, cores, memory, system, interpreter, versions, event loop and load.

    The name of the machine is not among them.
    """
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": _memory_gb(),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "flamestream": _version("flamestream"),
        "bytewax": _version("bytewax"),
        "event_loop": "asyncio" if loop_factory() is None else f"uvloop {_version('uvloop')}",
        "load": load(),
    }


def load() -> float | None:
    """Return the average number of processes that wanted a core in the last minute.

    None where the system does not tell.
    """
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
