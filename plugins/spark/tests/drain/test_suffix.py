"""The suffix of a sink run behind the workers: nothing that a job delivers tells of it. Without a session of Spark."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flamecore.errors import FlameError, OperationError, SinkError
from flamecore.runtime.config.flow_loader import load_flow_anew
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.launch import job_of
from flamestream_spark.drain import behind, held, work

HEAD = """
from typing import NamedTuple
import flamecore as fc

calls = []
flow = fc.Flow("words")
words = flow.source("lines", str).flat_map(str.split)
counts = words.key_by(lambda word: word).count()
"""
TAIL = """
counts = counts.map(first)
counts.sink("out")
"""
OPERATIONS = (
    """
def map_{at}(payload: object) -> object:
    calls.append(payload)
    if hash(repr(payload).count("1")) % {rare} == {bad}:
        raise ValueError(f"{{payload}} is bad")
    return (payload, {at})
stream = stream.map(map_{at})
""",
    """
def split_{at}(payload: object) -> list[object]:
    calls.append(payload)
    return [(payload, n) for n in range(len(repr(payload)) % {bad})]
stream = stream.flat_map(split_{at})
""",
    """
def late_{at}(payload: object):
    calls.append(payload)
    yield payload
    if len(repr(payload)) % {rare} == {bad}:
        raise LookupError(f"no more of {{payload}}")
    yield "text"
    yield {{"a": [payload, None]}}
stream = stream.flat_map(late_{at}).map(str)
""",
    """
def keeps_{at}(payload: object) -> bool:
    calls.append(payload)
    if len(repr(payload)) % {rare} == {bad}:
        return 1 / 0
    return len(repr(payload)) % 4 != 1
