"""The tables of the README, which must match the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flamecore.abc.sink import Sink
from flamecore.abc.source import EdgeContext, Source
from flamestream_edges.csv import CsvSink, CsvSource
from flamestream_edges.jsonl import JsonlSink, JsonlSource
from flamestream_edges.lines import Lines
from flamestream_edges.memory import MemorySink, MemorySource
from flamestream_edges.sqlite import Sqlite
from flamestream_edges.sqlitesource import SqliteSource
from flamestream_edges.stdio import Stdin, Stdout
from flamestream_edges.wikipedia import Wikipedia

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
SOURCES: list[type[Source]] = [MemorySource, Lines, JsonlSource, CsvSource, Wikipedia, Stdin, SqliteSource]
SINKS: list[type[Sink]] = [MemorySink, Stdout, JsonlSink, CsvSink, Sqlite]
DRIVERS: list[type[Source] | type[Sink]] = [*SOURCES, *SINKS]


def tables(section: str) -> list[dict[str, str]]:
    """Return each table of options in a section: names and defaults."""
    text = re.split(r"^## ", README, flags=re.MULTILINE)
    body = next(part for part in text if part.startswith(f"{section}\n"))
    found = []
    for table in re.findall(r"^\| option .*\n\|[-|]+\n((?:\|.*\n)+)", body, re.MULTILINE):
        rows = [[cell.strip().strip("`") for cell in row.split("|")] for row in table.splitlines()]
        found.append({row[1]: row[2] for row in rows})
    return found


def described(driver: type[Source] | type[Sink]) -> dict[str, str]:
    """Return the driver's options, as the README has them."""
    fields = msgspec.structs.fields(driver.Options) if driver.Options else ()
    return {field.name: "" if field.required else json.dumps(_plain(field.default)) for field in fields}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.__name__)
def test_every_option_is_in_the_readme_with_its_default(driver: type[Source] | type[Sink]) -> None:
    found = tables(driver.name)
    assert described(driver) in (found or [{}])


@pytest.mark.parametrize("driver", SOURCES, ids=lambda driver: driver.__name__)
def test_the_readme_has_the_promises_of_sources(driver: type[Source]) -> None:
    options = driver.Options(path="x") if driver.Options and "path" in driver.Options.__struct_fields__ else None
    made = driver(options or (driver.Options and driver.Options()), EdgeContext("x", given=[]))
    (row,) = re.findall(rf"^\| \[`{driver.name}`\].*\|(.*)\|(.*)\|.*\|$", README, re.MULTILINE)[:1]
    assert row[0].strip() in (("yes", "if it is a sequence") if made.capabilities.replayable else ("no",))
    assert (row[1].strip() == "yes") is made.capabilities.bounded


@pytest.mark.parametrize("driver", SINKS, ids=lambda driver: driver.__name__)
def test_the_readme_has_the_promises_of_sinks(driver: type[Sink]) -> None:
    options = driver.Options(path="x") if driver.Options and "path" in driver.Options.__struct_fields__ else None
    made = driver(options or (driver.Options and driver.Options()), EdgeContext("x"))
    row = re.findall(rf"^\| \[`{driver.name}`\].*\| ((?:exactly|at least) once) \|", README, re.MULTILINE)
    assert row == [made.guarantee.replace("_", " ")]


def test_every_driver_is_named_as_its_entry_point() -> None:
    import importlib
    import tomllib

    project = Path(__file__).parents[3] / "pyproject.toml"
    points = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"]
    for kind, drivers in (("source", SOURCES), ("sink", SINKS)):
        for driver in drivers:
            module = importlib.import_module(points[f"flamestream.{kind}"][driver.name])
            assert getattr(module, f"flamestream_{kind}")() is driver
