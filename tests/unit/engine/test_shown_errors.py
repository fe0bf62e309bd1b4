"""Errors of `flow.run` as a script and a notebook show them: the user's lines, and the outputs that were there."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import ConsistencyError, FlameError, GraphError, OperationError, OrderViolationError
from flamecore.model.failure import shorten

PACKAGE = str(Path(fc.__file__).parent)


def divide(n: int) -> int:
    return 12 // n


def failing() -> tuple[fc.Flow, int]:
    """Return a flow that fails on 0, and the line that declares the operation."""
    flow = fc.Flow("shares")
    flow.source("numbers", int).map(divide, name="share").sink("shares")
    return flow, sys._getframe().f_lineno - 1


def error_of(flow: fc.Flow, **given: Any) -> FlameError:
    with pytest.raises(FlameError) as caught:
        flow.run(given or {"numbers": [3, 0, 4]})
    return caught.value


def frames(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def script(tmp_path: Path, flow: str, run: str) -> Any:
    """Return the `main` of a program of a user."""
    file = tmp_path / "program.py"
    body = f"import json\nimport os\nimport signal\n\nimport flamecore as fc\n\nflow = fc.Flow('program')\n{flow}\n"
    file.write_text(f"{body}\n\ndef main():\n    {run}\n")
    spec = spec_from_file_location("program", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def shown(main: Any) -> list[str]:
    """Return the lines that Python prints for what a program has raised, from its own first frame on."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - Ctrl-C too
        main()
    trace = caught.tb.tb_next  # without the frame of this function
    return "".join(traceback.format_exception(caught.type, caught.value, trace)).splitlines()


NUMBERS = "flow.source('numbers', int)"
WORDS = "flow.source('words', str)"
PROGRAMS = {
    "a map": (
        f"def share(number: int) -> float:\n    return 12 / number\n{NUMBERS}.map(share).sink('out')",
        "flow.run({'numbers': [3, 0, 4]})",
        ["ZeroDivisionError", "record    0", "value 2 of numbers", "declared", "in share: return 12 / number"],
    ),
    "a keyed fold": (
        f"def add(all: int, word: str) -> int:\n    return all + int(word)\n{WORDS}.key_by(len).fold(0, add).sink('o')",
        "flow.run({'words': ['1', 'x']})",
        ["ValueError", "record    'x'", "key       1", "value 2 of words", "in add: return all + int(word)"],
    ),
    "a key that cannot be hashed": (
        f"{NUMBERS}.key_by(lambda number: [number]).count().sink('out')",
        "flow.run({'numbers': [1]})",
        ["a key of type list", "use a tuple", "record    1", "key       [1]", "declared"],
    ),
    "a file that is missing": (
        f"{WORDS}.sink('out')",
        "flow.run(settings={'source.words.use': 'lines', 'source.words.path': 'missing.txt'})",
        ["SourceError", "missing.txt"],
    ),
    "an input that raises": (
        f"def words():\n    yield 'a'\n    yield json.loads('{{')\n{WORDS}.sink('out')",
        "flow.run({'words': words()})",
        ["SourceError", "JSONDecodeError", "in words: yield json.loads('{')"],
    ),
    "a sink that cannot be opened": (
        f"{WORDS}.sink('out')",
        "flow.run({'words': ['a']}, settings={'sink.out.use': 'sqlite', 'sink.out.path': '/dev/null/out.db'})",
        ["SinkError", "/dev/null"],
    ),
    "a graph without a sink": (f"{WORDS}.map(str.upper)", "flow.run({'words': []})", ["GraphError", "has no sink"]),
    "an input that no source has": (
        f"{WORDS}.sink('out')",
        "flow.run({'word': []})",
        ["UnknownKeyError", "Did you mean 'words'?"],
    ),
    "a setting that is misspelt": (
        f"{WORDS}.sink('out')",
        "flow.run({'words': []}, settings={'job.worker': 2})",
        ["UnknownKeyError", "Did you mean"],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_fails_shows_its_own_lines_and_the_text(name: str, tmp_path: Path) -> None:
    flow, run, words = PROGRAMS[name]
    lines = shown(script(tmp_path, flow, run))
    assert len(lines) <= 11, "\n".join(lines)
    assert lines[:3] == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path / "program.py"}", line {len((tmp_path / "program.py").read_text().splitlines())}, in main',
        f"    {run}",
    ]
    for word in words:
        assert any(word in line for line in lines[3:]), "\n".join(lines)
    assert not [line for line in lines if PACKAGE in line or "direct cause" in line]


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        ("flow.source('numbers', int).map(5)", "takes a function, not 5"),
        ("flow.source('numbers', int).key_by(lambda n: n).fold(0, 0)", "takes a function, not 0"),
        ("flow.source('words', str)", "two sources are named 'words'"),
        ("words.sink('out')", "two sinks are named 'out'"),
        ("words.apply(type(words._vertex), colour=1)", "colour"),
        ("flow.codec(str, encode=len)", "str"),
    ],
)
def test_a_flow_that_is_drawn_wrong_shows_the_users_line_alone(draw: str, words: str, tmp_path: Path) -> None:
    lines = shown(script(tmp_path, f"words = {WORDS}\nwords.sink('out')", draw))
    assert lines[2] == f"    {draw}"
    assert any(words in line for line in lines[3:])
    assert len(lines) <= 6, "\n".join(lines)
    assert not [line for line in lines if PACKAGE in line]