stream = stream.filter(keeps_{at})
""",
)


@pytest.fixture(autouse=True)
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have tasks run here, in any order and some of them twice; return the work that was done."""
    from pyspark import cloudpickle

    done: list[Any] = []

    async def collect(self: Any) -> list[Any]:
        there = cloudpickle.loads(cloudpickle.dumps(self._work))
        done.append(there)
        random = Random(len(there.tasks))
        numbers = [*range(len(there.tasks)), *random.choices(range(len(there.tasks)), k=2)]
        random.shuffle(numbers)
        found = {}
        before, path = dict(sys.modules), list(sys.path)  # a task imports the flow in another process
        for number in numbers:
            for batch in there([pa.RecordBatch.from_pydict({"id": [number]})]):
                (row,) = batch.to_pylist()
                found[number] = SimpleNamespace(**row)
        work.forget()
        sys.modules.update(before)
        sys.path[:] = path
        return list(found.values())

    monkeypatch.setattr(behind.SparkTasks, "collect", collect)
    monkeypatch.setattr(behind, "counted", lambda *_: 2)
    monkeypatch.setattr(behind, "_place_of", lambda spec: "")
    monkeypatch.setattr(behind, "session", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(held.HeldSink, "_is_costly", lambda *_: True)
    return done


def loaded(folder: Path, text: str) -> Any:
    """Return the flow of a file, imported anew."""
    (folder / "words_flow.py").write_text(text)
    return load_flow_anew("words_flow.py:flow", folder)[0]


def spec_of(flow: Any, folder: Path, policy: str = "fail", lines: int = 90, **settings: Any) -> Any:
    """Return a resolved job that writes into a folder; `settings` are keys with `__` for the dots."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder.parent / "lines").write_text("".join(f"a b{n % 3} c{n % 50}\n" for n in range(lines)))
    chosen = {
        "deploy.on": "here",
        "job.workers": 2,
        "job.on_error": policy,
        "source.lines.use": "lines",
        "source.lines.path": str(folder.parent / "lines"),
        "sink.out.use": "spark",
        "sink.out.path": str(folder / "out"),
        "sink.out.times": True,
        "sink.out.suffix": True,
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    if policy == "dead_letter":
        chosen |= {"dead_letter.use": "jsonl", "dead_letter.path": str(folder / "dead.jsonl")}
    spec = resolve(make_config(from_program(chosen), folder=folder), flow)
    spec.problems.raise_first()
    return spec


def run(spec: Any, folder: Path, *, cut: bool) -> dict[str, Any]:
    """Return outputs, dead letters, counts and the error of a job."""
    found = behind.cut_off(spec, "", {}) if cut else None
    assert (found is not None) is cut
    job = job_of(spec if found is None else found[0])
    job.behind = None if found is None else found[1]
    error = None
    try:
        asyncio.run(job.run())
    except FlameError as raised:
        error = raised
    letters = folder / "dead.jsonl"
    stats = job._whole_stats()
    return {
        "outputs": rows(folder / "out"),
        "letters": [json.loads(line) for line in letters.read_text().splitlines()] if letters.exists() else [],
        "error": None if error is None else told(error),
        "counts": (stats.items_out, stats.failed, stats.dead_letters, stats.first_failed),
    }


def told(error: FlameError) -> Any:
    """Return what an error tells, but for the worker, which only one of the ways has."""
    lines = [line.partition(", ")[0] if line.strip().startswith("at  ") else line for line in error.what.splitlines()]
    return type(error), lines, error.hint, getattr(error, "vertex", None), getattr(error, "position", None)


def rows(folder: Path) -> list[Any]:
    """Return the outputs of a sink `spark`, in the order of delivery."""
    if not any(folder.glob("part-*")):
        return []
    keys = [(name, "ascending") for name in ("_time", "_front", "_place")]
    found: list[Any] = pq.read_table(folder).sort_by(keys).to_pylist()
    return found


def both(flow: Any, folder: Path, policy: str = "fail", **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a job gives with the suffix on the workers, and behind them."""
    ways = []
    for name, cut in (("whole", False), ("cut", True)):
        ways.append(run(spec_of(flow, folder / name, policy, **settings), folder / name, cut=cut))
    return ways[0], ways[1]


def program(seed: int) -> str:
    """Return the program of a flow that ends with a few operations, some of which fail at times."""
    random = Random(seed)
    drawn = [random.choice(OPERATIONS) for _ in range(random.randrange(1, 4))]
    filled = (
        one.format(at=at, rare=random.choice([5, 13, 29]), bad=random.randrange(1, 5)) for at, one in enumerate(drawn)
    )
    return HEAD + "stream = counts" + "".join(filled) + 'stream.sink("out")\n'


@pytest.mark.parametrize("policy", ["fail", "skip", "dead_letter"])
@pytest.mark.parametrize("seed", range(8))
def test_outputs_dead_letters_counts_and_errors_are_those_of_the_workers(
    tmp_path: Path, seed: int, policy: str, tasks: list[Any]
) -> None:
    flow = loaded(tmp_path, program(seed))
    whole, cut = both(flow, tmp_path, policy)
    assert cut["error"] == whole["error"]
    assert cut["outputs"] == whole["outputs"]
    assert cut["letters"] == whole["letters"]
    if whole["error"] is None:
        assert cut["counts"] == whole["counts"]
    assert len(tasks) == 1
    assert len(tasks[0].tasks) == 5, "270 items"


TWO = """
def heavy(pair: tuple[str, int]) -> str:
    if pair[1] == 20 and pair[0] < "c":
        raise ValueError(f"{pair} is enough")
    return "/".join(map(str, pair))

def light(pair: tuple[str, int]) -> list[str]:
    return [pair[0]] * (pair[1] % 3) if pair[1] != 20 else [str(1 // 0)]

def odd(pair: tuple[str, int]) -> bool:
    if pair[1] == 7:
        raise LookupError(pair[0])
    return pair[1] % 2 == 1

counts.map(heavy).sink("out")
counts.filter(odd).flat_map(light).sink("other")
"""
"""Records on which several operations fail, in both sinks."""


@pytest.mark.parametrize("policy", ["fail", "skip", "dead_letter"])
@pytest.mark.parametrize("before", [(), ("c9",), ("c7", "c19", "c20"), ("a", "b1")])
def test_several_sinks_and_failures_before_them(tmp_path: Path, policy: str, before: tuple[str, ...]) -> None:
    strict = """
def strict(word: str) -> str:
    if word in {word}:
        raise KeyError(word)
    return word

flow = fc.Flow("words")
counts = flow.source("lines", str).flat_map(str.split).map(strict).key_by(lambda word: word).count()
"""
    flow = loaded(tmp_path, HEAD + (strict.replace("{word}", repr(before)) if before else "") + TWO)
    more: dict[str, Any] = {
        f"sink__other__{key}": value for key, value in (("use", "spark"), ("suffix", True), ("times", True))
    }
    ways = []
    for name, cut in (("whole", False), ("cut", True)):
        folder = tmp_path / name
        spec = spec_of(flow, folder, policy, sink__other__path=str(folder / "other"), **more)
        ways.append((run(spec, folder, cut=cut), rows(folder / "other")))
    (whole, others), (cut_, others_cut) = ways
    assert cut_["error"] == whole["error"]
    assert cut_["letters"] == whole["letters"]
    if policy != "fail":  # a sink that is not behind the operation that fails may have got more
        assert cut_["outputs"] == whole["outputs"]
        assert others_cut == others
        assert cut_["counts"] == whole["counts"]
    if policy == "dead_letter":
        assert len({letter["vertex"] for letter in whole["letters"]}) == 2 + bool(before)


def test_records_that_are_skipped_leave_the_dead_letters_of_others_alone(tmp_path: Path) -> None:
    strict = "words = words.filter(lambda word: word != 'c7' or 1 // 0 == 0)\n"
    one = TWO.replace("counts.filter(odd)", "# ")
    program = HEAD.replace("counts =", strict + "counts =") + one
    flow = loaded(tmp_path, program)
    ways = []
    for name, cut in (("whole", False), ("cut", True)):
        folder = tmp_path / name
        letters = {"use": "jsonl", "path": str(folder / "dead.jsonl")}
        settings: dict[str, Any] = {f"dead_letter__{key}": value for key, value in letters.items()}
        spec = spec_of(flow, folder, "skip", source__lines__on_error="dead_letter", **settings)
        with (tmp_path / "lines").open("ab") as file:
            file.write(b"a b0 c7\n\xff\xff no text\na\n")
        ways.append(run(spec, folder, cut=cut))
    whole, cut_ = ways
    assert whole["counts"][1:3] == (6, 1), "three with c7, one of which has a b0 that is enough, and three more"
    assert len(whole["letters"]) == 1
    assert cut_ == whole


TYPES = """
import datetime
import decimal

class Row(NamedTuple):
    word: str
    at: datetime.datetime
    plain: datetime.datetime
    price: decimal.Decimal
    day: datetime.date
    parts: list[int]

def rich(pair: tuple[str, int]) -> tuple[str, datetime.datetime, decimal.Decimal]:
    zone = datetime.timezone(datetime.timedelta(hours=pair[1] % 5))
    return pair[0], datetime.datetime(2024, 2, 29, 12, pair[1] % 60, tzinfo=zone), decimal.Decimal(pair[1]) / 8

def row(rich: tuple[str, datetime.datetime, decimal.Decimal]) -> Row:
    word, at, price = rich
    return Row(word, at, at.replace(tzinfo=None), price, at.date(), [len(word), at.minute])

counts.map(rich).key_by(lambda rich: rich[0]).stateful_map(0, lambda n, rich: (n + 1, [rich])).map(row).sink("out")
"""


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    flow = loaded(tmp_path, HEAD + TYPES)
    kept: dict[str, Any] = {"sink__out__types": {"plain": "timestamp_ntz", "price": "decimal(12,3)"}}
    whole, cut = both(flow, tmp_path, **kept)
    assert whole["error"] is None
    assert len(whole["outputs"]) == 270
    assert cut == whole


def test_a_second_start_goes_on_behind_what_the_sink_holds(tmp_path: Path) -> None:
    flow = loaded(tmp_path, program(2))
    folder = tmp_path / "again"
    first = run(spec_of(flow, folder, "skip", sink__out__mode="resume"), folder, cut=True)
    files = sorted(path.name for path in (folder / "out").glob("part-*"))
    again = run(spec_of(flow, folder, "skip", sink__out__mode="resume"), folder, cut=True)
    assert again["outputs"] == first["outputs"]
    assert sorted(path.name for path in (folder / "out").glob("part-*")) == files


def test_a_run_that_was_killed_while_it_drains_delivers_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = loaded(tmp_path, program(2))
    folder = tmp_path / "killed"
    monkeypatch.setattr(behind, "_BATCH", 100)
    deliver = held.HeldSink.deliver

    async def dies(self: Any, *given: Any) -> None:
        await deliver(self, *given)
        raise SinkError("the machine is gone", sink="out")

    with monkeypatch.context() as patch:
        patch.setattr(held.HeldSink, "deliver", dies)
        killed = run(spec_of(flow, folder, "skip", sink__out__mode="resume"), folder, cut=True)
    assert killed["error"][0] is SinkError
    whole = run(spec_of(flow, tmp_path / "whole", "skip"), tmp_path / "whole", cut=False)
    assert 0 < len(killed["outputs"]) < len(whole["outputs"])
    again = run(spec_of(flow, folder, "skip", sink__out__mode="resume"), folder, cut=True)
    assert again["outputs"] == whole["outputs"]


def test_a_suffix_that_costs_nothing_runs_as_outputs_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[Any]
) -> None:
    monkeypatch.setattr(held.HeldSink, "_is_costly", lambda *_: False)
    flow = loaded(tmp_path, HEAD + 'counts.map(lambda pair: pair[0]).filter(lambda word: word != "b1").sink("out")\n')
    whole, cut = both(flow, tmp_path, "skip")
    assert cut == whole
    assert not tasks


