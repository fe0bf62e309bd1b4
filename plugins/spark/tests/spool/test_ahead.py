"""The prefix of a source run where its spool is filled: no output tells of it. Without a session of Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import flamecore as fc
from flamecore.errors import OperationError
from flamecore.runtime.config import prefix
from flamecore.runtime.config.flow_loader import load_flow_anew
from flamestream_spark.source import SparkSource
from flamestream_spark.spool import ahead, parts
from flamestream_spark.spool.spool import Order, Spool

HEAD = """
import flamecore as fc

seen = []
calls = []
flow = fc.Flow("numbers")
stream = flow.source("numbers", int)
"""
TAIL = """
stream = stream.inspect(lambda payload, meta: seen.append((payload, meta)), meta=True)
stream.key_by(lambda payload: str(payload)[-1]).count().sink("counts")
"""
OPERATIONS = (
    """
def map_{at}(payload: object) -> object:
    calls.append(payload)
    if hash(payload) % {rare} == {bad}:
        raise ValueError(f"{{payload}} is bad")
    return (payload, {at}) if hash(payload) % 3 else hash(payload) // 2
stream = stream.map(map_{at})
""",
    """
def split_{at}(payload: object) -> list[object]:
    calls.append(payload)
    return [hash((payload, n)) for n in range(hash(payload) % {bad})]
stream = stream.flat_map(split_{at})
""",
    """
def late_{at}(payload: object):
    calls.append(payload)
    yield payload
    if hash(payload) % {rare} == {bad}:
        raise LookupError(f"no more of {{payload}}")
    yield "text"
    yield {{"a": [payload, None]}}
stream = stream.flat_map(late_{at}).map(str)
""",
    """
def keeps_{at}(payload: object) -> bool:
    calls.append(payload)
    if hash(payload) % {rare} == {bad}:
        return 1 / 0
    return hash(payload) % 4 != 1
stream = stream.filter(keeps_{at})
""",
)


@pytest.fixture(autouse=True)
def nothing_is_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make executors that know no flow, and weigh nothing, for each test."""
    ahead._opened.clear()
    monkeypatch.setattr(prefix.Errand, "_weigh", lambda *_: None)


def program(seed: int) -> str:
    """Return the program of a flow with a few operations, some of which fail at times."""
    random = Random(seed)
    drawn = [random.choice(OPERATIONS) for _ in range(random.randrange(1, 5))]
    filled = (
        one.format(at=at, rare=random.choice([5, 17, 97]), bad=random.randrange(5)) for at, one in enumerate(drawn)
    )
    return HEAD + "".join(filled) + TAIL


def loaded(folder: Path, text: str, name: str = "numbers_flow") -> tuple[Any, Any]:
    """Return the flow of a file, imported anew, and its module."""
    (folder / f"{name}.py").write_text(text)
    flow, _ = load_flow_anew(f"{name}.py", folder)
    return flow, sys.modules[flow.module]


def errand_of(flow: Any) -> dict[str, Any] | None:
    graph = flow.graph()
    found = prefix.prefix_of(flow, graph, graph.sources[0], checked=False)
    return None if found is None else ahead.errand_of(found, "numbers", ())


def fill(folder: Path, rows: Any, errand: dict[str, Any] | None, *, at_once: int = 70) -> None:
    """Fill a spool with numbers as a task of Spark does."""
    spool = Spool(folder, "numbers", durable=False)
    spool.open()
    spool.announce(Order())
    batches = pa.table({"n": rows}).to_batches(max_chunksize=at_once)
    here = dict(sys.modules)  # the task of Spark imports the flow in another process
    told = parts.write_parts(batches, str(spool.batch(0)), force=False, errand=errand)
    spool.complete(0, [(row["name"], row["rows"]) for found in told for row in found.to_pylist()])
    sys.modules.update(here)
    spool.end()


