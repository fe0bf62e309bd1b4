"""Files of dead letters: which of them are to be read, and the records that they make."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flamecore.abc.source import EdgeContext, Reader, Source, SourceCapabilities
from flamecore.cli import main
from flamecore.cli.letters import LetterFile, LetterSource
from flamecore.errors import ConfigError, SourceError
from flamecore.runtime.config import plugins as registry


class Numbers(Source):
    name = "numbers"
    capabilities = SourceCapabilities(replayable=True, bounded=True)

    async def open(self, partition: str, position: Any = None) -> Reader:
        raise NotImplementedError

    def decode_original(self, original: bytes) -> Any:
        return int(original)


class Bare(Source):
    name = "bare"
    capabilities = SourceCapabilities(replayable=True, bounded=True)

    async def open(self, partition: str, position: Any = None) -> Reader:
        raise NotImplementedError


def letter(record: bytes | None, source: str = "numbers", place: int = 0) -> str:
    texts: dict[str, str | None] = {"original": None, "original_base64": None}
    try:
        texts["original"] = record.decode() if record is not None else None
    except UnicodeDecodeError:
        texts["original_base64"] = base64.b64encode(record or b"").decode()
    return json.dumps({"source": source, "vertex": "map", "position": f"in line {place}", "reason": "", **texts}) + "\n"


def letter_file(tmp_path: Path, *letters: str) -> LetterFile:
    path = tmp_path / "dead.jsonl"
    path.write_text("".join(letters))
    return LetterFile(path)


def records(file: LetterFile, limit: int = 100, after: Any = None, source: type[Source] = Numbers) -> list[Any]:
    """Return what a source makes of the letters: (position, value), or (position, reason, original)."""
    letters = file.find()
    assert letters is not None
    inner = source(None, EdgeContext("numbers"))
    letter_source = LetterSource(inner, letters, beside=False, wanted=True)

    async def read() -> list[Any]:
        found: list[Any] = []
        (partition,) = letter_source.partitions()
        reader = await letter_source.open(partition, after)
        while (batch := await reader.read(limit)) is not None:
            found += zip(batch.positions, batch.values, strict=True)
            found += [(place, reason, reader.original(place)) for place, reason, _ in batch.rejected]
        return sorted(found, key=lambda one: one[0])

    return asyncio.run(read())


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_each_record_comes_once_whatever_the_batches_and_wherever_it_is_gone_on(tmp_path: Path, limit: int) -> None:
    file = letter_file(
        tmp_path,
        letter(b"1", place=1),
        letter(b"7", source="others"),
        letter(b"2", place=2),
        letter(b"2", place=2),  # two operations have failed on it
        letter(None),
        letter(b"2", place=3),
        letter(b"1", place=1),
    )
    found = records(file, limit)
    assert [value for _, value in found] == [1, 2, 2]
    for number, (position, _) in enumerate(found, 1):
        assert records(file, limit, after=position) == found[number:]


def test_what_cannot_be_decoded_is_malformed_with_its_original(tmp_path: Path) -> None:
    file = letter_file(tmp_path, letter(b"one"), letter(b"\xff\x00"))
    assert [original for _, _, original in records(file)] == [b"one", b"\xff\x00"]


def test_a_source_without_originals_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="driver 'bare' cannot read dead letters again"):
        records(letter_file(tmp_path, letter(b"1")), source=Bare)


def test_a_retry_that_was_cut_short_reads_the_same_letters_and_the_next_one_new_ones(tmp_path: Path) -> None:
    file = letter_file(tmp_path, letter(b"1"), letter(b"2"))
    first = file.find()
    assert first is not None
    assert not first.begun
    file.begin(first)
    with open(file.path, "a") as more:
        more.write(letter(b"3"))
    again = file.find()
    assert again is not None
    assert (again.name, again.begun) == (first.name, True)
    file.finish(again)
    assert [value for _, value in records(file)] == [3]
    last = file.find()
    assert last is not None
    assert last.name != first.name
    file.finish(file.begin(last))
    assert file.find() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dead.jsonl", "dead.jsonl.retried"]


@pytest.mark.parametrize("change", ["edited", "cut", "emptied", "deleted"])
def test_a_retry_that_was_cut_short_goes_on_whatever_became_of_the_file(tmp_path: Path, change: str) -> None:
    file = letter_file(tmp_path, letter(b"1"), letter(b"2"))
    first = file.find()
    assert first is not None
    file.begin(first)
    text = file.path.read_text()
    texts = {"edited": text.replace('"1"', '"500"'), "cut": text[: len(text) // 2], "emptied": ""}
    file.path.unlink() if change == "deleted" else file.path.write_text(texts[change])
    assert [value for _, value in records(file)] == [1, 2]
    again = file.find()
    assert again is not None
    assert (again.name, file.has_changed(again)) == (first.name, True)


def test_the_same_letters_are_read_once_more_when_the_mark_is_deleted(tmp_path: Path) -> None:
    file = letter_file(tmp_path, letter(b"1"))
    first = file.find()
    assert first is not None
    file.finish(file.begin(first))
    file.path.with_name("dead.jsonl.retried").unlink()
    again = file.find()
    assert again is not None
    assert again.name != first.name


def test_letters_that_come_into_an_emptied_file_are_new(tmp_path: Path) -> None:
    file = letter_file(tmp_path, letter(b"1"))
    first = file.find()
    assert first is not None
    file.finish(file.begin(first))
    file.path.write_text("")
    assert file.find() is None
    file.path.write_text(letter(b"2"))
    assert [value for _, value in records(file)] == [2]


def test_blank_lines_and_a_missing_last_line_end_do_no_harm(tmp_path: Path) -> None:
    file = letter_file(tmp_path, "\n", letter(b"1"), "  \n", letter(b"2").rstrip())
    assert [value for _, value in records(file)] == [1, 2]


def test_a_copy_that_somebody_has_changed_is_refused(tmp_path: Path) -> None:
    file = letter_file(tmp_path, letter(b"1"))
    first = file.find()
    assert first is not None
    copy = file.begin(first).path
    copy.write_text("")
    with pytest.raises(ConfigError, match=r"dead\.jsonl\.retrying has changed"):
        file.find()


def test_a_file_that_is_edited_while_it_is_copied_is_refused(tmp_path: Path) -> None:
    file = letter_file(tmp_path, letter(b"1"))
    first = file.find()
    assert first is not None
    file.path.write_text(letter(b"2"))
    with pytest.raises(ConfigError, match="is being edited"):
        file.begin(first)


def test_a_letter_that_is_being_written_is_left_for_the_next_time(tmp_path: Path) -> None:
    file = letter_file(tmp_path, letter(b"1"), letter(b"2")[:-5])
    assert [value for _, value in records(file)] == [1]
    assert letter_file(tmp_path, letter(b"1")[:-5]).find() is None
    assert letter_file(tmp_path).find() is None


@pytest.mark.parametrize("change", ["edited", "cut"])
def test_letters_that_changed_after_they_were_read_are_refused(tmp_path: Path, change: str) -> None:
    file = letter_file(tmp_path, letter(b"1"), letter(b"2"))
    letters = file.find()
    assert letters is not None
    file.finish(file.begin(letters))
    text = file.path.read_text()
    file.path.write_text(text.replace('"1"', '"5"') if change == "edited" else text[: len(text) // 2])
    with pytest.raises(ConfigError, match="has changed before byte"):
        file.find()


@pytest.mark.parametrize(
    "line", ["no json\n", "[]\n", '{"source": "numbers"}\n', letter(b"\xff").replace('"/w=="', '"?"')]
)
def test_a_line_that_is_no_letter_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"dead\.jsonl: line 2 is no dead letter"):
        records(letter_file(tmp_path, letter(b"1"), line))


@pytest.mark.parametrize(
    ("mark", "why"),
    [
        (b"", "damaged"),
        (b"{}", "damaged"),
        (b'{"digest":"\xff"}', "damaged"),
        (b'{"schema":2,"start":0,"end":0,"digest":"","done":true}', "of schema 2"),
    ],
)
def test_a_mark_that_cannot_be_read_is_refused(tmp_path: Path, mark: bytes, why: str) -> None:
    file = letter_file(tmp_path, letter(b"1"))
    (tmp_path / "dead.jsonl.retried").write_bytes(mark)
    with pytest.raises(ConfigError, match=why):
        file.find()


def test_a_job_with_state_and_a_source_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Numbers):
        name = "endless"
        capabilities = SourceCapabilities(replayable=True, bounded=False)

    monkeypatch.chdir(tmp_path)
    letter_file(tmp_path, letter(b"1"))
    (tmp_path / "endless_app.py").write_text(
        "import flamecore as fc\nflow = fc.Flow('endless')\nflow.source('numbers', int).sink('out')\n"
    )
    settings = ["source.numbers.use=endless", "state.use=directory", "state.path=state"]
    chosen = [part for setting in settings for part in ("--set", setting)]
    with registry.override("source", "endless", Endless):
        done = CliRunner().invoke(main, ["retry", "dead.jsonl", "--app", "endless_app.py", *chosen])
    assert (done.exit_code, "has no end" in done.output) == (2, True)
    assert not (tmp_path / "dead.jsonl.retried").exists()