def test_the_users_functions_that_draw_are_shown(tmp_path: Path) -> None:
    body = f"words = {WORDS}\ndef body(stream):\n    return stream.map(5), stream"
    text = "\n".join(shown(script(tmp_path, body, "words.loop(body)")))
    assert "in main" in text
    assert "in body\n    return stream.map(5), stream" in text
    assert PACKAGE not in text


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT of Windows is another one")
@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_shows_the_users_lines_alone(times: int, tmp_path: Path) -> None:
    send = "        os.kill(os.getpid(), signal.SIGINT)\n" * times
    stop = f"def stop(number: int) -> int:\n    if number == 7:\n{send}    return number"
    run = "flow.run({'numbers': range(30_000_000)})"
    lines = [
        line for line in shown(script(tmp_path, f"{stop}\n{NUMBERS}.map(stop).sink('out')", run)) if "^^" not in line
    ]
    assert lines[2] == f"    {run}"
    assert lines[-1] == "KeyboardInterrupt"
    assert len(lines) == 2 + 2 * times, "the second one breaks off the function, and shows where"
    assert lines[-3].endswith("in main" if times == 1 else "in stop")


def test_the_users_line_is_shown_where_a_library_that_it_calls_has_raised(tmp_path: Path) -> None:
    flow = f"def parse(word: str) -> dict:\n    return json.loads(word)\n{WORDS}.map(parse).sink('out')"
    lines = shown(script(tmp_path, flow, "flow.run({'words': ['{']})"))
    assert any("in parse: return json.loads(word)" in line for line in lines)
    assert any("decoder.py" in line for line in lines)


def test_the_cause_is_an_attribute_and_not_printed() -> None:
    error = error_of(failing()[0])
    assert isinstance(error.cause, ZeroDivisionError)
    assert traceback.extract_tb(error.cause.__traceback__)[-1].name == "divide"
    assert error.__cause__ is None
    assert frames(error) == [__file__]


def test_an_error_that_is_raised_elsewhere_has_its_cause_as_an_attribute_too() -> None:
    with pytest.raises(GraphError) as caught:
        raise GraphError("no") from ValueError("why")
    assert isinstance(caught.value.cause, ValueError)
    assert GraphError("no").cause is None


def test_an_exception_that_the_program_was_handling_stays_in_print() -> None:
    try:
        raise KeyError("the user's own")
    except KeyError:
        with pytest.raises(GraphError) as caught:
            fc.Flow("empty").run()
    assert "the user's own" in "".join(traceback.format_exception(caught.value))
    assert caught.value.cause is None


def test_the_whole_traceback_is_kept_and_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    error = error_of(failing()[0])
    kept = [frame.filename for frame in traceback.extract_tb(error.full_traceback)]
    assert any(name.endswith("engine/job.py") for name in kept)
    monkeypatch.setenv("FLAMESTREAM_TRACEBACK", "full")
    error = error_of(failing()[0])
    assert any(name.endswith("engine/job.py") for name in frames(error))
    assert error.cause is error.__cause__
    assert error.__cause__ is not None
    assert frames(error.__cause__)[0].startswith(PACKAGE)
    assert any("engine/job.py" in line for line in error._render_traceback_())


def test_the_traceback_of_a_broken_law_stays_whole() -> None:
    with pytest.raises(ConsistencyError) as caught:
        raise OrderViolationError("two items have one order")
    before = caught.value.__traceback__
    shorten(caught.value)
    assert caught.value.__traceback__ is before


