"""Flows by reference: their import, and a fingerprint and a copy of their source."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Final, TypeVar

from flamecore.abc.host import PACKED
from flamecore.errors import ConfigError, FlameError
from flamecore.model.failure import plugin_packages
from flamecore.model.flow import FlowGraph
from flamecore.suggest import nearest, suggestion

T = TypeVar("T")


def code_of(flow: FlowGraph, functions: Iterable[Callable[..., object]]) -> str:
    """Return a fingerprint of the source of a flow.

    It covers the modules of its functions, and the modules beside them that they use.

    Two processes that have imported the same files have the same one, wherever the files are.

    Args:
        flow: As imported here.
        functions: All that it uses.
    """
    home = (flow.reference or "").partition(":")[0]
    if home.startswith(PACKED):  # the name has the digest
        return home
    found = {
        name: hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else ""
        for name, source in _modules_of(flow, functions).items()
    }
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest() if found else ""


def copy_of(flow: FlowGraph, functions: Iterable[Callable[..., object]]) -> dict[str, bytes]:
    """Return the source of a flow, to be imported elsewhere.

    It consists of the modules that `code_of` looks at.

    Args:
        flow: As imported here.
        functions: All that it uses.

    Returns:
        Contents by path, with `/`, relative to that folder. Modules that are only imported when a function runs, and
        other files, are not among them; neither is the main program.
    """
    found = _modules_of(flow, functions)
    found.pop("__main__", None)
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


def locate(reference: str, folder: Path, spare: Path) -> tuple[str, Path]:
    """Return where a node finds a flow: a reference, and the folder it is relative to.

    A flow that is not where the control has it is in `spare`.

    Args:
        reference: The reference that the control gives.
        folder: The folder that it is relative to there.
        spare: Holds a copy of its source (`copy_of`).
    """
    place, _, name = reference.rpartition(":")
    if place.endswith(".py") and not (folder / place).is_file():
        return f"{Path(place).name}:{name}", spare
    if str(spare) not in sys.path:
        sys.path.append(str(spare))  # last: modules installed here come first
    return reference, folder


def _modules_of(flow: FlowGraph, functions: Iterable[Callable[..., object]]) -> dict[str, Path]:
    """Return the modules of a flow with their files, by name."""
    home = (flow.reference or flow.module).partition(":")[0]
    file = getattr(sys.modules.get(home), "__file__", None)
    if not file and home != "__main__":
        return {}
    folder, top = Path(file).resolve().parent if file else Path.cwd(), home.partition(".")[0]
    todo = [home, flow.module, *(getattr(function, "__module__", None) or "" for function in functions)]
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


_REFERENCE = re.compile(r"(?P<place>.+?)(?::(?P<name>[^\W\d]\w*))?")
_ENGINE: Final = str(Path(__file__).parents[2])
_IMPORTS: Final = str(Path(importlib.__file__).parent)
_APP: Final = "flamestream_app_"
"""Prefix of modules that are made of files whose names are taken."""
_INSTALLED: Final = frozenset(("site-packages", "dist-packages"))


def load_flow(reference: str, folder: Path | None = None) -> FlowGraph:
    """Import a module or file and return the flow in it.

    The reference may also name a function that makes the flow.

    A file is imported under its own name, as `import` in a script beside it would, so that the same flow can be found
    again in another process. Its folder comes first on `sys.path`. One that lies in a package, and imports relative to
    it, is imported as a module of that package.

    Args:
        reference: `package.module:name` or `file.py:name`; the name may be left out.
        folder: The folder that the reference is relative to; the current one by default.

    Raises:
        ConfigError: There is no such module or file, importing it failed, it has no flow of that name, or the function
            of that name makes none.
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
    flow, name = _flow_in(module, place, name)
    # Where it was found, not where Flow() was called: that may be in a function of another module.
    if flow.reference is None:  # made by a function, of this module or of another
        flow.found_as = f"{module.__name__}:{name}"
    return flow


def load_flow_anew(reference: str, folder: Path) -> tuple[FlowGraph, Callable[[], None]]:
    """Load a flow as it is on disk now.

    Modules that lie beside it are imported again; the former ones stay alive where they are in use.

    Returns:
        The flow, and a function that undoes this: later imports find the former modules again.

    Raises:
        ConfigError: As `load_flow`; nothing has changed then.
    """
    place = reference.partition(":")[0]
    path = (folder / place).resolve()
    beside = path.parent if place.endswith(".py") else folder.resolve()
    top = path.stem if place.endswith(".py") else place.partition(".")[0]

    def own() -> dict[str, ModuleType]:
        # A copy: the first look at the entry points imports modules, and so may other threads.
        return {name: module for name, module in list(sys.modules.items()) if lies_beside(name, module, top, beside)}

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
    """Return whether a module belongs to the flow of a folder.

    It does if it is of the flow's package, or lies in the folder and is not installed.
    """
    first = name.partition(".")[0]
    if first == top:
        return True
    file = getattr(module, "__file__", None)
    # Engine and plugins are never imported again: their classes would then be there twice, and
    # differ.
    if not file or first in ("__main__", "flamecore") or first.startswith((_APP, PACKED)) or first in plugin_packages():
        return False
    path = Path(file).resolve()
    return path.is_relative_to(folder) and not _INSTALLED.intersection(path.relative_to(folder).parts)