@pytest.mark.parametrize("policy", ["fail", "dead_letter"])
def test_behind_a_failure_all_is_held_as_its_record_is_found_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[Any], policy: str
) -> None:
    monkeypatch.setattr(held.HeldSink, "_is_costly", lambda *_: False)
    flow = loaded(tmp_path, HEAD + TWO.replace('counts.filter(odd).flat_map(light).sink("other")', ""))
    whole, cut = both(flow, tmp_path, policy)
    assert whole["error"] or whole["letters"]
    assert (cut["outputs"], cut["letters"], cut["error"]) == (whole["outputs"], whole["letters"], whole["error"])
    assert len(tasks) == 1


def test_what_a_suffix_costs_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[Any]) -> None:
    monkeypatch.undo()
    text = (
        HEAD
        + """
import time

def slow(pair: tuple[str, int]) -> tuple[str, int]:
    time.sleep(SECONDS)
    return pair

counts.map(slow).sink("out")
"""
    )
    flow = loaded(tmp_path, text.replace("SECONDS", "0.002"))
    spec = spec_of(flow, tmp_path / "out")
    monkeypatch.setattr(behind, "_place_of", lambda spec: "")
    found = behind.cut_off(spec, "", {})
    assert found is not None
    sink = found[0].sinks["out"]
    assert isinstance(sink, held.HeldSink)
    order = (2**63).to_bytes(8, "big") + b"\0\0\0\1"
    assert sink._is_costly([order], [("a", 1)])


def test_a_function_that_ends_the_process_ends_the_job(tmp_path: Path) -> None:
    flow = loaded(
        tmp_path,
        HEAD + 'def end(pair: tuple[str, int]) -> int:\n    raise SystemExit(3)\ncounts.map(end).sink("out")\n',
    )
    spec = spec_of(flow, tmp_path / "out")
    found = run(spec, tmp_path / "out", cut=True)
    assert "sys.exit(3)" in found["error"][1][0]


def test_a_mistake_in_the_first_records_ends_the_job(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
def wrong(pair: tuple[str, int]) -> str:
    return pair if pair[1] == WRONG else pair[0]

counts.map(wrong).sink("out")
"""
    )
    for number in (20, 85):  # the first hundred records are held to their types
        flow = loaded(tmp_path, text.replace("WRONG", str(number)))
        whole, cut = both(flow, tmp_path / str(number), "skip", lines=200)
        assert cut["error"] == whole["error"]
        assert whole["error"][0] is OperationError
