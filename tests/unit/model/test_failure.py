"""Records that fail: the same record in every run, the same outputs before it and none after, told in few lines."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import Batch, EdgeContext, Reader, Rejected, Source, SourceCapabilities
from flamecore.errors import JobError, OperationError, RunawayLoopError, SourceError
from flamecore.model import failure
from flamecore.model.failure import (
    TRACE_CHARACTERS,
    Cause,
    Failure,
    describe,
    ending_error,
    plugin_packages,
    shorten_repr,
    user_traceback,
)
from flamecore.model.meta import GlobalTime
from flamecore.runtime.config import plugins as registry
from flamecore.runtime.tasks.event_loop import ended_by_errors
from flamecore.testing.flows.reference import Failed, interpret

BAD = object()
"""Stands for a malformed record in a script."""


class ScriptReader(Reader):
    """Gives the batches of a script as they are written; positions count all records."""

    def __init__(self, script: Sequence[Sequence[Any]]) -> None:
        self.script = list(script)
        self.next = 0

    async def read(self, limit: int) -> Batch | None:
        if not self.script:
            return None
        records = list(enumerate(self.script.pop(0), self.next))
        self.next += len(records)
        good = [(position, record) for position, record in records if record is not BAD]
        rejected = [Rejected(position, "bad", f"raw {position}") for position, record in records if record is BAD]
        return Batch([record for _, record in good], [position for position, _ in good], rejected)

    def describe(self, position: Any) -> str:
        return f"line {position}"

    def original(self, position: Any) -> bytes:
        return f"line {position} of the script".encode()


class Run:
    """One run of a flow over a script: what the sink and the dead letters got, and the error, if it ended with one."""

    def __init__(self, flow: fc.Flow, script: Sequence[Sequence[Any]], **settings: Any) -> None:
        self.out: list[Any] = []
        self.letters: list[Any] = []
        self.error: fc.FlameError | None = None
        run = self

        class Script(Source):
            name = "script"
            capabilities = SourceCapabilities(replayable=True, bounded=True)

            async def open(self, partition: str, position: Any = None) -> Reader:
                return ScriptReader(script)

        class Taken(Sink):
            name = "taken"

            def __init__(self, options: Any, context: EdgeContext) -> None:
                super().__init__(options, context)
                self.taken = run.letters if context.name == "dead_letter" else run.out

            @property
            def guarantee(self) -> Guarantee:
                return "at_least_once"

            async def write(self, time: int, payloads: Sequence[Any]) -> None:
                self.taken += payloads

        used = {"source.numbers.use": "script", "sink.out.use": "taken"}
        workers, acker = settings.pop("workers", 1), settings.pop("acker", "centralized")
        if "dead_letter" in settings.values():
            used["dead_letter.use"] = "taken"
        with registry.override("source", "script", Script), registry.override("sink", "taken", Taken):
            try:
                self.outputs = flow.run(workers=workers, acker=acker, settings={**used, **settings})
            except fc.FlameError as error:
                self.error = error


def flow(build: Callable[[fc.Stream[Any]], fc.Stream[Any]]) -> fc.Flow:
    made = fc.Flow("failing")
    build(made.source("numbers")).sink("out")
    return made


def check(n: int) -> int:
    if n == 13:
        raise ValueError("unlucky")  # the line that is shown
    return n


def plain(stream: fc.Stream[int]) -> fc.Stream[int]:
    return stream.map(lambda n: n)


def checked(stream: fc.Stream[int]) -> fc.Stream[int]:
    return stream.rebalance().key_by(lambda n: n % 5).map(check, name="check").key_by(lambda n: n % 3).count()  # type: ignore[return-value]


def lines(error: BaseException) -> list[str]:
    return str(error).splitlines()


# -- what is told -----------------------------------------------------------------------------


def test_the_error_shows_record_vertex_key_position_and_the_users_own_line() -> None:
    error = Run(flow(checked), [range(10), [13], range(3)]).error
    assert isinstance(error, OperationError)
    assert (error.vertex, error.record, error.key, error.position) == ("check", "13", "3", "line 10")
    assert isinstance(error.cause, ValueError)
    shown = lines(error)
    assert len(shown) <= 15
    assert shown[0] == "'check' failed: ValueError: unlucky"
    text = str(error)
    for words in (
        "13",
        "key       3",
        "line 10",
        Path(__file__).name,
        "in check",
        "the line that is shown",
        "on_error",
    ):
        assert words in text
    assert "flamecore/operations" not in text, "the engine's own lines are not the user's business"


class BrokenText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


class BrokenRecord:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def recursing(n: int) -> int:
    return recursing(n) + 1


def raising(error: BaseException) -> Callable[[Any], Any]:
    def function(_: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "record", "words"),
    [
        (raising(ValueError("line\n" * 100)), 1, "ValueError: line"),
        (raising(ValueError("x" * 10_000)), 1, "ValueError: xxx"),
        (raising(ValueError()), 1, "ValueError"),
        (raising(BrokenText()), 1, "BrokenText"),
        (raising(StopIteration("early")), 1, "StopIteration"),
        (recursing, 1, "RecursionError"),
        (check, BrokenRecord(), "TypeError"),
        (len, 1, "TypeError"),
        (raising(KeyError("k")), "y" * 10_000, "KeyError: 'k'"),
        (raising(KeyError("k")), "\n" * 50, "KeyError: 'k'"),
    ],
)
def test_any_exception_and_any_record_make_a_short_error(
    function: Callable[[Any], Any], record: Any, words: str
) -> None:
    if function is check:
        function = lambda n: n + 1  # noqa: E731 - not for a record of that kind
    error = Run(flow(lambda stream: stream.map(function, name="strange")), [[record]]).error
    assert isinstance(error, OperationError)
    assert words in str(error)
    assert len(lines(error)) <= 15
    assert max(map(len, lines(error))) < 400
    assert error.vertex == "strange"


@pytest.mark.parametrize(
    ("build", "vertex"),
    [
        (lambda s: s.map(lambda n: 1 // (n - 3), name="op"), "op"),
        (lambda s: s.flat_map(lambda n: n, name="op"), "op"),
        (lambda s: s.filter(lambda n: 1 // (n - 3), name="op"), "op"),
        (lambda s: s.inspect(lambda n: 1 // (n - 3), name="op"), "op"),
        (lambda s: s.branch(lambda n: 1 // (n - 3) > 5, name="op")[1].merge(s.map(lambda n: n)), None),
        (lambda s: s.key_by(lambda n: 1 // (n - 3)).map(lambda n: n, name="op"), "op"),
        (lambda s: s.key_by(lambda n: 1 // (n - 3)).group(2, name="op"), "op"),
        (lambda s: s.key_by(lambda n: [n]).count(name="op"), "op"),
        (lambda s: s.key_by(lambda n: 0).group(2, order=lambda n: 1 // (n - 3), name="op"), "op"),
        (lambda s: s.key_by(lambda n: 0).reduce(lambda a, b: 1 // (b - 3), name="op"), "op"),
        (lambda s: s.key_by(lambda n: 0).fold(0, lambda a, n: 1 // (n - 3), name="op"), "op"),
        (lambda s: s.key_by(lambda n: 0).stateful_map(0, lambda a, n: n, name="op"), "op"),
        (lambda s: s.key_by(lambda n: 0).stateful_map(0, lambda a, n: (a, [1 // (n - 3)]), name="op"), "op"),
    ],
)
def test_every_function_of_a_user_may_fail(build: Callable[[fc.Stream[Any]], fc.Stream[Any]], vertex: str) -> None:
    if vertex is None:
        made = fc.Flow("failing")
        numbers = made.source("numbers")
        first, rest = numbers.branch(lambda n: 1 // (n - 3) > 5, name="op")
        first.merge(rest).sink("out")
    else:
        made = flow(build)
    for workers in (1, 3):
        error = Run(made, [[1, 2, 3, 4]], workers=workers).error
        assert isinstance(error, OperationError)
        assert (error.vertex or "").startswith("op")
        assert error.position.startswith("line")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_key_without_a_lasting_hash_fails_on_one_worker_as_on_several(workers: int) -> None:
    made = flow(lambda stream: stream.key_by(lambda n: object()).count(name="op"))
    error = Run(made, [[1]], workers=workers).error
    assert isinstance(error, OperationError)
    assert (error.vertex, error.position) == ("op", "line 0")
    assert "same in every process" in str(error)


def test_an_endless_loop_is_stopped_and_names_its_item() -> None:
    def body(stream: fc.Stream[int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
        turned = stream.map(lambda n: n, name="turn")
        return turned, turned.filter(lambda n: n < 0)

    error = Run(flow(lambda stream: stream.loop(body, name="ring")), [[7]], **{"job.max_rounds": 10_000}).error
    assert isinstance(error, OperationError)
    assert error.vertex == "ring"
    assert isinstance(error.cause, RunawayLoopError)
    assert "without end" in str(error)
    assert "7" in error.record


@pytest.mark.parametrize("code", [0, 3, "enough"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_that_calls_exit_ends_the_job_and_not_the_program(code: Any, workers: int) -> None:
    def leave(n: int) -> int:
        if n == 2:
            sys.exit(code)
        return n

    with pytest.raises(JobError) as caught:
        flow(lambda stream: stream.map(leave)).run({"numbers": [1, 2, 3]}, workers=workers)
    assert f"sys.exit({code!r})" in caught.value.what
    assert f"{Path(__file__)}:" in caught.value.what
    assert "in leave: sys.exit(code)" in caught.value.what
    assert "\n  given     n = 2\n" in caught.value.what


class Unusual(BaseException):
    pass


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("where", ["map", "key", "state"])
@pytest.mark.parametrize(
    "raised",
    [asyncio.CancelledError(), GeneratorExit(), Unusual("so"), BaseExceptionGroup("two", [Unusual(), GeneratorExit()])],
    ids=repr,
)
def test_a_function_that_raises_no_exception_ends_the_job_with_its_line(
    raised: BaseException, workers: int, where: str
) -> None:
    """The task that reads would end as if it had been told to, or the program with a raw traceback."""

    def give_up(n: int) -> int:
        if n == 2:
            raise raised.with_traceback(None)
        return n

    def count(s: int, n: int) -> tuple[int, list[int]]:
        return s, [give_up(n)]

    flows = {
        "map": flow(lambda stream: stream.map(give_up)),
        "key": flow(lambda stream: stream.key_by(give_up).count()),
        "state": flow(lambda stream: stream.key_by(lambda n: n).stateful_map(0, count)),
    }
    with pytest.raises(JobError, match=f"has raised {type(raised).__name__}") as caught:
        flows[where].run({"numbers": [1, 2, 3]}, workers=workers)
    assert str(raised) in caught.value.what
    assert "in give_up: raise raised" in caught.value.what
    assert f"\n  given     {'s = 0, ' if where == 'state' else ''}n = 2\n" in caught.value.what


def test_a_coroutine_that_is_closed_is_no_mistake() -> None:
    async def wait() -> None:
        with ended_by_errors("the work of a test"):
            await asyncio.sleep(0)

    waiting = wait()
    waiting.send(None)
    waiting.close()


def test_an_interrupt_is_the_mistake_of_a_function_only_where_no_key_is_heard() -> None:
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            ending_error(KeyboardInterrupt(), "the work of a test")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        found = ending_error(KeyboardInterrupt(), "the work of a test")
    finally:
        signal.signal(signal.SIGINT, heard)
    assert isinstance(found, JobError)
    assert "has raised KeyboardInterrupt" in found.what


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_that_calls_exit_ends_the_job_also_where_several_sources_meet(workers: int) -> None:
    """Their records run together, when all of them have been read."""

    def leave(count: int, n: int) -> int:
        if n == 2:
            sys.exit(3)
        return count + 1

    both = fc.Flow("both")
    both.source("a").merge(both.source("b")).key_by(lambda n: 0).fold(0, leave).sink("out")
    with pytest.raises(JobError, match=r"sys\.exit\(3\)"):
        both.run({"a": [1, 2, 3], "b": [4, 5, 6]}, workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_that_calls_exit_ends_the_job_and_not_the_program(workers: int) -> None:
    def numbers() -> Iterator[int]:
        yield 1
        sys.exit(3)

    with pytest.raises(JobError, match=r"sys\.exit\(3\)"):
        flow(lambda stream: stream.map(abs)).run({"numbers": numbers()}, workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_part_without_memory_ends_the_job_and_says_what_it_was_at(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("flamecore.runtime.parts.worker.Worker.flush", full)
    with pytest.raises(JobError, match=r"memory ran out during the work of a \w+Task") as caught:
        flow(lambda stream: stream.map(abs)).run({"numbers": [1, 2, 3]}, workers=workers)
    assert "in full: raise MemoryError" in caught.value.what
    assert caught.value.hint


def test_reprs_and_errors_are_shortened() -> None:
    assert shorten_repr("a\nb") == r"'a\nb'"
    assert len(shorten_repr("x" * 1000)) < 200
    assert "1002 characters" in shorten_repr("x" * 1000)
    assert "repr fails" in shorten_repr(BrokenRecord())
    assert describe(ValueError("one\ntwo")) == "ValueError: one"
    assert describe(ValueError("")) == "ValueError"


def test_a_dead_letter_describes_the_failure() -> None:
    cause = Cause("bad", trace="Traceback")
    failure = Failure("lines", None, "'raw'", None, cause, position="line 3", at=GlobalTime(3, 1), original=b"raw")
    assert failure.letter() == {
        "source": "lines",
        "vertex": None,
        "position": "line 3",
        "reason": "bad",
        "record": "'raw'",
        "original": "raw",
        "original_base64": None,
        "traceback": "Traceback",
    }
    error = failure.raised()
    assert isinstance(error, SourceError)
    assert (error.source, error.position, error.record) == ("lines", "line 3", "'raw'")
    assert len(lines(error)) <= 5


# -- the same in every run --------------------------------------------------------------------

ACKERS = ("centralized", "local", "sharded")


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("acker", ACKERS)
def test_the_same_record_fails_after_the_same_outputs(workers: int, acker: str) -> None:
    random = Random(3)
    records = [random.randrange(13) for _ in range(300)] + [13] + [random.randrange(15) for _ in range(300)]
    made = flow(checked)
    with pytest.raises(Failed) as failed:
        interpret(made.graph(), {"numbers": records})
    batches = [records[start : start + 7] for start in range(0, len(records), 7)]
    run = Run(made, batches, workers=workers, acker=acker)
    assert isinstance(run.error, OperationError)
    assert (run.error.vertex, run.error.record, run.error.position) == ("check", "13", "line 300")
    assert run.out == [output.payload for output in failed.value.outputs["out"]]
    assert len(run.out) == 300, "everything before the record, nothing of it, nothing behind it"


@pytest.mark.parametrize("workers", [1, 3])
def test_outputs_of_the_failing_record_itself_are_not_delivered(workers: int) -> None:
    made = flow(lambda s: s.flat_map(lambda n: [n, n + 1, n + 2]).key_by(lambda n: n).map(check, name="check"))
    run = Run(made, [[1, 5, 11, 20]], workers=workers)
    assert run.out == [1, 2, 3, 5, 6, 7]
    assert run.error is not None


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_of_several_failing_records_is_reported(workers: int) -> None:
    for _ in range(5):
        run = Run(flow(checked), [[1, 2], [13, 3, 13], [13]], workers=workers)
        assert isinstance(run.error, OperationError)
        assert run.error.position == "line 2"


def test_a_failing_record_crosses_between_workers_as_bytes() -> None:
    run = Run(flow(checked), [[1, 2, 13, 4]], workers=3, **{"transport.inproc.serialise": True})
    assert isinstance(run.error, OperationError)
    assert (run.error.vertex, run.error.position) == ("check", "line 2")


def in_a_new_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.close()


@pytest.mark.parametrize(
    "wait",
    [
        asyncio.run,
        lambda coroutine: asyncio.Runner().run(coroutine),
        in_a_new_loop,
        lambda coroutine: asyncio.get_running_loop().run_until_complete(coroutine),
    ],
)
def test_a_function_that_starts_an_event_loop_is_told_how_to_wait(wait: Callable[[Any], None]) -> None:
    async def nothing() -> None:
        return

    def call(n: int) -> None:
        with closing(nothing()) as coroutine:
            wait(coroutine)

    run = Run(flow(lambda stream: stream.map(call)), [[1]])
    assert run.error is not None
    assert "on a loop in a thread of its own" in run.error.hint


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_a_job_may_leave_out_failing_records(on_error: str, workers: int) -> None:
    random = Random(5)
    records = [random.randrange(15) for _ in range(200)]
    made = flow(checked)
    wanted = interpret(made.graph(), {"numbers": records}, skip_failing=True)["out"]
    run = Run(made, [records], workers=workers, **{"job.on_error": on_error})
    assert run.error is None
    assert run.out == [output.payload for output in wanted]
    unlucky = [position for position, n in enumerate(records) if n == 13]
    assert len(unlucky) > 5
    assert run.outputs.stats.failed == len(unlucky)
    assert run.outputs.stats.dead_letters == (len(unlucky) if on_error == "dead_letter" else 0)
    assert run.outputs.stats.items_out == {"out": len(run.out)}, "dead letters are no outputs"
    places = [f"line {position}" for position in unlucky] if on_error == "dead_letter" else []
    assert [letter["position"] for letter in run.letters] == places
    for letter in run.letters:
        assert (letter["vertex"], letter["reason"], letter["record"]) == ("check", "ValueError: unlucky", "13")


@pytest.mark.parametrize("workers", [1, 3])
def test_a_state_is_left_as_it_was_by_an_item_that_fails(workers: int) -> None:
    def add(total: int, n: int) -> int:
        if n == 13:
            raise ValueError
        return total + n

    made = flow(lambda stream: stream.key_by(lambda n: 0).fold(0, add))
    run = Run(made, [[1, 13, 2, 13, 3]], workers=workers, **{"job.on_error": "skip"})
    assert run.out == [(0, 1), (0, 3), (0, 6)]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_dead_letter_has_the_traceback_with_its_causes_and_without_the_engine(workers: int) -> None:
    def look_up(n: int) -> int:
        try:
            return {1: 1}[n]
        except KeyError as error:
            raise ValueError("no such number") from error

    made = flow(lambda stream: stream.rebalance().key_by(lambda n: n).map(look_up))
    settings = {"job.on_error": "dead_letter", "transport.inproc.serialise": True}
    (letter,) = Run(made, [[1, 2]], workers=workers, **settings).letters
    trace = letter["traceback"]
    assert trace.index("KeyError: 2") < trace.index("direct cause") < trace.index("ValueError: no such number")
    assert "return {1: 1}[n]" in trace
    assert str(Path(fc.__file__).parent) not in trace
    assert (letter["source"], letter["original"]) == ("numbers", "line 1 of the script")


def test_a_long_traceback_keeps_its_end() -> None:
    def fail(n: int) -> int:
        raise ValueError("x" * 10_000 + "the end")

    (letter, *_) = Run(flow(lambda stream: stream.map(fail)), [[1]], **LETTERS).letters
    assert len(letter["traceback"]) == TRACE_CHARACTERS
    assert letter["traceback"].endswith("the end\n")


def test_an_original_that_is_no_text_is_kept_as_base64() -> None:
    letter = Failure("lines", None, "", None, Cause("no"), original=b"\xff\x00").letter()
    assert (letter["original"], letter["original_base64"]) == (None, "/wA=")


LETTERS = {"job.on_error": "dead_letter", "job.max_failed": 1.0}

# -- malformed records ------------------------------------------------------------------------

RECORDS = [1, BAD, 2, 3, BAD, BAD, 4, 5, 6, BAD]
SPLITS = [
    [RECORDS],
    [[record] for record in RECORDS],
    [RECORDS[:2], RECORDS[2:5], RECORDS[5:]],
    [RECORDS[:1], RECORDS[1:4], RECORDS[4:9], RECORDS[9:]],
    [RECORDS[:5], RECORDS[5:6], RECORDS[6:]],
]


@pytest.mark.parametrize("script", SPLITS, ids=lambda script: str(list(map(len, script))))
@pytest.mark.parametrize("workers", [1, 2])
class TestMalformedRecords:
    def test_malformed_records_may_be_skipped(self, script: Any, workers: int) -> None:
        run = Run(flow(plain), script, workers=workers, **{"source.numbers.on_error": "skip"})
        assert run.error is None
        assert run.out == [1, 2, 3, 4, 5, 6]
        assert run.outputs.stats.rejected == 4

    def test_malformed_records_may_become_dead_letters(self, script: Any, workers: int) -> None:
        run = Run(flow(plain), script, workers=workers, **{"source.numbers.on_error": "dead_letter"})
        assert run.error is None
        assert run.out == [1, 2, 3, 4, 5, 6]
        assert run.letters == [
            {
                "source": "numbers",
                "vertex": None,
                "position": f"line {position}",
                "reason": "bad",
                "record": f"'raw {position}'",
                "original": f"line {position} of the script",
                "original_base64": None,
                "traceback": "",
            }
            for position in (1, 4, 5, 9)
        ]

    def test_each_record_goes_by_the_policy_for_its_failure(self, script: Any, workers: int) -> None:
        settings = {"source.numbers.on_error": "dead_letter", "job.on_error": "skip"}
        run = Run(flow(lambda stream: stream.map(lambda n: 6 // (n - 3))), script, workers=workers, **settings)
        assert [letter["position"] for letter in run.letters] == [f"line {position}" for position in (1, 4, 5, 9)]
        stats = run.outputs.stats
        assert (stats.items_in, stats.rejected, stats.failed, stats.dead_letters) == (6, 4, 1, 4)
        settings = {"source.numbers.on_error": "skip", "job.on_error": "dead_letter"}
        run = Run(flow(lambda stream: stream.map(lambda n: 6 // (n - 3))), script, workers=workers, **settings)
        assert [letter["position"] for letter in run.letters] == ["line 3"]
        stats = run.outputs.stats
        assert (stats.items_in, stats.rejected, stats.failed, stats.dead_letters) == (6, 4, 1, 1)

    def test_malformed_records_may_end_the_job(self, script: Any, workers: int) -> None:
        run = Run(flow(plain), script, workers=workers)
        assert isinstance(run.error, SourceError)
        assert (run.error.source, run.error.position) == ("numbers", "line 1")
        assert "raw 1" in str(run.error)
        assert run.out == [1]

    def test_malformed_records_and_failing_functions_keep_the_order_of_records(self, script: Any, workers: int) -> None:
        def odd(n: int) -> int:
            if n % 2:
                raise ValueError("odd")
            return n

        policies = {"source.numbers.on_error": "dead_letter", "job.on_error": "dead_letter"}
        made = flow(lambda stream: stream.key_by(lambda n: n).map(odd, name="odd"))
        run = Run(made, script, workers=workers, **policies)
        assert run.out == [2, 4, 6]
        assert [letter["position"] for letter in run.letters] == [f"line {n}" for n in (0, 1, 3, 4, 5, 7, 9)]
        assert [letter["vertex"] for letter in run.letters] == ["odd", None, "odd", None, None, "odd", None]


@pytest.mark.parametrize("policy", ["skip", "dead_letter", "fail"])
def test_times_do_not_depend_on_batches(policy: str) -> None:
    """The time of a record decides where it is merged with those of other fronts."""
    results = set()
    for script in SPLITS:
        made = fc.Flow("merged")
        numbers = made.source("numbers")
        numbers.merge(made.source("others", str)).sink("out")
        settings: dict[str, Any] = {"source.numbers.on_error": policy, "source.others.use": "numbered"}
        run = merged_run(made, script, settings)
        results.add((tuple(run.out), str(run.error)))
    assert len(results) == 1
    ((out, _),) = results
    if policy == "dead_letter":
        assert out == (1, "0", "1", 2, "2", 3, "3", "4", "5", 4, "6", 5, "7", 6, "8", "9")
    elif policy == "skip":
        assert out == (1, "0", 2, "1", 3, "2", 4, "3", 5, "4", 6, "5", "6", "7", "8", "9")
    else:
        assert out == (1, "0")


def merged_run(made: fc.Flow, script: Sequence[Sequence[Any]], settings: dict[str, Any]) -> Run:
    class Numbered(Source):
        name = "numbered"
        capabilities = SourceCapabilities(replayable=True, bounded=True)

        async def open(self, partition: str, position: Any = None) -> Reader:
            return ScriptReader([[str(n) for n in range(10)]])

    with registry.override("source", "numbered", Numbered):
        return Run(made, script, **settings)


OWN_PACKAGE = """
import flamecore as fc


