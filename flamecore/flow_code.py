"""The source of a flow as it lies on the disk: a fingerprint of it, and a copy for where its files are not."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from flamecore.flow import Flow
from flamecore.reference import lies_beside


def code_of(flow: Flow, functions: Iterable[Callable[..., Any]]) -> str:
    """A fingerprint of the source of a flow: of the modules of its functions, and of those beside them that they use.

    Two processes that have imported the same files have the same one, wherever the files are.

    Args:
        flow: As imported here.
        functions: All that it uses.
    """
    found = {
        name: hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else ""
        for name, source in _modules_of(flow, functions).items()
    }
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest() if found else ""


def copy_of(flow: Flow, functions: Iterable[Callable[..., Any]]) -> dict[str, bytes]:
    """The source of a flow, for a folder that it can be imported from elsewhere: of what `code_of` looks at.

    Args:
        flow: As imported here.
        functions: All that it uses.

    Returns:
        Contents by path, with `/`, relative to that folder. Modules that are only imported when a function runs, and
        other files, are not among them.
    """
    found = _modules_of(flow, functions)
    for name in tuple(found):
        for dots in range(name.count(".")):  # packages are imported before what is in them
            package = name.rsplit(".", dots + 1)[0]
            found[package] = Path(getattr(sys.modules.get(package), "__file__", None) or "")
    copied = {}
    for name, source in found.items():
        if source.is_file():
            path = name.replace(".", "/")
            inside = source.name == "__init__.py"
            copied[f"{path}/__init__.py" if inside else f"{path.rpartition('/')[0]}/{source.name}".lstrip("/")] = (
                source.read_bytes()
            )
    return copied


def at_hand(reference: str, folder: Path, spare: Path) -> tuple[str, Path]:
    """Where a flow is found if not where the control has it: a reference, and the folder it is relative to.

    Args:
        reference: As the control says it.
        folder: What that is relative to.
        spare: Holds a copy of its source (`copy_of`).
    """
    place, _, name = reference.rpartition(":")
    if place.endswith(".py") and not (folder / place).is_file():
        return f"{Path(place).name}:{name}", spare
    if str(spare) not in sys.path:
        sys.path.append(str(spare))  # what is there otherwise comes first
    return reference, folder


def _modules_of(flow: Flow, functions: Iterable[Callable[..., Any]]) -> dict[str, Path]:
    """The modules of a flow, by name, with their files."""
    file = getattr(sys.modules.get(flow.module), "__file__", None)
    if not file:
        return {}
    folder, top = Path(file).resolve().parent, flow.module.partition(".")[0]
    todo = [flow.module, *(getattr(function, "__module__", None) or "" for function in functions)]
    found: dict[str, Path] = {}
    while todo:
        name = todo.pop()
        module = sys.modules.get(name) if isinstance(name, str) and name not in found else None
        if module is None or not lies_beside(name, module, top, folder):
            continue
        found[name] = Path(getattr(module, "__file__", None) or "")
        todo += (
            value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
            for value in tuple(vars(module).values())
        )
    return found
