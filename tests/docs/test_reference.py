"""The reference pages name all there is, and nothing that is not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from flamecore import errors, events
from flamecore.abc import hooks as hookspecs
from flamecore.abc.config import DeployTable, RegistryTable
from flamecore.cli import main
from flamecore.cli.exits import Exit, exit_of
from flamecore.model.settings import DriverChoice, JobTable, StateTable
from flamecore.runtime.config import defaults
from flamecore.runtime.config import read as config
from flamecore.runtime.config.plugins import KINDS, PluginRegistry
from flamecore.runtime.parts.counters import JobStats, meanings

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


def page(path: str) -> str:
    return (ROOT / "docs" / path).read_text("utf-8")


def headings(text: str, level: int = 2) -> list[str]:
    """Return the headings of a level, without marks of code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [title.replace("`", "") for title in re.findall(rf"^{'#' * level} (.+)$", text, re.MULTILINE)]


def section(text: str, title: str) -> str:
    """Return the text below a heading, up to the next of the same level or above."""
    pattern = rf"^(#+) {re.escape(title)}$(.*?)(?=^#{{1,2}} |\Z)"
    match = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no heading {title!r}"
    return match[2]


def rows(text: str) -> dict[str, list[str]]:
    """Return the rows of the tables of a text.

    The other cells of a row are by the names in its first cell.
    """
    found = {}
    for line in re.findall(r"^\|(.+)\|$", text, re.MULTILINE):
        first, *rest = (cell.strip() for cell in line.split("|"))
        for name in re.findall(r"`([^`]+)`", first):
            found[name] = rest
    return found


# -- errors ------------------------------------------------------------------------------------------------------------


def all_errors(root: type[errors.FlameError] = errors.FlameError) -> Iterator[type[errors.FlameError]]:
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield kind
            yield from all_errors(kind)


def test_every_error_has_a_heading() -> None:
    named = [title for title in headings(page("errors.md")) if title != "Exit codes"]
    assert sorted(named) == sorted(kind.__name__ for kind in all_errors())


def test_errors_name_their_fields() -> None:
    text = page("errors.md")
    for kind in all_errors():
        told = re.search(r"Fields: (?:also )?(.*?)\.?$", (kind.__doc__ or "").replace("\n", " "))
        for field in re.findall(r"`(\w+)`", told[1]) if told else ():
            assert f"`{field}`" in section(text, kind.__name__), f"{kind.__name__} has a field {field}"


def test_the_table_of_exit_codes_is_complete() -> None:
    codes = {int(code): name for code, name in re.findall(r"^\| (\d+) \| `(\w+)`", page("errors.md"), re.MULTILINE)}
    assert codes == {int(code): code.name for code in Exit}


def test_errors_document_exit_codes_other_than_1() -> None:
    text = page("errors.md")
    for kind in all_errors():
        code = exit_of(kind("it"))
        parents = [section(text, k.__name__) for k in kind.__mro__ if k in set(all_errors())]
        said = [int(found[1]) for found in (re.search(r"Exit code\s(\d)", parent) for parent in parents) if found]
        assert (said or [1])[0] == code, kind.__name__


def test_the_tree_of_errors_in_the_docstring_is_right() -> None:
    drawn = re.findall(r"── (\w+)", errors.__doc__ or "")
    assert drawn == [kind.__name__ for kind in all_errors()]


# -- events ------------------------------------------------------------------------------------------------------------


def test_every_event_has_a_heading() -> None:
    assert sorted(headings(page("events.md"))) == sorted(events.ALL)


def test_every_counter_is_described_where_it_is_declared_and_the_page_shows_all() -> None:
    assert "{{ counters }}" in section(page("events.md"), "`job.progressed`")
    for name, meaning in meanings(JobStats).items():
        assert meaning.text
        assert f"{name}: {meaning.text}." in (JobStats.__doc__ or "")


# -- configuration -----------------------------------------------------------------------------------------------------


def shown(default: Any) -> str:
    """Return a default as the tables write it."""
    if default is msgspec.NODEFAULT or default in (None, ""):
        return ""
    return f"`{msgspec.json.encode(default).decode()}`" if not isinstance(default, tuple) else "`[]`"


def compare(text: str, struct: Any, *, but: Mapping[str, str] | None = None) -> None:
    """Hold the table of a section against the fields and defaults of a struct."""
    table = rows(text)
    fields = {field.encode_name: shown(field.default) for field in msgspec.structs.fields(struct)} | (but or {})
    if issubclass(struct, DriverChoice):
        del fields["options"]  # the keys of the driver, which its own page describes
    assert table.keys() == fields.keys()
    for name, default in fields.items():
        told = table[name][0]
        assert told == default, f"the default of {name} is {default}, and the page says {told}"