def test_a_notebook_shows_the_text_and_the_line_of_the_cell() -> None:
    error = error_of(failing()[0])
    shown = error._render_traceback_()
    assert shown[0] == "OperationError: 'share' failed: ZeroDivisionError: integer division or modulo by zero"
    assert shown[-1].startswith(f"  raised by {__file__}:")
    assert "flow.run(given" in shown[-1]
    assert len(shown) <= 10


def test_an_error_says_where_the_operation_is_declared() -> None:
    flow, line = failing()
    assert f"  declared  {__file__}:{line}\n" in str(error_of(flow))
    chained = fc.Flow("chained")
    (
        chained.source("numbers", int)
        .map(divide)
        .key_by(lambda n: n)
        .count()
        .sink("counts")
    )  # fmt: skip
    place = f"{__file__}:{sys._getframe().f_lineno - 5}"
    assert f"  declared  {place}" in str(error_of(chained))


def test_a_graph_that_cannot_work_says_where_it_is_declared() -> None:
    flow = fc.Flow("nowhere")
    flow.source("numbers", int).map(divide)
    line = sys._getframe().f_lineno - 1
    flow.source("others").sink("out")
    error = error_of(flow)
    assert isinstance(error, GraphError)
    assert error.__notes__ == [f"  declared  {__file__}:{line}"]


KEYS: list[tuple[Any, str]] = [([1], "use a tuple"), ({1}, "use a frozenset"), ({"a": 1}, "use a tuple of its items")]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("key", "advice"), [*KEYS, ((1, [2]), "use a tuple"), (bytearray(b"a"), "use bytes")])
def test_a_key_that_cannot_be_one_says_what_to_use(key: Any, advice: str, workers: int) -> None:
    flow = fc.Flow("keys")
    flow.source("numbers", int).key_by(lambda n: key).count().sink("counts")
    with pytest.raises(OperationError, match=advice) as caught:
        flow.run({"numbers": [1]}, workers=workers)
    assert caught.value.key == repr(key)


def listed(n: int) -> list[int]:
    return [n]


def test_a_key_that_is_declared_to_be_none_is_refused_when_the_flow_is_drawn() -> None:
    flow = fc.Flow("keys")
    numbers = flow.source("numbers", int)
    with pytest.raises(GraphError, match=r"list is mutable.*\n.*Use a tuple"):
        numbers.key_by(listed)


def test_errors_have_the_outputs_so_far() -> None:
    error = error_of(failing()[0])
    assert error.outputs == {"shares": [4]}
    assert error.outputs.stats.items_in >= 2


@pytest.fixture
def interrupted() -> Iterator[None]:
    """Ctrl-C is as it is in a program, whatever has run before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def endless() -> fc.Flow:
    def look(n: int) -> int:
        if n == 5_000:
            os.kill(os.getpid(), signal.SIGINT)
        return n

    flow = fc.Flow("endless")
    flow.source("numbers", int).map(look).sink("out")
    return flow


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT of Windows is another one")
@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("notebook", [False, True])
def test_ctrl_c_keeps_the_outputs_so_far(notebook: bool) -> None:
    async def cell() -> None:
        endless().run({"numbers": itertools.count()})

    def run() -> None:
        if not notebook:
            endless().run({"numbers": itertools.count()})
            return
        loop = asyncio.new_event_loop()  # which runs in this thread, and waits for the cell
        try:
            loop.run_until_complete(cell())
        finally:
            loop.close()

    with pytest.raises(KeyboardInterrupt) as caught:
        run()
    outputs = caught.value.outputs["out"]  # type: ignore[attr-defined]  # an attribute of whatever ends a run
    assert outputs == list(range(len(outputs)))
    assert outputs


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_of_a_notebook_ends_a_run_that_is_only_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = ThreadPoolExecutor.submit

    def submit_and_stop(*arguments: Any) -> Any:
        submit(*arguments)
        raise KeyboardInterrupt

    flow = fc.Flow("long")
    flow.source("numbers", int).sink("out")

    async def cell() -> None:
        flow.run({"numbers": range(30_000_000)})

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_and_stop)
    with pytest.raises(KeyboardInterrupt) as caught:
        asyncio.run(cell())
    outputs = caught.value.outputs["out"]  # type: ignore[attr-defined]  # an attribute of whatever ends a run
    assert len(outputs) < 30_000_000, "it has not gone on to the end"
