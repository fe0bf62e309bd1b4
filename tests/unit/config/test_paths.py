"""Relative paths of options: their bases, and what keeps its name when the base is another one."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import pytest

import flamecore as fc
from flamecore.abc.config import JobConfig
from flamecore.abc.paths import FilePath
from flamecore.abc.sink import Sink
from flamecore.errors import ConfigError, FlameError
from flamecore.runtime.config import layers
from flamecore.runtime.config.paths import flow_of, path_options, whole_paths
from flamecore.runtime.config.plugins import KINDS, PluginRegistry, override
from flamecore.runtime.config.read import read_config
from flamecore.runtime.launch import make_job

FILE = """schema = 1
[job]
flow = "flows/words.py:flow"
[source.my-lines]
use = "lines"
path = ["in/*.txt", "/data/a.txt", "~/b.txt", "${NAME}/c.txt", "file:/d.txt"]
[sink.counts]
use = "jsonl"
path = "out/counts.jsonl"
[dead_letter]
use = "jsonl"
path = "dead.jsonl"
[state]
use = "directory"
path = "s3://bucket/state"
[transport]
use = "socket"
[transport.socket]
folder = "sockets"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder beside that of the job file, and return the latter."""
    monkeypatch.setenv("HOME", "/home/ann")
    for name in ("jobs", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "jobs"


def whole(file: Path, *settings: str, environ: Mapping[str, str] | None = None) -> JobConfig:
    config = read_config(file, command=layers.from_command(settings), environ={"NAME": "n", **(environ or {})})
    return whole_paths(config, PluginRegistry())


def test_paths_of_a_file_begin_at_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "n")
    (folder / "job.toml").write_text(FILE)
    config = whole(Path("../jobs/job.toml"))
    top = Path.cwd() / "../jobs"
    assert config.source["my-lines"].options["path"] == [
        f"{top}/in/*.txt",
        "/data/a.txt",
        "/home/ann/b.txt",
        f"{top}/${{NAME}}/c.txt",
        "file:/d.txt",
    ]
    assert config.sink["counts"].options["path"] == f"{top}/out/counts.jsonl"
    assert config.dead_letter is not None
    assert config.dead_letter.options["path"] == f"{top}/dead.jsonl"
    assert config.state.options["path"] == "s3://bucket/state"
    assert config.transport.tables["socket"]["folder"] == f"{top}/sockets"
    assert flow_of(config) == f"{top}/flows/words.py:flow"
    assert whole_paths(config, PluginRegistry()) == config


@pytest.mark.parametrize("way", ["command line", "environment"])
def test_other_paths_begin_at_the_working_directory(way: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "n")
    (folder / "job.toml").write_text(FILE)
    said = {
        "source.my-lines.path": "a.txt",
        "sink.counts.path": "b.jsonl",
        "state.path": "state",
        "transport.socket.folder": "c",
        "job.flow": "d.py",
    }
    if way == "environment":
        names = {f"FLAMESTREAM__{key.replace('.', '__').replace('-', '_').upper()}": text for key, text in said.items()}
        config = whole(folder / "job.toml", environ=names)
    else:
        config = whole(folder / "job.toml", *(f"{key}={text}" for key, text in said.items()))
    here = Path.cwd()
    assert config.source["my-lines"].options["path"] == f"{here}/a.txt"
    assert config.sink["counts"].options["path"] == f"{here}/b.jsonl"
    assert config.state.options["path"] == f"{here}/state"
    assert config.transport.tables["socket"]["folder"] == f"{here}/c"
    assert flow_of(config) == f"{here}/d.py"
    assert config.dead_letter is not None
    assert config.dead_letter.options["path"] == f"{folder}/dead.jsonl", "the file alone has said it"


def test_a_table_that_two_drivers_share_is_whole_for_both(folder: Path) -> None:
    """A registry takes the servers and certificates of the transport that has its name."""

    class Registry:
        class Options(msgspec.Struct):
            ca: FilePath = ""

    class Transport:
        Options: ClassVar[Any] = None

    (folder / "job.toml").write_text(
        'schema = 1\n[registry]\nuse = "both"\n[transport.both]\nca = "ca.pem"\n[transport]\nuse = "both"\n'
    )
    with override("registry", "both", Registry), override("transport", "both", Transport):
        config = whole(folder / "job.toml")
    assert config.transport.tables["both"]["ca"] == f"{folder}/ca.pem"


def test_paths_are_found_in_all_forms_of_a_type() -> None:
    class Options(msgspec.Struct):
        plain: FilePath
        none: FilePath | None
        several: tuple[FilePath, ...]
        either: FilePath | list[FilePath]
        by_name: dict[str, FilePath]
        bounded: Annotated[FilePath, msgspec.Meta(min_length=1)]
        text: str
        texts: list[str]

    assert path_options(Options) == {"plain", "none", "several", "either", "by_name", "bounded"}
    assert path_options(None) == frozenset()


_PATHS = re.compile(r"path|folder|file|spool|tls_(ca|certificate|key)")


def test_all_options_of_drivers_that_look_like_paths_are_paths() -> None:
    plugins, looked = PluginRegistry(), 0
    for kind, row in KINDS.items():
        for name in plugins.names(kind) if row.driver else ():
            try:
                options = getattr(plugins.get(kind, name), "Options", None)
            except FlameError:  # its client is not installed
                continue
            fields = msgspec.structs.fields(options) if options is not None else ()
            found = {field.name for field in fields if _PATHS.fullmatch(field.name)}
            assert found <= path_options(options), f"{kind} {name}"
            looked += len(found)
    assert looked > 10


# -- jobs -------------------------------------------------------------------------------------------------------------

JOB = """schema = 1
[source.lines]
use = "lines"
path = {path!r}
[sink.out]
use = "jsonl"
path = {out!r}
[state]
use = "sqlite"
path = {state!r}
"""


def flow() -> fc.Flow:
    made = fc.Flow("names")
    made.source("lines", str).map(str.upper).sink("out")
    return made


def run(file: Path | None, *settings: str) -> None:
    config = read_config(file, command=layers.from_command(settings), environ={})
    asyncio.run(make_job(config, flow()).run())


def write(file: Path, path: str, out: str = "out.jsonl", state: str = "state") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(JOB.format(path=path, out=out, state=state))
    return file


def test_a_job_goes_on_from_any_directory_and_where_its_folder_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write(tmp_path / "one" / "job.toml", "in/*.txt")
    (job.parent / "in").mkdir()
    for number, place in enumerate((job.parent, tmp_path, job.parent / "in")):
        (job.parent / "in" / f"{number}.txt").write_text(f"line {number}\n")
        monkeypatch.chdir(place)
        run(Path("job.toml") if place == job.parent else job)
    shutil.move(job.parent, tmp_path / "two")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two" / "in" / "3.txt").write_text("line 3\n")
    run(Path("two/job.toml"))
    lines = (tmp_path / "two" / "out.jsonl").read_text().splitlines()
    assert lines == [f'"LINE {number}"' for number in range(4)]


@pytest.mark.parametrize("ended", [True, False], ids=["read to its end", "not read to its end"])
def test_a_state_that_knows_a_file_by_another_path_goes_on(
    ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions took the paths of sources as relative to the working directory, wherever the file was."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a\nb\n" if ended else "a\nfail\n")
    settings = (
        "source.lines.use=lines",
        "source.lines.path=in.txt",
        "sink.out.use=jsonl",
        "sink.out.path=out.jsonl",
        "state.use=sqlite",
        "state.path=state",
    )
    if ended:
        run(None, *settings)
    else:
        failing = fc.Flow("names")
        failing.source("lines", str).map(_fails).sink("out")
        config = read_config(None, command=layers.from_command(settings), environ={})
        with pytest.raises(FlameError):
            asyncio.run(make_job(config, failing).run())
    with (tmp_path / "in.txt").open("a") as file:
        file.write("c\n")
    job = write(tmp_path / "jobs" / "job.toml", "../in.txt", "../out.jsonl", "../state")
    for _ in range(1 if ended else 2):  # a run that has not finished is finished first
        run(job)
    assert (tmp_path / "out.jsonl").read_text().split() == ['"A"', '"B"' if ended else '"FAIL"', '"C"']


def _fails(line: str) -> str:
    if line == "fail":
        raise ValueError(line)
    return line.upper()


def test_a_job_whose_state_is_at_the_former_base_does_not_begin_anew(folder: Path) -> None:
    file = write(folder / "job.toml", "in.txt")
    (folder / "in.txt").write_text("a\n")
    run(file)
    with pytest.raises(ConfigError, match=r"where nothing is, and the job's folder has") as caught:
        run(file, "state.path=state")
    assert f"--set state.path={folder / 'state'}" in caught.value.hint
    run(file, f"state.path={folder / 'state'}")


def test_a_folder_with_brackets_in_its_name_is_no_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = write(tmp_path / "[job]" / "job.toml", "in/*.txt")
    (job.parent / "in").mkdir()
    (job.parent / "in" / "a.txt").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    run(job)
    assert (job.parent / "out.jsonl").read_text() == '"A"\n'


def test_the_output_of_a_job_is_beside_its_file(folder: Path) -> None:
    assert issubclass(PluginRegistry().get("sink", "jsonl"), Sink)
    file = write(folder / "job.toml", "in.txt")
    (folder / "in.txt").write_text("a\n")
    run(file)
    assert (folder / "out.jsonl").is_file()
    assert list(Path().iterdir()) == []