def run(flow: Any, module: Any, folder: Path, policy: str, inputs: Any = None, **more: Any) -> dict[str, Any]:
    """Return outputs, metas, dead letters and the error of a run over a spool."""
    dead = folder / "dead.jsonl"
    settings = {
        "source.numbers.use": "spark",
        "source.numbers.spool": str(folder),
        "source.numbers.keep": True,
        "source.numbers.on_error": policy,
        "job.on_error": policy,
        "job.check_types": False,
        "job.check_mutation": False,
        **more,
    }
    if policy == "dead_letter":
        settings |= {"dead_letter.use": "jsonl", "dead_letter.path": str(dead)}
    module.seen.clear()
    module.calls.clear()
    error, outputs = None, None
    try:
        outputs = dict(flow.run(inputs, settings=settings))
    except fc.FlameError as raised:
        error, outputs = raised, dict(raised.outputs)
    letters = [json.loads(line) for line in dead.read_text().splitlines()] if dead.exists() else []
    shown = None if error is None else (type(error), error.what, error.hint)
    return {"outputs": outputs, "seen": list(module.seen), "letters": letters, "error": shown}


@pytest.mark.parametrize("policy", ["fail", "skip", "dead_letter"])
@pytest.mark.parametrize("seed", range(12))
def test_outputs_metas_dead_letters_and_errors_are_those_without_it(tmp_path: Path, seed: int, policy: str) -> None:
    flow, module = loaded(tmp_path, program(seed))
    rows = [n if n % 41 else None for n in range(seed, 600)]
    found = []
    for name, errand in (("plain", None), ("ahead", errand_of(flow))):
        assert (errand is not None) is (name == "ahead")
        fill(tmp_path / name, rows, errand)
        found.append(run(flow, module, tmp_path / name, policy))
    plain, before = found
    assert before["error"] == plain["error"]
    assert before["outputs"] == plain["outputs"]
    assert before["letters"] == plain["letters"]
    if plain["error"] is None:  # of a run that ends early it depends on the batches what is seen behind the end
        assert before["seen"] == plain["seen"]
        module.seen.clear()
        settings = {"source.numbers.on_error": policy, "job.on_error": policy}
        settings |= {"dead_letter.use": "jsonl", "dead_letter.path": str(tmp_path / "other.jsonl")}
        assert dict(flow.run({"numbers": rows}, workers=2, settings=settings)) == plain["outputs"]
        assert sorted(map(repr, module.seen)) == sorted(map(repr, plain["seen"]))


EASY = HEAD + OPERATIONS[0].format(at=0, rare=50, bad=7) + OPERATIONS[1].format(at=1, rare=5, bad=4) + TAIL


def test_the_worker_calls_functions_only_for_records_that_have_failed(tmp_path: Path) -> None:
    flow, module = loaded(tmp_path, EASY)
    fill(tmp_path / "spool", range(1000), errand_of(flow))
    found = run(flow, module, tmp_path / "spool", "dead_letter")
    assert len(found["letters"]) == 20
    assert module.calls == [n for n in range(1000) if n % 50 == 7]


@pytest.mark.parametrize("checked", ["job.check_types", "job.check_mutation"])
def test_a_job_that_checks_all_records_runs_it_on_the_worker(tmp_path: Path, checked: str) -> None:
    flow, module = loaded(tmp_path, EASY)
    fill(tmp_path / "spool", range(100), errand_of(flow))
    run(flow, module, tmp_path / "spool", "skip", **{checked: True})
    assert set(range(100)) <= set(module.calls)


def test_the_option_switches_it_off(tmp_path: Path) -> None:
    flow, module = loaded(tmp_path, EASY)
    fill(tmp_path / "spool", range(100), errand_of(flow))
    run(flow, module, tmp_path / "spool", "skip", **{"source.numbers.prefix": False})
    assert set(range(100)) <= set(module.calls)


