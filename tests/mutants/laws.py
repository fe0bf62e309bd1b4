"""The laws of the engine: the classes that carry each, its own tests, and draws of mutants.

Both are found by name in a tree of sources, so that a law stays measured when its files move. A name that is no longer
there is an error that names the law.
"""

from __future__ import annotations

import ast
import random
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from mutate import Mutation, places


class Law(NamedTuple):
    """A law of the engine.

    Attributes:
        classes: Names of classes; every module that defines one carries the law.
        tests: Ends of the paths of its own tests, files or folders, the likeliest to detect a mutant first.
    """

    classes: tuple[str, ...]
    tests: tuple[str, ...]


LAWS: Final = {
    "barrier": Law(("Barrier",), ("operators/test_barrier.py", "operators/test_runs.py")),
    "ackers": Law(
        ("XorTracker", "AckTable", "MergingReporter", "LocalReporter", "ShardedReporter", "CentralizedReporter"),
        ("ackers/tests",),
    ),
    "drift": Law(
        ("DriftOperator",),
        ("operators/test_drift.py", "operators/test_runs.py", "operators/test_labels.py", "test_drift_forms.py"),
    ),
    "ordered": Law(("OrderedOperator",), ("operators/test_ordered.py", "operators/test_cells.py", "test_stretches.py")),
    "reorder": Law(
        ("ReorderBuffer",), ("operators/test_reorder.py", "operators/test_runs.py", "tasks/test_worker_load.py")
    ),
    "coordinator": Law(("SnapshotCoordinator",), ("engine/test_snapshots.py",)),
    "history": Law(("History",), ("state/test_history.py", "state/test_schema.py", "engine/test_snapshots.py")),
    "codec": Law(("Codec", "SchemaCompiler", "Writer", "TypeTable", "FieldCodec"), ("unit/codec", "fuzz")),
    "links": Law(
        ("Link", "Outgoing", "Incoming", "Server", "LinkedEndpoint", "LinkedTransport"),
        (
            "toolkit/test_link.py",
            "toolkit/test_acknowledgements.py",
            "toolkit/test_server.py",
            "toolkit/test_linked_transport.py",
            "test_channels.py",
            "sockets/tests",
        ),
    ),
    "lease": Law(("Lease", "StateLease"), ("cluster/test_lease.py", "engine/test_state_lease.py")),
    "worker": Law(("Worker", "WorkerTask"), ("unit/parts", "unit/tasks", "engine/test_snapshots.py")),
    "front": Law(("Front", "FrontMerge", "FrontTask"), ("unit/parts", "unit/tasks")),
}


def packages(root: Path) -> list[Path]:
    """Return the folders of the packages that the wheel has, in a tree of sources."""
    settings = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    return [root / name for name in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


# By the text, not by an import: import names move with the files, and a name that moves is in no table then.
def definitions(root: Path) -> dict[str, list[Path]]:
    """Return the modules that define a class at their top level, by the name of the class."""
    found: dict[str, list[Path]] = {}
    for path in sorted(path for package in packages(root) for path in package.rglob("*.py")):
        for statement in ast.parse(path.read_bytes()).body:
            if isinstance(statement, ast.ClassDef):
                found.setdefault(statement.name, []).append(path)
    return found


def modules_of(name: str, defined: Mapping[str, list[Path]], laws: Mapping[str, Law]) -> list[Path]:
    """Return the modules that carry a law.

    Raises:
        LookupError: No module defines one of its classes.
    """
    missing = [cls for cls in laws[name].classes if cls not in defined]
    if missing:
        raise LookupError(f"the law {name!r} is carried by {', '.join(missing)}, which no module defines")
    return list(dict.fromkeys(path for cls in laws[name].classes for path in defined[cls]))


def own_tests(name: str, root: Path, laws: Mapping[str, Law]) -> list[Path]:
    """Return the paths of a law's own tests.

    Raises:
        LookupError: The end of a path is that of none, or of several.
    """
    found = []
    for end in laws[name].tests:
        paths = [path for top in ("tests", "plugins") for path in (root / top).rglob(end.rpartition("/")[2])]
        paths = [path for path in paths if f"/{path.as_posix()}".endswith(f"/{end}")]
        if len(paths) != 1:
            raise LookupError(f"the law {name!r} has tests {end!r}, of which there are {len(paths)}")
        found.append(paths[0])
    return found


class Mutant(NamedTuple):
    """A mutant that was drawn.

    Attributes:
        law: Name of the law that its module carries.
        module: Path of the module in a tree of sources.
        mutation: What is changed.
    """

    law: str
    module: Path
    mutation: Mutation


def drawn(seed: int, root: Path, laws: Mapping[str, Law]) -> Iterator[Mutant]:
    """Yield mutants in the order of their numbers, one of each law in turn, until a law has no more."""
    defined = definitions(root)
    of_laws = [_drawn(seed, law, modules_of(law, defined, laws)) for law in laws]
    return (mutant for mutants in zip(*of_laws, strict=False) for mutant in mutants)


def _drawn(seed: int, law: str, modules: list[Path]) -> Iterator[Mutant]:
    sources = {path: path.read_bytes() for path in modules}
    found = [(path, place) for path, source in sources.items() for place in places(source)]
    random.Random(f"{seed} {law}").shuffle(found)
    for path, place in found:
        if (mutation := place.mutation(sources[path])).compiles():
            yield Mutant(law, path, mutation)


def again(lines: Iterable[Mapping[str, Any]], root: Path, laws: Mapping[str, Law]) -> Iterator[tuple[int, Mutant]]:
    """Yield the mutants of lines of a journal, with their numbers; those of lines that have changed are left out."""
    wanted = {(line["law"], line["function"], line["original"], line["mutated"]): line["number"] for line in lines}
    defined = definitions(root)
    for law in dict.fromkeys(law for law, *_ in wanted):
        for path in modules_of(law, defined, laws):
            source = path.read_bytes()
            for place in places(source):
                if (number := wanted.pop((law, *(mutation := place.mutation(source)).key), None)) is not None:
                    yield number, Mutant(law, path, mutation)


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Return the reasons why mutants are equivalent, by law, function, original and mutated line."""
    listed = tomllib.loads(Path(__file__).with_name("equivalents.toml").read_text("utf-8"))
    return {
        (law, one["function"], one["original"], one["mutated"]): one["reason"]
        for law, ones in listed.items()
        for one in ones
    }
