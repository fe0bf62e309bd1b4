"""State that is stored: windows that were open go on, and state that was made by other settings is refused."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.cli.stored import use_store
from flamecore.errors import FlameError
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config import layers
from flamecore.runtime.config.read import read_config
from flamecore.runtime.state.inspect import value_of
from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t

RECORDS = [
    *[(1.0, "a"), (2.5, "b"), (0.5, "a"), (11.0, "a"), (13.0, "c"), (9.5, "b"), (16.0, "a")],  # stored
    *[(17.0, "b"), (24.0, "c"), (31.0, "a"), (45.0, "b")],
]
STORED = 7


def flow() -> fc.Flow:
    """Return a flow with windows of each kind."""
    made = fc.Flow("stored")
    timed = w.event_time(made.source("records", tuple), lambda record: record[0], name="times")
    keyed = timed.key_by(lambda record: record[1])
    ten, late = w.fixed(seconds=10), timedelta(seconds=10)
    keyed.window(ten, lateness=late).count(name="final").sink("final")
    keyed.window(ten, emit="updates", panes="accumulating").count(name="updates").sink("updates")
    early = t.at_watermark(early=t.count(2), late=t.count(1))
    windowed = keyed.window(ten, lateness=late, emit=early, panes="discarding")
    windowed.sum(lambda record: record[0], name="early").sink("early")
    visits = keyed.window(w.sessions(seconds=6))
    visits.fold(0, lambda n, _: n + 1, merge=lambda one, other: one + other, name="visits").sink("visits")
    sliding = keyed.window(w.sliding(seconds=10, every=timedelta(seconds=5)))
    sliding.max(lambda record: record[0], name="most").sink("most")
    keyed.distinct(within=timedelta(seconds=5), name="once").sink("once")
    keyed.inactive(after=timedelta(seconds=8), name="silent").sink("silent")
    return made


def run(folder: Path, count: int, workers: int = 1) -> dict[str, list[Any]]:
    """Run the flow on so many records, with the state in a folder."""
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in RECORDS[:count]), "utf-8")
    settings = {"source.records.use": "jsonl", "source.records.path": "records.jsonl"}
    with contextlib.chdir(folder):  # the state knows the file by this path
        made = flow().run(workers=workers, state=folder / "state", settings=settings)
    return {name: list(found) for name, found in made.items()}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_windows_that_are_stored_go_on(tmp_path: Path, workers: int) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    for folder in (stopped, whole):
        folder.mkdir()
    first = run(stopped, STORED)
    rest = run(stopped, len(RECORDS), workers)
    wanted = run(whole, len(RECORDS))
    assert {name: first[name] + rest[name] for name in wanted} == wanted
    assert all(first[name] for name in rest if name != "final")
    assert all(rest.values())


def at(seconds: float) -> str:
    return f"1970-01-01T00:00:{seconds:02}+00:00"


SHOWN: dict[str, Any] = {
    "final": {
        "windows": [
            {"start": at(0), "end": at(10), "value": 2, "items": 2, "last_pane": None},
            {"start": at(10), "end": at(20), "value": 2, "items": 2, "last_pane": None},
        ],
        "due": at(20),
    },
    "visits": {"windows": [{"start": at(11), "end": at(22), "value": 2, "items": 2, "last_pane": None}], "due": at(22)},
    "once": {
        "cells": {"seen": [{"at": at(11), "value": True}, {"at": at(16), "value": True}]},
        "timers": [{"name": "forget", "event": at(21)}, {"name": "forget", "event": at(26)}],
        "due": at(21),
    },
}


@pytest.mark.parametrize("name", SHOWN)
def test_state_is_shown_with_its_names_and_times_as_text(name: str, tmp_path: Path) -> None:
    run(tmp_path, STORED)
    graph = flow().graph()
    config = read_config(command=layers.from_command(("state.use=sqlite", f"state.path={tmp_path / 'state'}")))
    found = use_store(config, "stored", lambda store: value_of(store, Codec.of(graph), name, ["a"], graph))
    assert found.value == SHOWN[name]
    with pytest.raises(FlameError, match="Name the flow: --app"):
        use_store(config, "stored", lambda store: value_of(store, Codec.of(graph), name, ["a"]))


KEYED: dict[str, Callable[[w.TimedKeyed[Any, Any], int], w.Timed[Any]]] = {
    "within=(seconds=2)": lambda keyed, n: keyed.distinct(within=timedelta(seconds=n)),
    "after=(seconds=2)": lambda keyed, n: keyed.inactive(after=timedelta(seconds=n)),
    "keep=(seconds=2)": lambda keyed, n: keyed.as_of(keyed, keep=timedelta(seconds=n)),
    "before=(seconds=0), after=(seconds=2)": lambda keyed, n: keyed.join(
        keyed, before=timedelta(0), after=timedelta(seconds=n)
    ),
    "top=2": lambda keyed, n: keyed.window(w.fixed(minutes=1)).top(n, by=lambda record: record[0]),
    "most=2": lambda keyed, n: keyed.window(w.fixed(minutes=1)).aggregate(
        most=agg.top(n, by=lambda record: record[0]), n=agg.count()
    ),
}


@pytest.mark.parametrize("settings", KEYED)
def test_state_that_was_made_by_other_settings_is_refused(settings: str, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    source = {"source.records.use": "jsonl", "source.records.path": str(records)}

    def run_by(number: int) -> None:
        flow = fc.Flow("settings")
        timed = w.event_time(flow.source("records", tuple), lambda record: record[0])
        KEYED[settings](timed.key_by(lambda record: record[1]), number).sink("out")
        flow.run(state=tmp_path / "state", settings=source)

    for count in (2, 3):
        records.write_text("".join(f"{json.dumps(record)}\n" for record in RECORDS[:count]), "utf-8")
        run_by(1)
    with pytest.raises(FlameError, match=re.escape(f"settings {settings} now")):
        run_by(2)
