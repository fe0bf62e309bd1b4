"""Checksums beside an output: valid after any crash, and detecting damage."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flamecore.abc.sink import Damage, Verified
from flamecore.abc.source import EdgeContext
from flamecore.errors import SinkError
from flamestream_edges import checksums
from flamestream_edges.checksums import PIECE_BYTES, recorded
from flamestream_edges.csv import CsvSink
from flamestream_edges.files import LineOptions
from flamestream_edges.jsonl import JsonlSink
from flamestream_edges.lines import Lines
from flamestream_edges.outfile import FileSinkOptions

WRONG = "they are not those that were written"


def sink(path: Path, mode: Any = "resume", sync: Any = "close") -> JsonlSink:
    return JsonlSink(FileSinkOptions(path=str(path), mode=mode, sync=sync), EdgeContext("out", fingerprint="f"))


def beside(path: Path) -> Path:
    return path.with_name(path.name + checksums.SUFFIX)


def written(path: Path, *batches: Any, mode: Any = "resume", synced: bool = True) -> None:
    """Write batches, each made durable if `synced`; close the file."""

    async def run() -> None:
        target = sink(path, mode)
        time = await target.open()
        for number, batch in enumerate(batches, 1):
            await target.write(max(time, 0) + number, [batch])
            if synced:
                await target.sync(max(time, 0) + number)
        await target.aclose()

    asyncio.run(run())


def verdict(path: Path) -> Verified:
    found = sink(path).verify()
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_an_output_that_was_left_alone_is_whole(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out"
    driver: Any = {"jsonl": JsonlSink, "csv": CsvSink}[kind]
    target = driver(driver.Options(path=str(path)), EdgeContext("out", type=dict[str, int], fingerprint="f"))

    async def run() -> None:
        await target.open()
        for number in range(100):
            await target.write(number, [{"number": number}])
        await target.aclose()

    asyncio.run(run())
    size = path.stat().st_size
    assert verdict(path) == Verified(str(path), size, size, [])


def test_a_flipped_bit_is_found_in_its_piece(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written(path, "first", "second", "third")
    whole = path.read_bytes()
    ends = [line.end for line in recorded(beside(path)).pieces]  # type: ignore[union-attr]  # it is there
    assert ends == [8, 17, 25]
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        start = max([end for end in ends if end <= place], default=0)
        end = min(end for end in ends if end > place)
        assert verdict(path).damages == [Damage(start, end, WRONG)]
    path.write_bytes(b"#" * len(whole))
    assert verdict(path).damages == [Damage(0, len(whole), WRONG)], "what is side by side is one damage"


def test_long_outputs_have_pieces_of_their_own_without_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written(path, *(str(number) * 300_000 for number in range(10)), synced=False)
    pieces = recorded(beside(path)).pieces  # type: ignore[union-attr]  # it is there
    assert len(pieces) == 3
    assert all(PIECE_BYTES <= piece.end - piece.start < PIECE_BYTES + 300_003 for piece in pieces[:-1])
    data = bytearray(path.read_bytes())
    data[1_500_000] ^= 4
    path.write_bytes(data)
    assert verdict(path).damages == [Damage(pieces[1].start, pieces[1].end, WRONG)]


def test_what_is_missing_or_added_is_found(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written(path, "first", "second")
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert verdict(path).damages == [Damage(14, 17, "they are missing: the file was cut short")]
    path.write_bytes(whole + b'"more"\n')
    (damage,) = verdict(path).damages
    assert (damage.start, damage.end) == (17, 24)
    assert "added by others" in damage.what
    path.unlink()
    assert verdict(path).damages == [Damage(0, 17, "they are missing: the file was cut short")]


@pytest.mark.parametrize("change", ["edited", "left out", "swapped", "no number"])
def test_checksums_that_were_changed_are_found(tmp_path: Path, change: str) -> None:
    path = tmp_path / "out.jsonl"
    written(path, "first", "second", "third")
    lines = beside(path).read_text().splitlines(keepends=True)
    changed = {
        "edited": [lines[0], lines[1].replace(" ", " 1", 1), lines[2]],
        "left out": [lines[0], lines[2]],
        "swapped": [lines[0], lines[2], lines[1]],
        "no number": [lines[0], "x y z\n", lines[2]],
    }[change]
    beside(path).write_text("".join(changed))
    assert verdict(path).damages == [Damage(8, 25, "out.jsonl.checksums is damaged where it speaks of them")]


def test_an_output_without_checksums_is_not_covered_and_what_is_added_to_it_is(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written(path, "first", "second")
    beside(path).unlink()
    assert verdict(path) == Verified(str(path), 17, 0, ())
    written(path, "third")
    assert verdict(path) == Verified(str(path), 25, 8, [])
    path.write_bytes(path.read_bytes().replace(b"third", b"THIRD"))
    assert verdict(path).damages == [Damage(17, 25, WRONG)]


def test_an_output_that_is_appended_to_keeps_its_checksums(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written(path, "first", mode="append")
    written(path, "second", mode="append")
    assert verdict(path) == Verified(str(path), 17, 17, [])
    path.write_bytes(path.read_bytes().replace(b"f", b"F"))
    written(path, "third", mode="append")
    assert verdict(path).damages == [Damage(0, 8, WRONG)], "going on does not make it good"
    written(path, "anew", mode="replace")
    assert verdict(path) == Verified(str(path), 7, 7, [])


def test_an_output_without_a_position_file_is_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written(path, "first", "second")
    path.with_name("out.jsonl.position").unlink()
    assert verdict(path) == Verified(str(path), 17, 17, [])


def test_sources_do_not_read_checksums(tmp_path: Path) -> None:
    written(tmp_path / "out.jsonl", "first")
    assert Lines(LineOptions(path=str(tmp_path)), EdgeContext("in", str)).partitions() == (str(tmp_path / "out.jsonl"),)


def test_an_output_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written(path, "first")
    beside(path).unlink()
    beside(path).mkdir()
    with pytest.raises(SinkError, match="cannot be read"):
        verdict(path)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 40)), st.tuples(st.sampled_from(["sync", "kill", "off", "end"]))
    ),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.data())
def test_checksums_hold_whatever_the_job_goes_through(tmp_path: Path, steps: list[Any], data: st.DataObject) -> None:
    """Steps are batches, commits, kills, machines that lose data, and ends."""
    place = tmp_path / "now"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    path = place / "out.jsonl"
    disk: dict[str, bytes] = {}

    def kept() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in place.iterdir()}

    async def run() -> None:
        target = sink(path)
        time = max(await target.open(), 0)
        disk.update(kept())
        for step in steps:
            if step[0] == "write":
                time += 1
                await target.write(time, ["x" * step[1]])
            elif step[0] == "sync":
                await target.sync(time)
                disk.update(kept())
            elif step[0] == "end":
                await target.aclose()
                disk.update(kept())
            if step[0] in ("kill", "off"):
                target.release()  # as the end of a process does: nothing is forced to the disk
            if step[0] == "off":  # each file is as it was forced to the disk, or as it was left
                for name, bytes_ in disk.items():
                    if name != "out.jsonl.checksums" or data.draw(st.booleans()):
                        (place / name).write_bytes(bytes_)
            if step[0] in ("kill", "off", "end"):
                target = sink(path)
                time = max(await target.open(), 0)
                disk.update(kept())
            found = target.verify()
            assert (found.damages, found.covered) == ([], found.size)
        await target.aclose()

    asyncio.run(run())
    size = path.stat().st_size
    assert verdict(path) == Verified(str(path), size, size, [])
    if size:
        whole, spot = bytearray(path.read_bytes()), data.draw(st.integers(0, size - 1))
        whole[spot] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(whole)
        (damage,) = verdict(path).damages
        assert damage.start <= spot < damage.end
