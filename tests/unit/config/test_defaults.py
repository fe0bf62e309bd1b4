"""The core names plugins in one table, `flamecore.runtime.config.defaults`, and nowhere else: in no string, either."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import pytest

import flamecore
from flamecore.errors import PluginError
from flamecore.model.failure import GROUP
from flamecore.runtime.config import defaults
from flamecore.runtime.config.plugins import KINDS, PluginRegistry
from flamecore.runtime.config.schemes import schemes_of

pytestmark = pytest.mark.usefixtures("installed")

CORE: Final = Path(flamecore.__file__).parent
TABLE: Final = "runtime/config/defaults.py"

WORDS: Final = frozenset(
    "demo directory lines local memory processes socket stdin stdout supervisor tls unix windows".split()  # noqa: SIM905
)
"""Names of plugins, and schemes, that are also plain words. They name a plugin only where they are the whole string, in
quotation marks, or behind an equals sign."""

HOMONYMS: Final = {
    ("abc/config.py", "local"): "a value of deploy.start",
    ("abc/config.py", "supervisor"): "a value of deploy.acker",
    ("abc/transport.py", "supervisor"): "the name of the process with the control",
    ("cli/commands/check.py", "processes"): "a key of what --json prints",
    ("cli/commands/check.py", "supervisor"): "the process that starts workers",
    ("cli/commands/retry.py", "local"): "a value of deploy.start",
    ("runtime/cluster/dry_run.py", "supervisor"): "the process that starts workers",
    ("runtime/cluster/dry_run.py", "tls"): "a key of what --json prints",
    ("runtime/cluster/job.py", "supervisor"): "a value of deploy.acker",
    ("runtime/cluster/placement.py", "supervisor"): "a value of deploy.acker",
    ("testing/checks/stores.py", "lines"): "a word among what the kit stores",
    ("testing/flows/over_transport.py", "supervisor"): "a value of deploy.acker",
    ("testing/simulation/supervisor.py", "supervisor"): "the name of the process with the control",
}
"""Strings that are a plugin's name by letter, and mean something else: by module and word."""


@cache
def installed() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return names, import packages and schemes of the installed plugins.

    A plugin without its client has its name alone.
    """
    registry = PluginRegistry()
    points = [point for kind in KINDS for point in entry_points(group=GROUP + kind)]
    schemes: set[str] = set()
    for kind in ("transport", "registry"):
        for name in registry.names(kind):
            try:
                schemes |= {*schemes_of(registry.get(kind, name))}
            except PluginError:
                schemes.add(name)
    packages = {point.module.partition(".")[0] for point in points} | {
        point.dist.name for point in points if point.dist is not None and point.dist.name != "flamestream"
    }
    return frozenset(point.name for point in points), frozenset(packages), frozenset(schemes)


def plugins_in(text: str) -> set[str]:
    """Return the plugins that a text names."""
    names, packages, schemes = installed()
    told = {f"{scheme}://" for scheme in schemes if f"{scheme}://" in text}
    for name in packages | names | schemes:
        if name not in text:  # sooner than any pattern
            continue
        word = re.escape(name)
        if name in WORDS:
            pattern = rf"""\A{word}\Z|(["']){word}\1|={word}\b"""
        else:  # the ending of a file's name is no plugin; a part of a dotted key is
            pattern = rf"(?<![\w.-]){word}(?![\w-])|(?<=\.){word}(?=\.)"
        if re.search(pattern, text):
            told.add(name)
    return told


def prose(docstring: str) -> str:
    """Return a docstring without its examples, which may name plugins.

    Examples are doctests, all in backticks, and indented blocks but for sections such as `Args`.
    """
    kept: list[str] = []
    section = doctest = False
    for line in inspect.cleandoc(docstring).splitlines():
        doctest = line.lstrip().startswith(">>>") or (doctest and bool(line.strip()))
        if line and not line.startswith(" "):
            section = line in ("Args:", "Attributes:", "Raises:", "Returns:")
        if not doctest and (section or not line.startswith(" ")):
            kept.append(line)
    return re.sub(r"`[^`]*`", "", "\n".join(kept))


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every string of a module with its line.

    Parts of f-strings are included; of docstrings the prose.
    """
    documenting = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, prose(node.value) if id(node) in documenting else node.value


def found() -> Iterator[tuple[str, int, str]]:
    """Yield (module, line, plugin) of every plugin named outside of the table."""
    for path in sorted(CORE.rglob("*.py")):
        module = path.relative_to(CORE).as_posix()
        if module != TABLE:
            for line, text in strings(ast.parse(path.read_text("utf-8"))):
                yield from ((module, line, plugin) for plugin in sorted(plugins_in(text)))


def test_no_string_of_the_core_names_a_plugin() -> None:
    assert [f"{place}:{line}: {plugin}" for place, line, plugin in found() if (place, plugin) not in HOMONYMS] == []


def test_every_exception_is_needed() -> None:
    names, _, schemes = installed()  # schemes of those plugins that can be asked
    known = {(place, word) for place, word in HOMONYMS if word in names | schemes}
    assert {(place, plugin) for place, _, plugin in found()} >= known


def test_everything_in_the_table_is_installed() -> None:
    values = [value for name, value in vars(defaults).items() if name.isupper()]
    told = {name for value in values for name in ((value,) if isinstance(value, str) else value)}
    assert told
    assert told <= installed()[0]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Write it as grpc://HOST:PORT", {"grpc", "grpc://"}),
        pytest.param(
            "such as unix:///PATH",
            {"unix://"},
            marks=pytest.mark.grpc,  # whose scheme it is
        ),
        ("sqlite or jsonl", {"sqlite", "jsonl"}),
        ("flamestream_certs.command", {"flamestream_certs"}),
        ("memory", {"memory"}),
        ("of less memory", set()),
        ("--source lines=stdin", {"stdin"}),
        ("source.lines.path", set()),
        ("use transport 'local'", {"local"}),
        ("the supervisor", set()),
        ("transport.grpc.listen", {"grpc"}),
        ("dead.jsonl", set()),
    ],
)
def test_the_search_finds_what_it_should(text: str, named: set[str]) -> None:
    assert plugins_in(text) == named


def test_examples_of_docstrings_are_no_prose() -> None:
    text = """Read from nats, as in `spark`.

        use = "grpc"

    Args:
        name: Not csv.
            Nor jsonl.

    >>> redacted("sqlite")
    'wikipedia'
    """
    assert plugins_in(prose(text)) == {"nats", "csv", "jsonl"}


def test_strings_are_found_wherever_they_are() -> None:
    tree = ast.parse("'Over nats.'\nx = f'{1} over grpc'\n'And spark.'\ndef f(a='csv'): ...")
    assert {name for _, text in strings(tree) for name in plugins_in(text)} == {"nats", "grpc", "spark", "csv"}
