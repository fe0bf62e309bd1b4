"""Source `stdin` and sink `stdout`, with real processes and real pipes."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError, SourceError
from flamestream_edges.stdio import Stdin, Stdout

ECHO = """
import asyncio, sys
from flamecore.abc.source import EdgeContext
from flamestream_edges.stdio import Stdin, Stdout

async def main():
    source = Stdin(Stdin.Options(), EdgeContext("lines", str))
    sink = Stdout(Stdout.Options(), EdgeContext("out", str))
    await sink.open()
    reader = await source.open("")
    time = 0
    while (batch := await reader.read(100)) is not None:
        time += 1
        bad = [f"rejected {reader.describe(bad.position)}" for bad in batch.rejected]
        await sink.write(time, [*batch.values, *bad])
    await sink.aclose()
    await reader.aclose()

asyncio.run(main())
"""

CONTEXT = EdgeContext("lines", str)


def python(code: str, **how: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, **how)


def test_a_line_is_there_before_the_writer_ends() -> None:
    with python(ECHO, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        for line in (b"first\n", "второй\n".encode(), b"\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line  # the pipe is still open
        process.stdin.write(b"half a ")
        process.stdin.flush()
        process.stdin.write(b"line\nbad \xff\nthe end")
        process.stdin.close()
        assert process.stdout.read().splitlines() == [b"half a line", b"rejected stdin line 5", b"the end"]
        assert process.wait(10) == 0


def test_standard_input_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"line {number}\n" for number in range(20_000)))
    with path.open("rb") as file, python(ECHO, stdin=file, stdout=subprocess.PIPE) as process:
        output, _ = process.communicate()
    assert output == path.read_bytes()


@pytest.mark.parametrize("target", [subprocess.DEVNULL, None])
def test_closed_standard_input_is_the_end(target: Any) -> None:
    if target is None:
        out, into = os.pipe()
        os.close(into)
    else:
        out = os.open(os.devnull, os.O_RDONLY)
    with python(ECHO, stdin=out, stdout=subprocess.PIPE) as process:
        os.close(out)
        assert process.communicate()[0] == b""
    assert process.returncode == 0


def test_standard_input_may_be_a_terminal() -> None:
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")
    ours, theirs = pty.openpty()
    with python(ECHO, stdin=theirs, stdout=subprocess.PIPE) as process:
        os.close(theirs)
        assert process.stdout
        os.write(ours, b"typed\n")
        assert process.stdout.readline() == b"typed\n"
        os.write(ours, b"\x04")  # Ctrl-D
        assert process.wait(10) == 0
    os.close(ours)


def test_a_closed_reader_ends_the_writer_quietly() -> None:
    code = """
import asyncio, sys
from flamecore.errors import SinkError
from flamecore.abc.source import EdgeContext
from flamestream_edges.stdio import Stdout

async def main():
    sink = Stdout(Stdout.Options(), EdgeContext("out", str))
    await sink.open()
    for time in range(100_000):
        await sink.write(time, ["x" * 1000])

try:
    asyncio.run(main())
except SinkError as error:
    print(error, error.reader_gone, file=sys.stderr)
    sys.exit(7)