def test_every_section_of_the_configuration_is_described() -> None:
    named = re.findall(r"\[(\w+)(?:\.NAME)?\]", " ".join(headings(page("configuration.md"))))
    assert sorted(named) == sorted(config.SECTIONS)


@pytest.mark.parametrize(
    ("title", "struct"),
    [
        ("`[job]`", JobTable),
        ("`[deploy]`", DeployTable),
        ("`[registry]`", RegistryTable),
        ("`[state]`", StateTable),
    ],
)
def test_every_key_of_a_section_is_described(title: str, struct: Any) -> None:
    # Names of drivers have no default in the contract: whoever reads a configuration fills them in.
    but = {
        JobTable: {"name": "the flow's"},
        RegistryTable: {"use": f'`"{defaults.REGISTRY}"`'},
    }.get(struct)
    compare(section(page("configuration.md"), title), struct, but=but)


def test_every_driver_is_described() -> None:
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "plugins").glob("*/README.md"))
    for kind in KINDS:
        for point in entry_points(group=f"flamestream.{kind}"):
            if point.dist is not None and point.dist.name == "flamestream":
                assert f"`{point.name}`" in pages or f"`flamestream {point.name}`" in pages, f"{kind} {point.name}"


@pytest.mark.parametrize("kind", ["source", "sink", "transport", "acker", "store", "registry"])
def test_every_option_is_described(kind: Any) -> None:
    plugins = PluginRegistry()
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "plugins").glob("*/README.md"))
    for provider in plugins.providers(kind):
        if provider.distribution != "flamestream":
            continue
        try:
            options = plugins.get(kind, provider.name).Options
        except errors.MissingDependencyError:
            continue
        for field in msgspec.structs.fields(options) if options is not None else ():
            written = (f"`{field.encode_name}`", f"\n{field.encode_name} = ")
            assert any(text in pages for text in written), f"{kind} {provider.name}: {field.encode_name}"


# -- command line ------------------------------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Return the commands of the core and of the plugins that come with it."""
    context = click.Context(main)
    strangers = {
        point.name
        for point in entry_points(group="flamestream.command")
        if point.dist is None or point.dist.name != "flamestream"
    }
    found = {name: main.get_command(context, name) for name in main.list_commands(context) if name not in strangers}
    return {name: command for name, command in found.items() if command is not None}


def test_every_command_has_a_heading() -> None:
    told = [title.split()[1] for title in headings(page("cli.md")) if title.startswith("flamestream ")]
    assert sorted(told) == sorted(commands())


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_option_of_a_command_has_a_line(name: str) -> None:
    text = page("cli.md")
    titles = re.findall(r"^## (`flamestream ([\w-]+).*)$", text, re.MULTILINE)
    about = "".join(section(text, title) for title, command in titles if command == name)
    if name in ("run", "check", "windows"):
        about += section(text, "Options of `run`, `check`, `windows`")
    told = {option for row in rows(about) for option in row.split() if option.startswith("-")}
    command = commands()[name]
    context = click.Context(command)
    below = command.list_commands(context) if isinstance(command, click.Group) else ()
    parts = [command, *(command.get_command(context, name) for name in below)]  # type: ignore[attr-defined]
    options = [option for part in parts for option in part.params if isinstance(option, click.Option)]
    real = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    everywhere = {"--help", "-h", "--json", "-v", "--verbose"}
    assert real - everywhere <= told, f"not told: {sorted(real - everywhere - told)}"
    assert told <= real | everywhere, f"not there: {sorted(told - real - everywhere)}"


# -- plugins -----------------------------------------------------------------------------------------------------------


def test_every_kind_has_a_page() -> None:
    there = {path.stem for path in (ROOT / "docs" / "plugins").glob("*.md")} - {"index"}
    assert there == set(KINDS)


def test_every_hook_is_described() -> None:
    hooks = [name for name in vars(hookspecs.ObserverSpecs) if name.startswith("flamestream_")]
    assert sorted(headings(page("plugins/hooks.md"), 3)) == sorted(hooks)
    for kind in KINDS:
        if kind != "hooks":
            assert f"flamestream_{kind}" in page(f"plugins/{kind}.md")


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [path.name for path in sorted(ROOT.glob("*.md"))])
def test_links_have_targets(path: str) -> None:
    text = (ROOT / path).read_text("utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_readmes_of_plugins_are_in_the_reference() -> None:
    included = "".join(path.read_text("utf-8") for path in REFERENCE.glob("*.md"))
    for readme in (ROOT / "plugins").glob("*/README.md"):
        if readme.parent.name != "demo":
            assert f"plugins/{readme.parent.name}/README.md" in included, readme