def test_another_version_of_the_flow_takes_the_rows_and_not_what_the_former_made(tmp_path: Path) -> None:
    former, _ = loaded(tmp_path, EASY)
    fill(tmp_path / "spool", range(300), errand_of(former))
    flow, module = loaded(tmp_path, EASY.replace("hash(payload) // 2", "hash(payload) // 5"))
    found = run(flow, module, tmp_path / "spool", "skip")
    assert set(range(300)) <= set(module.calls)
    assert found["outputs"] == dict(flow.run({"numbers": range(300)}, settings={"job.on_error": "skip"}))


def test_a_version_that_is_not_on_the_executor_is_left_to_the_worker(tmp_path: Path) -> None:
    flow, module = loaded(tmp_path, EASY)
    errand = errand_of(flow)
    (tmp_path / "numbers_flow.py").write_text(EASY + "# changed\n")
    fill(tmp_path / "spool", range(100), errand)
    (tmp_path / "numbers_flow.py").write_text(EASY)
    run(flow, module, tmp_path / "spool", "skip")
    assert set(range(100)) <= set(module.calls)


def test_the_flow_goes_along_where_its_files_are_not(tmp_path: Path) -> None:
    flow, module = loaded(tmp_path, EASY)
    errand = errand_of(flow)
    assert errand is not None
    source = tmp_path / "numbers_flow.py"
    source.rename(tmp_path / "elsewhere")
    path = list(sys.path)
    fill(tmp_path / "spool", range(100), errand)
    assert sys.path == path
    (tmp_path / "elsewhere").rename(source)
    run(flow, module, tmp_path / "spool", "skip")
    assert set(module.calls) == {7, 57}


def test_an_executor_without_room_for_the_flow_leaves_it_to_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, module = loaded(tmp_path, EASY)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prefix, "TemporaryDirectory", full)
    fill(tmp_path / "spool", range(100), errand_of(flow))
    run(flow, module, tmp_path / "spool", "skip")
    assert set(range(100)) <= set(module.calls)


ODD = """
import flamecore as fc

class Odd:
    def __init__(self, n): self.n = n

seen = []
calls = []
def odd(n: int) -> object:
    calls.append(n)
    return Odd(n) if n > 5000 else n
flow = fc.Flow("odd")
flow.source("numbers", int).map(odd).map(lambda odd: getattr(odd, "n", odd)).inspect(seen.append).sink("out")
flow2 = fc.Flow("odd all")
flow2.source("numbers", int).map(Odd).inspect(lambda odd: calls.append(odd.n)).map(lambda odd: odd.n).sink("out")
"""


def test_what_cannot_be_written_is_left_to_the_worker(tmp_path: Path) -> None:
    text = ODD.replace('.map(lambda odd: getattr(odd, "n", odd)).inspect', ".inspect")
    (tmp_path / "odd_flow.py").write_text(text)
    flow, _ = load_flow_anew("odd_flow.py:flow", tmp_path)
    module = sys.modules[flow.module]
    fill(tmp_path / "spool", range(8000), errand_of(flow), at_once=10_000)
    found = run(flow, module, tmp_path / "spool", "fail")
    assert [getattr(one, "n", one) for one in found["outputs"]["out"]] == list(range(8000))
    assert module.calls == list(range(4096, 8000))  # the piece in which the first of them is, and those behind it


def test_a_flow_that_ends_the_process_does_so_on_the_worker(tmp_path: Path) -> None:
    text = HEAD + "def end(n: int) -> int:\n    raise SystemExit(3)\nstream = stream.map(end)" + TAIL
    flow, module = loaded(tmp_path, text)
    fill(tmp_path / "spool", range(10), errand_of(flow))
    found = run(flow, module, tmp_path / "spool", "skip")
    assert "sys.exit(3)" in found["error"][1]


