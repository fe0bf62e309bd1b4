"""A small job that keeps state, for tests of what can happen to it: it counts the words of a file, on two processes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

from ephemeral_port_reserve import reserve
from processes import Run

APP = """
    import json
    import os
    import subprocess
    import sys
    import time
    from pathlib import Path

    import flamecore as fc


    def split(line: str) -> list[str]:
        if not Path("hurry").exists():
            time.sleep({pause_s})
        if line.startswith("line-1000 ") and Path("trouble").exists():
            die(**json.loads(Path("trouble").read_text()))
        return line.split()


    def die(code: int, words: str, leaves_child: bool) -> None:
        if leaves_child:
            Path("child").write_text(str(subprocess.Popen(["sleep", "60"]).pid))
        print(words, file=sys.stderr, flush=True)
        os._exit(code)


    flow = fc.Flow("words")
    flow.source("lines", str).rebalance().flat_map(split).key_by(lambda word: word).count().sink("counts")
"""

BUSY = """
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

import flamecore as fc


def asleep():
    time.sleep({long_s})


def in_c():
    ctypes.PyDLL(None).sleep(round({long_s}))  # keeps the interpreter


def stopped():
    subprocess.Popen(["sh", "-c", f"sleep {long_s}; kill -CONT {{os.getpid()}}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def endless():
    if not Path("once").exists():
        Path("once").touch()
        time.sleep(600)


def kept():
    if not Path("once").exists():
        Path("once").touch()
        sum(range(10**18))  # code in C, which keeps the interpreter


def seen(line: str) -> str:
    if line in ("w0", "w40"):
        Path(f"begun-{{line}}").touch()
        {how}()
        with Path("calls").open("a") as file:
            file.write(f"{{line}}\\n")
    return line


flow = fc.Flow("words")
flow.source("lines", str).rebalance().map(seen).key_by(lambda line: line).count().sink("counts")
"""
"""A flow with a function that keeps its worker busy at two of sixty lines, in one of these ways."""

BUSY_START = {
    "import": """
if Path("first").exists():  # the supervisor's import is the first
    Path("late").touch()
    {how}()
Path("first").touch()
""",
    "open": """
from flamestream_edges.lines import Lines


at_once = Lines.open_at


async def open_at(self, partition, position):
    Path("late").touch()
    {how}()
    return await at_once(self, partition, position)


Lines.open_at = open_at
""",
}
"""Ends of a flow that keep its workers busy as they import it, or open what they read."""

LONG_S = 3.0
"""Seconds of one such call."""

SHORT = {
    "deploy__silence_timeout_s": 0.5,
    **{
        f"transport__{transport}__{limit}": 0.5
        for transport in ("socket", "grpc")
        for limit in ("send_timeout_s", "connect_timeout_s")
    },
    "transport__nats__silence_timeout_s": 0.5,
    "transport__nats__send_timeout_s": 0.5,
}
"""Limits of silence that any of these calls passes."""

LIMIT_S = 90.0
TOKEN = "not a secret"


class Words:
    """The job in a folder.

    Args:
        folder: Empty.
        over: Settings that choose a transport.
        lines: How many there are to be read.
        out: The sink's file, which ends with `.db` or `.jsonl`.
        pause_s: How long each line takes.
    """

    def __init__(
        self, folder: Path, over: list[str], lines: int = 2000, out: str = "out.db", pause_s: float = 0.002
    ) -> None:
        self.folder, self.over, self.out = folder, over, folder / out
        self.environ: dict[str, str] = {}
        self.lines = [f"line-{number} w{number % 211} w{number % 7}" for number in range(lines)]
        (folder / "app.py").write_text(dedent(APP).format(pause_s=pause_s))
        (folder / "lines").mkdir()
        self.write("a", self.lines)

    def write(self, name: str, lines: list[str]) -> None:
        """Another file to be read."""
        (self.folder / "lines" / name).write_text("".join(f"{line}\n" for line in lines))

    def be_busy(self, how: str) -> None:
        """Have a function keep its worker at the first of few lines, and in the midst of them, for `LONG_S`.

        The file `calls` has a line for each such call that has ended, and `begun-LINE` is there once one has begun.

        Args:
            how: "asleep", "in_c" or "stopped"; or, for good, but once: "endless" or "kept".
        """
        (self.folder / "app.py").write_text(BUSY.format(long_s=LONG_S, how=how))
        self.lines = [f"w{number}" for number in range(60)]
        self.write("a", self.lines)

    def start_slowly(self, how: str, where: str, long_s: float = LONG_S) -> None:
        """Have each worker be busy for so many seconds as it starts; the file `late` is there once one has begun.

        Args:
            how: As for `be_busy`.
            where: A key of `BUSY_START`.
        """
        self.be_busy(how)
        flow = BUSY.format(long_s=long_s, how="int")
        (self.folder / "app.py").write_text(flow + BUSY_START[where].format(how=how))

    def calls(self) -> list[str]:
        """Return the lines at which a worker was busy, sorted."""
        return sorted((self.folder / "calls").read_text().split())

    def trouble(self, code: int, words: str, *, leaves_child: bool = False) -> None:
        """Make every worker that meets line 1000 die, until the file `trouble` is gone.

        Args:
            code: Exit code.
            words: Its last words.
            leaves_child: A process that it has started outlives it, and has its stderr open. Its pid is in `child`.
        """
        facts = {"code": code, "words": words, "leaves_child": leaves_child}
        (self.folder / "trouble").write_text(json.dumps(facts))

    def finish(self, run: Run) -> int:
        """Remove the delay of lines, and wait for the end of a run.

        Returns:
            Its exit code.
        """
        self.hurry()
        return ended(run)

    def hurry(self) -> None:
        """Remove the delay of lines, which has served its purpose."""
        (self.folder / "hurry").touch()

    def arguments(self, **settings: Any) -> list[str]:
        """Return arguments of `flamestream run`; `__` in a key stands for a dot."""
        chosen = {
            "source.lines.path": "lines",
            "sink.counts.path": self.out,
            "job.guarantee": "exactly_once",
            "state.use": "sqlite",
            "state.path": "state",
            "state.interval_s": 0.1,
            "deploy.start_timeout_s": 60,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        options = [f"--set={setting}" for setting in self.over]
        options += [f"--set={key}={value}" for key, value in chosen.items() if value is not None]
        return ["app.py", "-q", "-w", "2", "--source=lines=lines", f"--sink=counts={self._sink}", *options]

    @property
    def _sink(self) -> str:
        return "sqlite" if self.out.suffix == ".db" else "jsonl"

    def start(self, **settings: Any) -> Run:
        """Run it."""
        return Run(self.folder, self.arguments(**settings), self.environ)

    @contextmanager
    def running(self, **settings: Any) -> Iterator[Run]:
        """Run it, and end it with all its processes if it has not ended by itself."""
        run = self.start(**settings)
        try:
            yield run
        finally:
            run.end()

    def delivered(self) -> int:
        """Return the number of outputs."""
        if self._sink == "jsonl":
            return self.out.read_bytes().count(b"\n") if self.out.exists() else 0
        try:
            with closing(sqlite3.connect(f"file:{self.out}?mode=ro", uri=True)) as database:
                return int(database.execute("SELECT count(*) FROM counts").fetchone()[0])
        except sqlite3.OperationalError:
            return 0

    def outputs(self) -> list[tuple[str, int]]:
        """Return the outputs that the sink holds."""
        if self._sink == "jsonl":
            return [(word, count) for word, count in map(json.loads, self.out.read_text().splitlines())]
        with closing(sqlite3.connect(self.out)) as database:
            return [(word, count) for _, word, count in database.execute("SELECT * FROM counts ORDER BY seq")]

    def stand_still(self, process: subprocess.Popen[bytes]) -> None:
        """Stop a process, but not in the middle of a transaction: nobody else on this host would get past it."""
        while True:
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda: stopped(process.pid))
            if not any(map(locked, self.folder.rglob("*.db"))):
                return
            process.send_signal(signal.SIGCONT)
            time.sleep(0.001)

    def check(self, *more: list[str]) -> None:
        """Hold the output against a plain loop over all lines, and over those of files that came later."""
        assert self.outputs() == self.wanted(*more)

    def wanted(self, *more: list[str]) -> list[tuple[str, int]]:
        """Return the outputs of a plain loop over all lines.

        Lines of files that came later are in `more`.
        """
        counts: Counter[str] = Counter()
        wanted = []
        for word in (word for lines in (self.lines, *more) for line in lines for word in line.split()):
            counts[word] += 1
            wanted.append((word, counts[word]))
        return wanted


def wait_for(condition: Callable[[], Any], run: Run | None = None, limit_s: float = LIMIT_S) -> None:
    """Wait until something is so; it must come to be while the job runs, if that is given."""
    end = time.monotonic() + limit_s
    while not condition():
        assert run is None or run.process.poll() is None, run.said()
        assert time.monotonic() < end, f"it has not happened in time; the log:\n{run.said() if run else ''}"
        time.sleep(0.01)


def ended(run: Run, limit_s: float = LIMIT_S) -> int:
    """Wait for the end of a job. Returns its exit code."""
    run.nodes()
    end = time.monotonic() + limit_s
    while run.process.poll() is None:
        assert time.monotonic() < end, f"the job does not end; its log:\n{run.said()}"
        run.nodes()
        time.sleep(0.02)
    return int(run.process.returncode)


def stopped(pid: int) -> bool:
    """Return whether a process stands still."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def locked(path: Path) -> bool:
    """Return whether another process writes to a database."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        database.execute("ROLLBACK")
    return False


def alive(pid: int) -> bool:
    """Return whether a process is there and not dead."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False


class Joined:
    """Workers that are started by somebody else than their supervisor.

    Args:
        words: The job; it is to be started with `settings`.
    """

    def __init__(self, words: Words) -> None:
        self.words = words
        words.environ["FLAMESTREAM_TOKEN"] = TOKEN
        self.port = reserve()
        self.started: list[subprocess.Popen[bytes]] = []

    @property
    def settings(self) -> dict[str, Any]:
        """Return the supervisor's settings for others to join."""
        chosen: dict[str, Any] = {"deploy__start": "join"}
        if "transport.use=grpc" in self.words.over:
            chosen["transport__grpc__listen"] = f"127.0.0.1:{self.port}"
        return chosen

    def worker(self, name: str) -> subprocess.Popen[bytes]:
        """Start one."""
        folder = self.words.folder
        address, options = self._door
        command = [sys.executable, "-m", "flamecore", "worker", "--join", address, "--job", "words", "--name", name]
        with (folder / f"{name}.log").open("ab") as said:
            process = subprocess.Popen(
                [*command, *options],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, "FLAMESTREAM_TOKEN": TOKEN},
            )
        self.started.append(process)
        return process

    def pair(self, run: Run) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        """Start `w0` and `w1`, all that the job waits for, and wait until they are at work."""
        both = self.worker("w0"), self.worker("w1")
        wait_for(lambda: self.words.delivered() > 100, run)
        return both

    def nodes(self) -> list[str]:
        """Return the names of the nodes of the job, as its status lists them."""
        address, options = self._door
        done = subprocess.run(
            [sys.executable, "-m", "flamecore", "status", address, "--job", "words", "--json", *options],
            env={**os.environ, "FLAMESTREAM_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return sorted(json.loads(done.stdout)["nodes"]) if done.returncode == 0 else []

    def rescale(self, workers: int) -> subprocess.CompletedProcess[str]:
        """Give the job another number of workers."""
        address, options = self._door
        asked = ["rescale", address, "-w", str(workers), "--job", "words", *options]
        return subprocess.run(
            [sys.executable, "-m", "flamecore", *asked],
            env={**os.environ, "FLAMESTREAM_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def watcher(self, worker: subprocess.Popen[bytes]) -> int:
        """Return the id of the process beside a worker."""
        found: list[int] = []

        def look() -> bool:
            for entry in Path("/proc").iterdir():
                try:
                    parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                    program = (entry / "cmdline").read_text()
                except (OSError, IndexError):  # no process, or one that is gone
                    continue
                if parent == str(worker.pid) and "watching.watcher" in program:
                    found.append(int(entry.name))
            return bool(found)

        wait_for(look)
        return found[0]

    @property
    def _door(self) -> tuple[str, list[str]]:
        """Return the address of the job, and the options to join it."""
        over = self.words.over
        if "transport.use=grpc" not in over:
            return where_joined(over), [f"--set={over[-1]}"] if "transport.use=socket" in over else []
        return f"grpc://127.0.0.1:{self.port}", ["--set=transport.grpc.listen=127.0.0.1:0"]

    def said(self, name: str) -> str:
        """Return the log of the workers of that name."""
        return (self.words.folder / f"{name}.log").read_text()

    def end(self) -> None:
        """Kill those that are left."""
        for process in self.started:
            process.kill()
            process.wait()


def where_joined(over: list[str]) -> str:
    """Return the address of a job by the setting that says where it listens, the last one but over gRPC."""
    if "transport.use=socket" in over:
        return f"socket://{over[-1].partition('=')[2]}/supervisor.sock"
    return _server(over)


def _server(over: list[str]) -> str:
    return next(setting for setting in over if setting.startswith("transport.nats.servers=")).split('"')[1]