def _put_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    # A file may be newer than what the import system remembers of its folder.
    importlib.invalidate_caches()


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        close = nearest(path.name, (other.name for other in path.parent.glob("*.py")))
        raise ConfigError(f"there is no file {path}", hint=f"Did you mean {close}?" if close else "", path="job.flow")
    path = path.resolve()
    if (path.parent / "__init__.py").is_file() and _imports_relatively(path):
        return _from_package(path)
    _put_on_path(path.parent)
    if path.stem.isidentifier():
        spec = importlib.util.find_spec(path.stem)
        if spec and spec.origin and Path(spec.origin).resolve() == path:
            return importlib.import_module(path.stem)
    # Another module has that name (one of the standard library, say): take a name that is free.
    stable = _APP + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(stable, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[stable] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # A module that is half made must not be found by a later import.
        del sys.modules[stable]
        raise
    return module


def _imports_relatively(path: Path) -> bool:
    """Return whether a file has a `from .` somewhere.

    Other errors in the file show when it is imported.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in ast.walk(tree))


def _from_package(path: Path) -> ModuleType:
    """Import a file as a module of its package."""
    names, folder = ([] if path.stem == "__init__" else [path.stem]), path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    _put_on_path(folder)
    return importlib.import_module(".".join(names))


def _from_module(name: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        hint = f"Looked in {folder} and in what is installed. A file is written with its ending: {name}.py"
        raise ConfigError(f"there is no module {name!r}", hint=hint, path="job.flow") from error


def _guarded(place: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except FlameError as error:
        for line in _user_lines(error):
            error.add_note(line)
        raise
    except (Exception, SystemExit) as error:
        lines = "".join(f"\n  {line}" for line in _user_lines(error))
        what = f"{place} cannot be loaded: {type(error).__name__}: {error}{lines}"
        raise ConfigError(what, hint=_hint_of(error), path="job.flow") from error


def _hint_of(error: BaseException) -> str:
    """Return the name that an attribute or an imported name, which there is not, may stand for; nothing if none does.

    Python finds such names as well, but only when it prints a traceback.
    """
    missing: str | None = None
    known: list[str] = []
    if isinstance(error, AttributeError) and isinstance(error.name, str):
        missing, known = error.name, dir(error.obj)
    elif isinstance(error, ImportError):
        missing = getattr(error, "name_from", None)  # from Python 3.12 on
        known = dir(sys.modules.get(error.name or "", None))
    close = nearest(missing, [name for name in known if not name.startswith("_")]) if missing else None
    return f"Did you mean {close!r}?" if close else ""


def _user_lines(error: BaseException) -> list[str]:
    lines = [
        f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_ENGINE, _IMPORTS, "<frozen"))
    ]
    if isinstance(error, SyntaxError) and error.text:
        lines.append(f"{error.filename}:{error.lineno}: {error.text.strip()}")
    return lines[-5:]


def _flow_in(module: ModuleType, place: str, name: str | None) -> tuple[FlowGraph, str]:
    """Return the flow of a module, and the name it was found by."""
    flows = {key: value for key, value in vars(module).items() if isinstance(value, FlowGraph)}
    if name is not None:
        if name in flows:
            return flows[name], name
        there = getattr(module, name, None)
        if callable(there):
            return _made_by(there, place, name), name
        other = f", but a {type(there).__name__}" if hasattr(module, name) else ""
        raise ConfigError(f"{place} has no flow {name!r}{other}", hint=suggestion(name, flows), path="job.flow")
    if not flows:
        hint = (
            'Make one at the top level of the module: flow = fc.Flow("name"). '
            f"Or name a function that makes it: {place}:function"
        )
        raise ConfigError(f"{place} has no flow", hint=hint, path="job.flow")
    own = {key: flow for key, flow in flows.items() if flow.module == module.__name__} or flows
    if len({id(flow) for flow in own.values()}) > 1:
        references = ", ".join(f"{place}:{key}" for key in own)
        raise ConfigError(f"{place} has several flows", hint=f"Name one: {references}", path="job.flow")
    name, flow = next(iter(own.items()))
    return flow, name


def _made_by(function: Callable[..., object], place: str, name: str) -> FlowGraph:
    """Call a function that makes the flow, and return the flow.

    Raises:
        ConfigError: It needs arguments, fails, or returns something else.
    """
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(
            f"{place}:{name} cannot make the flow: it needs arguments ({error})",
            hint=f"Name a function without arguments, or a variable of the module: flow = {name}(…)",
            path="job.flow",
        ) from error
    except ValueError:
        pass  # some built-in functions do not tell; the call does
    made = _guarded(f"{place}:{name}", function)
    if not isinstance(made, FlowGraph):
        raise ConfigError(
            f"{place}:{name} returns no flow, but a {type(made).__name__}",
            hint="Return the flow: fc.Flow(…).",
            path="job.flow",
        )
    return made


def importable(flow: FlowGraph) -> tuple[str, str]:
    """Return the place of a flow for other processes.

    Returns:
        A reference, and the folder it is relative to.

    Raises:
        ConfigError: There is none: the flow is no module-level variable.
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
    if not file:
        return reference, str(Path.cwd())
    path = Path(file).resolve()
    if "." not in module:
        return f"{path}:{name}", str(Path.cwd())
    return reference, str(path.parents[module.count(".") + (path.stem == "__init__")])
