"""Finding the flow that a reference names: `package.module:flow` or `file.py:flow`; without a name, the only one."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

from flamecore.errors import ConfigError, FlameError
from flamecore.flow import Flow
from flamecore.names import suggestion

_REFERENCE = re.compile(r"(?P<place>.+?)(?::(?P<name>[^\W\d]\w*))?")
_ENGINE: Final = str(Path(__file__).parent)
_IMPORTS: Final = str(Path(importlib.__file__).parent)
_INSTALLED: Final = frozenset(("site-packages", "dist-packages"))


def load_flow(reference: str, folder: Path | None = None) -> Flow:
    """Import a module or file and find the flow in it.

    A file is imported under its own name, as `import` in a script beside it would, so that the same flow can be found
    again in another process. Its folder comes first on `sys.path`.

    Args:
        reference: What to load.
        folder: What the reference is relative to; the current one by default.

    Raises:
        ConfigError: There is no such module or file, importing it failed, or it has no flow of that name.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ConfigError(
            "the flow's reference is empty", hint="Write package.module:flow or file.py:flow", path="job.flow"
        )
    place, name = match["place"], match["name"]
    folder = (folder or Path()).resolve()
    if place.endswith(".py"):
        module = _guarded(place, lambda: _from_file(folder / place))
    else:
        _put_on_path(folder)
        module = _guarded(place, lambda: _from_module(place, folder))
    return _flow_in(module, place, name)


def load_flow_anew(reference: str, folder: Path) -> tuple[Flow, Callable[[], None]]:
    """Load a flow as it is on disk now: modules that lie beside it are imported again. The former ones live on.

    Returns:
        The flow; and what undoes this: whoever imports them finds the former modules again.

    Raises:
        ConfigError: As `load_flow`; nothing has changed then.
    """
    place = reference.partition(":")[0]
    path = (folder / place).resolve()
    beside = path.parent if place.endswith(".py") else folder.resolve()
    top = path.stem if place.endswith(".py") else place.partition(".")[0]

    def own() -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if lies_beside(name, module, top, beside)}

    former = own()

    def undo() -> None:
        for name in own():
            del sys.modules[name]
        sys.modules.update(former)

    for name in former:
        del sys.modules[name]
    try:
        return load_flow(reference, folder), undo
    except BaseException:
        undo()
        raise


def lies_beside(name: str, module: ModuleType, top: str, folder: Path) -> bool:
    """Whether a module belongs to the flow of a folder: its package, and what else is there and is not installed."""
    first = name.partition(".")[0]
    if first == top:
        return True
    file = getattr(module, "__file__", None)
    if not file or first in ("__main__", "flamecore") or first.startswith("flamestream_"):
        return False
    path = Path(file).resolve()
    return path.is_relative_to(folder) and not _INSTALLED.intersection(path.relative_to(folder).parts)


def _put_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", path="job.flow")
    path = path.resolve()
    _put_on_path(path.parent)
    if path.stem.isidentifier():
        spec = importlib.util.find_spec(path.stem)
        if spec and spec.origin and Path(spec.origin).resolve() == path:
            return importlib.import_module(path.stem)
    # Something else has that name (a module of the standard library, say): take one that nothing else has.
    stable = "flamestream_app_" + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(stable, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[stable] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[stable]
        raise
    return module


def _from_module(name: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        hint = f"Looked in {folder} and in what is installed. A file is written with its ending: {name}.py"
        raise ConfigError(f"there is no module {name!r}", hint=hint, path="job.flow") from error


def _guarded(place: str, load: Callable[[], ModuleType]) -> ModuleType:
    try:
        return load()
    except FlameError as error:
        for line in _user_lines(error):
            error.add_note(line)
        raise
    except (Exception, SystemExit) as error:
        lines = "".join(f"\n  {line}" for line in _user_lines(error))
        what = f"{place} cannot be loaded: {type(error).__name__}: {error}{lines}"
        raise ConfigError(what, path="job.flow") from error


def _user_lines(error: BaseException) -> list[str]:
    lines = [
        f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_ENGINE, _IMPORTS, "<frozen"))
    ]
    if isinstance(error, SyntaxError) and error.text:
        lines.append(f"{error.filename}:{error.lineno}: {error.text.strip()}")
    return lines[-5:]


def _flow_in(module: ModuleType, place: str, name: str | None) -> Flow:
    flows = {key: value for key, value in vars(module).items() if isinstance(value, Flow)}
    if name is not None:
        if name in flows:
            return flows[name]
        other = f", but a {type(getattr(module, name)).__name__}" if hasattr(module, name) else ""
        raise ConfigError(f"{place} has no flow {name!r}{other}", hint=suggestion(name, flows), path="job.flow")
    if not flows:
        hint = 'Make one at the top level of the module: flow = fc.Flow("name")'
        raise ConfigError(f"{place} has no flow", hint=hint, path="job.flow")
    own = {key: flow for key, flow in flows.items() if flow.module == module.__name__} or flows
    if len({id(flow) for flow in own.values()}) > 1:
        references = ", ".join(f"{place}:{key}" for key in own)
        raise ConfigError(f"{place} has several flows", hint=f"Say which: {references}", path="job.flow")
    return next(iter(own.values()))


def importable(flow: Flow) -> tuple[str, str]:
    """Where another process finds the flow: a reference, and the folder it is relative to.

    Raises:
        ConfigError: Nowhere: the flow is no module-level variable.
    """
    reference = flow.reference
    if reference is None:
        raise ConfigError(
            f"flow {flow.name!r} cannot be imported by other processes",
            hint="Make it a module-level variable of a file of its own, and import it from there; "
            "or run that file: flamestream run FILE.py",
            path="job.flow",
        )
    module, _, name = reference.partition(":")
    file = getattr(sys.modules[module], "__file__", None)
    if "." not in module and file:
        return f"{Path(file).resolve()}:{name}", str(Path.cwd())
    return reference, str(Path.cwd())