def halves(n: int) -> int:
    return 6 // n


flow = fc.Flow("own")
flow.source("numbers", int).map(halves).sink("out")
"""


def test_a_package_named_as_plugins_are_keeps_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "flamestream_of_my_own"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "flows.py").write_text(OWN_PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    flow = import_module("flamestream_of_my_own.flows").flow
    with pytest.raises(OperationError) as caught:
        flow.run({"numbers": [0]})
    assert f"{package / 'flows.py'}:6 in halves: return 6 // n" in str(caught.value)


def test_plugins_are_known_by_their_entry_points() -> None:
    assert {"flamestream_edges", "flamestream_windows", "flamestream_ackers"} <= plugin_packages()
    assert not {"flamecore", "flamestream_of_my_own", "pytest"} & plugin_packages()


def test_the_traceback_of_a_letter_is_of_its_record_alone() -> None:
    """The engine may try a record while it handles the failure of another."""
    place: dict[str, Any] = {"__name__": "flamecore.made_up"}
    source = "def engine(first, second):\n    try:\n        first()\n    except KeyError:\n        second()\n"
    exec(compile(source, str(Path(failure.__file__).with_name("made_up.py")), "exec"), place)

    def fails() -> None:
        raise KeyError("another record")

    def chained() -> None:
        try:
            raise IndexError("the user's own")
        except IndexError:
            raise ValueError("this record")  # noqa: B904 - as users write it

    with pytest.raises(ValueError, match="this record") as caught:
        place["engine"](fails, chained)
    text = user_traceback(caught.value)
    assert "another record" not in text
    assert "the user's own" in text
    assert "During handling" in text
    assert text.endswith("ValueError: this record\n")