"""
    with python(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline().startswith(b"xxx")
        process.stdout.close()
        errors = process.stderr.read().decode()
        assert process.wait(20) == 7
    assert errors == "sink 'out': the reader of stdout is gone; nothing more is written True\n"


def test_reading_waits_without_holding_up_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    out, into = os.pipe()

    async def run() -> None:
        reader = await Stdin(Stdin.Options(), CONTEXT).open("")
        reading = asyncio.ensure_future(reader.read(10))
        turns = 0
        while not reading.done():  # this task goes on while the other waits
            await asyncio.sleep(0)
            turns += 1
            if turns == 100:
                os.write(into, b"a\nb\nc")
        batch = reading.result()
        assert batch is not None
        assert batch.values == ["a", "b"]
        assert turns >= 100
        os.close(into)
        batch = await reader.read(10)
        assert batch is not None
        assert (batch.values, list(batch.positions)) == (["c"], [(5, 3)])
        assert await reader.read(10) is None
        await reader.aclose()

    with os.fdopen(out) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        asyncio.run(run())


def test_standard_input_cannot_go_on_from_a_position_or_without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Stdin(Stdin.Options(), CONTEXT)
    with pytest.raises(SourceError, match="cannot go on from a position"):
        asyncio.run(source.open("", (1, 1)))
    for stdin in (io.StringIO("x"), None):
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(SourceError, match="this process has none"):
            asyncio.run(source.open(""))
    with pytest.raises(ConfigError, match="stdin gives str"):
        Stdin(Stdin.Options(), EdgeContext("lines", int))


class Pair(NamedTuple):
    a: int
    b: str


class Measure(float):
    """A float of another class, whose own text is no number, as those of numpy."""

    def __repr__(self) -> str:
        return f"Measure({float(self)})"


@pytest.mark.parametrize(
    ("format", "payload", "line"),
    [
        ("auto", "text", "text"),
        ("auto", ("word", 3), "word 3"),
        ("auto", ("word", ["a"], None, True), 'word ["a"] null true'),
        ("auto", Pair(1, "x"), '{"a":1,"b":"x"}'),
        ("auto", {"a": 1}, '{"a":1}'),
        ("auto", 3.5, "3.5"),
        ("auto", float("inf"), "inf"),
        ("auto", Measure("inf"), "inf"),
        ("auto", (Measure("nan"), Measure(1e22), 1e22), "nan 1e+22 1e+22"),
        ("jsonl", (Measure(1e22), None), "[1e22,null]"),
        ("jsonl", "text", '"text"'),
        ("jsonl", ("word", 3), '["word",3]'),
        ("jsonl", Pair(1, "x"), '{"a":1,"b":"x"}'),
    ],
)
def test_outputs_are_shown_as_lines(capsys: pytest.CaptureFixture[str], format: Any, payload: Any, line: str) -> None:
    asyncio.run(Stdout(Stdout.Options(format=format), EdgeContext("out")).write(1, [payload, payload]))
    assert capsys.readouterr().out == f"{line}\n{line}\n"


def test_an_output_that_cannot_be_shown_is_an_error_and_nothing_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Stdout(Stdout.Options(), EdgeContext("out"))
    with pytest.raises(SinkError, match="a payload of type object cannot be written"):
        asyncio.run(sink.write(1, ["x", object()]))
    assert capsys.readouterr().out == ""
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", ascii_only)
    with pytest.raises(SinkError, match="stdout takes no such text"):
        asyncio.run(sink.write(1, ["x", "ы"]))
    ascii_only.close()
    with pytest.raises(SinkError, match="closed file"):
        asyncio.run(sink.write(1, ["x"]))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to stand for a full disk")
def test_a_full_disk_behind_stdout_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open("/dev/full", "w")  # noqa: SIM115 – closing it fails once more, which is seen to below
    monkeypatch.setattr("sys.stdout", stream)
    with pytest.raises(SinkError, match="No space left"):
        asyncio.run(Stdout(Stdout.Options(), EdgeContext("out")).write(1, ["x"]))
    with pytest.raises(OSError, match="No space left"):
        stream.close()


def test_lines_can_be_encoded_ahead(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Stdout(Stdout.Options(), EdgeContext("out"))
    encode = sink.encoder()
    assert encode is not None
    assert encode(["x", ("a", 1), 2.5]) == ["x\n", "a 1\n", "2.5\n"]
    asyncio.run(sink.write_encoded(1, encode(["x", ("a", 1)])))
    assert capsys.readouterr().out == "x\na 1\n"
    strange = object()
    assert encode(["x", strange]) == ["x\n", strange], "it is refused where it would be written"
    with pytest.raises(SinkError, match="a payload of type object cannot be written"):
        asyncio.run(sink.write_encoded(2, encode(["x", strange])))
    assert capsys.readouterr().out == ""
    assert Stdout(Stdout.Options(format="jsonl"), EdgeContext("out")).encoder() is None


values = st.one_of(st.text(max_size=3), st.integers(), st.floats(), st.booleans(), st.none(), st.just(Pair(1, "%s")))
rows = st.one_of(values, st.tuples(values), st.tuples(values, values), st.just(()))
plain = st.one_of(st.text(max_size=3), st.integers(), st.floats())


@given(
    st.one_of(
        st.lists(rows, max_size=5),
        st.lists(plain, max_size=5),
        st.lists(st.tuples(plain, plain, plain), max_size=5),
        st.lists(st.tuples(), max_size=3),
    )
)
def test_a_line_does_not_depend_on_its_neighbours(payloads: list[Any]) -> None:
    encode = Stdout(Stdout.Options(), EdgeContext("out")).encoder()
    assert encode is not None
    assert encode(payloads) == [line for payload in payloads for line in encode([payload, None])[:1]]


JSON = """
import flamecore as fc
flow = fc.Flow("json")
flow.source("rows", dict).map(lambda row: row["n"]).sink("out")
print(flow.run(settings={"source.rows.use": "stdin", "source.rows.format": "jsonl"})["out"])
"""


def test_standard_input_takes_json_lines() -> None:
    with python(JSON, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        output, _ = process.communicate(b'\xef\xbb\xbf{"n": 1}\n\n{"n": "a b"}')
    assert output == b"[1, 'a b']\n"


def test_records_of_standard_input_are_refused_with_the_option_that_reads_them() -> None:
    with pytest.raises(ConfigError, match="declares dict") as caught:
        Stdin(Stdin.Options(), EdgeContext("rows", dict))
    assert "source.rows.format=jsonl" in str(caught.value)
