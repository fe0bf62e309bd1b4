"""Functions that do not do what they promise are told of, with the record and the operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import flamecore as fc
from flamecore.errors import GraphError, OperationError, SourceError

pytestmark = pytest.mark.usefixtures("installed")

OFF = {"job.check_types": False, "job.check_mutation": False}
"""As a job runs that asks for nothing: a run under pytest asks for both."""
TYPES = {"job.check_types": True, "job.check_mutation": False}

Build = Callable[[fc.Stream[Any]], fc.Stream[Any]]


def out(build: Build, records: Iterable[Any], workers: int = 1, **settings: Any) -> list[Any]:
    flow = fc.Flow("strict")
    build(flow.source("numbers")).sink("out")
    return flow.run({"numbers": records}, workers=workers, settings=settings)["out"]


def mistake(build: Build, records: Iterable[Any], workers: int = 1, **settings: Any) -> OperationError:
    with pytest.raises(OperationError, match="mistake in the flow") as caught:
        out(build, records, workers, **settings)
    return caught.value


class At:
    """Functions that return something else for one record."""

    def __init__(self, wrong: int) -> None:
        self.wrong = wrong

    def one(self, n: int) -> int:
        return "text" if n == self.wrong else n  # type: ignore[return-value]

    def many(self, n: int) -> Iterator[int]:
        yield n
        yield "text" if n == self.wrong else n  # type: ignore[misc]

    def fold(self, total: int, n: int) -> int:
        return "text" if n == self.wrong else n  # type: ignore[return-value]

    def stateful(self, total: int, n: int) -> tuple[int, list[str]]:
        return total + 1, [n if n == self.wrong else "text"]  # type: ignore[list-item]

    def key(self, n: int) -> int:
        return str(n) if n == self.wrong else n % 3  # type: ignore[return-value]


def builds(wrong: int) -> dict[str, Build]:
    at = At(wrong)
    return {
        "map": lambda s: s.map(at.one),
        "behind a rebalance": lambda s: s.rebalance().map(at.one),
        "flat_map": lambda s: s.flat_map(at.many),
        "in a loop": lambda s: s.loop(
            lambda inside: ((n := inside.map(at.one)).filter(lambda _: False).map(lambda n: n), n)
        ),
        "behind a fork": lambda s: s.merge(s.map(at.one)),
        "fold": lambda s: s.key_by(lambda n: 0).fold(0, at.fold),
        "reduce": lambda s: s.key_by(lambda n: 0).reduce(at.fold),
        "stateful_map": lambda s: s.key_by(lambda n: 0).stateful_map(0, at.stateful),
    }


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", builds(0))
@pytest.mark.parametrize(("wrong", "settings"), [(50, OFF), (99, OFF), (1000, TYPES)], ids=str)
def test_a_wrong_result_is_told_with_its_record(kind: str, workers: int, wrong: int, settings: dict[str, Any]) -> None:
    error = mistake(builds(wrong)[kind], range(1200), workers, **settings)
    assert error.record == str(wrong)
    assert error.position == f"value {wrong + 1} of numbers"
    assert "is 'text', a str, declared int" in str(error) or f"is {wrong}, a int, declared str" in str(error)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", builds(0))
@pytest.mark.parametrize("in_flight", [1, 8192])
def test_whether_a_mistake_is_found_does_not_depend_on_workers_or_batches(
    kind: str, workers: int, in_flight: int
) -> None:
    settings = OFF | {"job.max_in_flight": in_flight}
    assert mistake(builds(99)[kind], range(130), workers, **settings).record == "99"
    assert len(out(builds(100)[kind], range(130), workers, **settings)) >= 130


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("files", "checked"), [(1, 100), (3, 99), (50, 100), (150, 150)])
def test_a_hundred_records_of_a_source_are_checked_of_however_many_files(
    tmp_path: Path, workers: int, files: int, checked: int
) -> None:
    """The first records of each file are checked, as many as of any other."""
    for file in range(files):
        lines = [f"{line * files + file}\n" for line in range(400 // files)]
        (tmp_path / f"{file:03}.txt").write_text("".join(lines), "utf-8")

    def run(wrong: int) -> Any:
        def convert(line: str) -> int:
            return line if line == str(wrong) else int(line)  # type: ignore[return-value]

        flow = fc.Flow("strict")
        flow.source("numbers", str).map(convert).sink("out")
        files = {"source.numbers.use": "lines", "source.numbers.path": str(tmp_path / "*.txt")}
        return flow.run(workers=workers, settings=OFF | files)["out"]

    with pytest.raises(OperationError, match="mistake in the flow"):
        run(checked - 1)
    assert str(checked) in run(checked)


def test_keys_are_checked_where_a_job_asks_for_it() -> None:
    def build(stream: fc.Stream[Any]) -> fc.Stream[Any]:
        return stream.key_by(At(1000).key).count()

    for workers in (1, 2):
        error = mistake(build, range(1200), workers, **TYPES)
        assert "its key is '1000', a str, declared int" in str(error)
        assert error.record == "1000"


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_mistake_of_the_flow_is_not_left_out(on_error: str) -> None:
    error = mistake(lambda s: s.map(At(3).one, name="once"), [1, 2, 3], **OFF, **{"job.on_error": on_error})
    assert error.vertex == "once"
    assert "At.one, " in str(error)
    assert "Correct the function, or its annotation" in error.hint


def test_outputs_before_the_mistake_are_delivered() -> None:
    taken: list[Any] = []
    flow = fc.Flow("strict")
    flow.source("numbers").map(At(3).one).inspect(taken.append).sink("out")
    with pytest.raises(OperationError):
        flow.run({"numbers": [1, 2, 3, 4]}, settings=OFF)
    assert taken[:2] == [1, 2]


class Pair(NamedTuple):
    name: str
    count: int


def declared(hint: Any, result: Any) -> Build:
    def function(n: Any) -> Any:
        return result

    function.__annotations__["return"] = hint
    return lambda s: s.map(function)


@pytest.mark.parametrize(
    ("hint", "result"),
    [
        (int, 1.5),
        (int, None),
        (int | None, "1"),
        (list[int], (1,)),
        (Pair, ("a", 1)),
        (None, 1),
        (int, np.float64(1)),
        (str, np.int64(1)),
        (np.ndarray, [1]),
    ],
)
def test_results_are_held_to_the_outer_type(hint: Any, result: Any) -> None:
    assert "declared" in str(mistake(declared(hint, result), [0], **OFF))


@pytest.mark.parametrize(
    ("hint", "result"),
    [
        (float, 1),
        (int, True),
        (int, np.int64(1)),
        (float, np.float32(1)),
        (bool, np.bool_(True)),
        (object, 1),
        (Any, 1),
        ("Nowhere", 1),
        (list[int], ["a"]),  # elements are looked at where a job asks for it
    ],
)
def test_what_fits_or_cannot_be_told_passes(hint: Any, result: Any) -> None:
    assert out(declared(hint, result), [0], **OFF) == [result]


@pytest.mark.parametrize(
    ("hint", "result"),
    [
        (list[int], ["a"]),
        (tuple[str, int], ("a", "b")),
        (tuple[str, int], ("a",)),
        (dict[str, int], {"a": "b"}),
        (Pair, Pair("a", "b")),  # type: ignore[arg-type]
    ],
)
def test_elements_are_held_to_their_types_where_a_job_asks_for_it(hint: Any, result: Any) -> None:
    assert "declared" in str(mistake(declared(hint, result), [0], **TYPES))
    assert out(declared(hint, result), [0], **OFF) == [result]
    assert out(declared(list[hint], [result]), [0], **TYPES) == [[result]], "and not what is in them"


@pytest.mark.parametrize(
    "build",
    [
        lambda s, f: s.map(f),
        lambda s, f: s.flat_map(f),
        lambda s, f: s.filter(f),
        lambda s, f: s.inspect(f),
        lambda s, f: s.branch(f)[0],
        lambda s, f: s.key_by(f).count(),
        lambda s, f: s.key_by(abs).reduce(f),
        lambda s, f: s.key_by(abs).fold(0, f),
        lambda s, f: s.key_by(abs).stateful_map(0, f),
        lambda s, f: s.key_by(abs).group(2, order=f),
    ],
)
def test_a_function_whose_call_only_begins_is_refused(build: Any) -> None:
    async def waits(*_: Any) -> Any:
        return None

    async def gives(*_: Any) -> Any:
        yield None

    class Waits:
        async def __call__(self, *_: Any) -> Any:
            return None

    for function in (waits, gives, partial(waits, 1), Waits()):
        with pytest.raises(GraphError, match="an async function, which is never awaited"):
            build(fc.Flow("strict").source("numbers"), function)


def test_a_generator_is_refused_but_by_flat_map() -> None:
    def counted(n: int) -> Iterator[int]:
        yield from range(n)

    with pytest.raises(GraphError, match=r"is a generator\n.*flat_map"):
        fc.Flow("strict").source("numbers").map(counted)
    assert out(lambda s: s.flat_map(counted), [2, 1]) == [0, 1, 0]


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(lambda n: (m for m in range(n))),
        lambda s: s.map(lambda n: waiting(n)),
        lambda s: s.filter(lambda n: waiting(n)),
        lambda s: s.flat_map(lambda n: [waiting(n)]),
    ],
)
def test_a_result_that_has_only_begun_is_a_mistake(build: Build) -> None:
    assert "which is never awaited or iterated" in str(mistake(build, [1], **OFF))


async def waiting(n: int) -> int:
    return n


# -- what a program hands over ---------------------------------------------------------------------------------------


def given(values: Any, type_: Any, **settings: Any) -> list[Any]:
    flow = fc.Flow("given")
    flow.source("n", type_).sink("out")
    return flow.run({"n": values}, settings=settings)["out"]


@pytest.mark.parametrize("make", [list, iter, tuple])
def test_inputs_of_a_program_are_held_to_the_declared_type(make: Any) -> None:
    with pytest.raises(SourceError, match="it is a str, and the flow declares int") as caught:
        given(make([1, "x", 1.5, None]), int)
    assert (caught.value.position, caught.value.record) == ("value 2 of n", "'x'")
    kept = given(make([1, "x", 2, 1.5, None, 3]), int, **{"source.n.on_error": "skip"})
    assert kept == [1, 2, 3]


def test_inputs_that_fit_pass() -> None:
    assert given([1, True, np.int64(3)], int) == [1, True, 3]
    assert given([1, 1.5], float) == [1, 1.5]
    assert given([1, "x", None], object) == [1, "x", None]
    assert given([[1], ["a"]], list[int]) == [[1], ["a"]]
    assert given(np.arange(3), int) == [0, 1, 2]


# -- arguments -------------------------------------------------------------------------------------------------------


def add(record: dict[str, int]) -> dict[str, int]:
    record["more"] = 1
    return record


def forked(flow: fc.Flow) -> None:
    records = flow.source("numbers")
    records.map(add).sink("changed")
    records.map(dict).sink("as they were")


@pytest.mark.parametrize("workers", [1, 3])
def test_a_function_that_changes_its_argument_is_named(workers: int) -> None:
    flow = fc.Flow("shared")
    forked(flow)
    with pytest.raises(OperationError, match=r"'map:add' failed: mistake in the flow: it has changed its") as caught:
        flow.run({"numbers": [{"n": 1}]}, workers=workers)  # under pytest a run looks by itself
    assert "(add, " in str(caught.value)
    # A plain run looks at the first records, where another branch has the same object.
    with pytest.raises(OperationError, match="it has changed its argument"):
        flow.run({"numbers": [{"n": 1}]}, workers=workers, settings=OFF)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.filter(bool).map(lambda record: record.update(more=1) or record),
        lambda s: s.merge(s.map(lambda record: {})).inspect(lambda record: record.clear()),
    ],
    ids=["behind a filter", "behind a merge"],
)
def test_a_plain_run_looks_wherever_the_object_is_that_of_another_branch(build: Build) -> None:
    flow = fc.Flow("shared")
    left, right = flow.source("numbers", dict).broadcast(2)
    build(left).sink("changed")
    right.sink("kept")
    with pytest.raises(OperationError, match="it has changed its argument"):
        flow.run({"numbers": [{"n": 1}]}, settings=OFF)


def test_a_plain_run_lets_a_function_change_what_it_has_alone() -> None:
    flow = fc.Flow("alone")
    left, right = flow.source("numbers", dict).broadcast(2)
    left.map(dict).map(lambda record: record.update(more=1) or record).sink("changed")
    right.sink("kept")
    flow.source("others", dict).map(lambda record: record.update(more=1) or record).sink("alone")
    outputs = flow.run({"numbers": [{"n": 1}], "others": [{"n": 2}]}, settings=OFF)
    assert outputs == {"changed": [{"n": 1, "more": 1}], "kept": [{"n": 1}], "alone": [{"n": 2, "more": 1}]}


def changes_state(state: tuple[list[int], ...], n: int) -> tuple[list[int], ...]:
    state[0].append(n)
    return state


def changes_late(record: list[int]) -> Iterator[int]:
    yield 1
    record.clear()


@pytest.mark.parametrize(
    ("build", "record"),
    [
        (lambda s: s.map(lambda r: r.append(1)), [0]),
        (lambda s: s.flat_map(changes_late), [0]),
        (lambda s: s.filter(lambda r: r.pop()), [0]),
        (lambda s: s.inspect(lambda r: r.clear()), [0]),
        (lambda s: s.key_by(lambda r: r.append(1) or 0).count(), [0]),
        (lambda s: s.key_by(lambda r: 0).fold(([],), changes_state), 1),
        (lambda s: s.key_by(lambda r: 0).reduce(lambda a, b: a.append(1) or a), [0]),
        (lambda s: s.key_by(lambda r: 0).group(2, order=lambda r: r.append(1) or 0), [0]),
        (lambda s: s.merge(*s.branch(lambda r: r.append(1))), [0]),
    ],
)
def test_every_operation_is_looked_at(build: Build, record: Any) -> None:
    flow = fc.Flow("changing")
    build(flow.source("numbers")).sink("out")
    with pytest.raises(OperationError, match="it has changed its argument"):
        flow.run({"numbers": [record, record]}, settings={"job.check_types": False})


def test_what_cannot_be_told_passes() -> None:
    record = [lambda: 0]  # nothing can be written of it
    assert out(lambda s: s.map(len), [record]) == [1]


class Handle:
    """A class without a codec."""


class Opened(NamedTuple):
    name: str
    handle: Any


def opened(n: int) -> Opened:
    return Opened("a", Handle() if n >= 0 else None)


def reopened(before: Opened, n: int) -> Opened:
    return opened(n)


def opened_twice(n: int) -> list[Opened]:
    return [Opened("a", None), Opened("b", Handle())][n % 2 :]


STORED = {"state.use": "memory", "job.guarantee": "at_least_once"}
SENT = {"transport.inproc.serialise": True}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("checks", [{}, OFF], ids=["checked", "not checked"])
@pytest.mark.parametrize(
    ("build", "settings", "what"),
    [
        (lambda s: s.map(opened).key_by(lambda one: one.name).group(2), STORED, "its result has to be encoded"),
        (lambda s: s.map(opened).key_by(lambda one: one.name).group(2), SENT, "its result has to be encoded"),
        (lambda s: s.flat_map(opened_twice).filter(bool).key_by(str).group(2), STORED, "its result has"),
        (lambda s: s.map(opened).rebalance().map(str), SENT, "its result has to be encoded"),
        (lambda s: s.key_by(lambda n: 0).fold(Opened("", None), reopened), STORED, "its new state has to be"),
    ],
    ids=["group with state", "group sent", "behind a filter", "dealt out", "fold with state"],
)
def test_a_value_without_a_codec_is_told_of_at_the_first_record(
    build: Build, settings: dict[str, Any], what: str, checks: dict[str, Any], workers: int
) -> None:
    error = str(mistake(build, [1, 2, 3], workers, **settings, **checks))
    assert what in error
    assert "Handle" in error
    assert "(at" in error
    assert "flow.codec(Handle" in error
    assert "at        value 1 of numbers" in error


@pytest.mark.parametrize("workers", [1, 2])
def test_a_record_without_a_codec_is_told_of(workers: int) -> None:
    error = str(mistake(lambda s: s.key_by(lambda one: one.name).group(2), [opened(1)] * 3, workers, **STORED))
    assert "its record has to be encoded" in error
    assert "at        value 1 of numbers" in error


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("settings", [{}, STORED], ids=["no state", "state"])
def test_values_that_stay_as_they_are_need_no_codec(settings: dict[str, Any], workers: int) -> None:
    def build(numbers: fc.Stream[Any]) -> fc.Stream[Any]:
        return numbers.map(opened).rebalance().key_by(lambda one: one.name).count().map(lambda pair: pair[1])

    assert out(build, [1, 2, 3], workers, **settings) == [1, 2, 3]