def test_a_mistake_in_the_first_records_ends_the_job_as_without_it(tmp_path: Path) -> None:
    text = (
        HEAD + "def wrong(n: int) -> int:\n    return str(n) if n % 60 == 50 else n\nstream = stream.map(wrong)" + TAIL
    )
    flow, module = loaded(tmp_path, text)
    errors = []
    for start in (0, 51):  # the first hundred records are held to their types, and no others
        for name, errand in (("plain", None), ("ahead", errand_of(flow))):
            folder = tmp_path / f"{name}{start}"
            fill(folder, range(start, 300), errand)
            found = run(flow, module, folder, "skip")
            found["seen"] = found["error"] or found["seen"]  # behind an error it depends on the batches
            errors.append(found)
    assert errors[0] == errors[1]
    assert errors[0]["error"][0] is OperationError
    assert errors[2] == errors[3]


def test_operations_that_need_more_than_their_record_are_no_prefix(tmp_path: Path) -> None:
    for chain, wanted in (
        (".map(abs).inspect(print).map(str)", ("map:abs",)),
        (".filter(bool).rebalance().map(str)", ("filter:bool",)),
        (".key_by(abs).count()", None),
        (".map(abs).filter(bool).key_by(abs).count()", ("map:abs", "filter:bool")),
    ):
        flow = fc.Flow("numbers")
        eval(f'flow.source("numbers", int){chain}.sink("out")', {"flow": flow})
        graph = flow.graph()
        found = prefix.prefix_of(flow, graph, graph.sources[0], checked=False)
        assert (found and found.operations) == wanted


def test_a_flow_that_nobody_else_can_import_stays_where_it_is() -> None:
    flow = fc.Flow("local")
    flow.source("numbers", int).map(lambda n: n + 1).sink("out")
    assert errand_of(flow) is None


def test_the_option_is_no_part_of_what_is_read() -> None:
    from flamecore.abc.source import EdgeContext

    made = [SparkSource(SparkSource.Options(sql="select 1", prefix=on), EdgeContext("n")) for on in (True, False)]
    assert made[0].fingerprint() == made[1].fingerprint()


BEHIND = {
    "cycle": """
def body(inside):
    less = inside.map(lambda n: n // 2)
    return less.filter(bool), less
stream.loop(body).inspect(lambda n, meta: seen.append((n, meta)), meta=True).sink("out")
""",
    "keyed cycle": """
def body(inside):
    less = inside.key_by(lambda n: n % 5).stateful_map(0, lambda most, n: (max(most, n), [n // 2] if n > 1 else []))
    return less, less
stream.loop(body).inspect(lambda n, meta: seen.append((n, meta)), meta=True).sink("out")
""",
    "two fronts": """
others = flow.source("others", int).map(abs)
both = stream.merge(others).inspect(lambda n, meta: seen.append((n, meta)), meta=True)
both.key_by(lambda n: n % 7).count().sink("out")
""",
    "fork": """
evens, odds = stream.branch(lambda n: n % 2 == 0)
both = evens.merge(odds.map(str)).inspect(lambda n, meta: seen.append((n, meta)), meta=True)
both.key_by(lambda n: str(n)[0]).count().sink("out")
""",
}


@pytest.mark.parametrize("behind", BEHIND)
def test_what_is_behind_it_makes_no_difference(tmp_path: Path, behind: str) -> None:
    first = "stream = stream.flat_map(lambda n: [n, n * 3] if n % 13 else [1 // 0])\n"
    flow, module = loaded(tmp_path, HEAD + first + BEHIND[behind])
    found = []
    for name, errand in (("plain", None), ("ahead", errand_of(flow))):
        fill(tmp_path / name, range(200), errand)
        inputs = {"others": range(-150, 0)} if behind == "two fronts" else {}
        found.append(run(flow, module, tmp_path / name, "dead_letter", inputs=inputs))
    for one in found:  # behind a fork each run draws ids of its own
        one["seen"] = [(payload, meta._replace(trace=0)) for payload, meta in one["seen"]]
    assert found[0] == found[1]
    assert len(found[0]["seen"]) > 300
    assert len(found[0]["letters"]) == 16
