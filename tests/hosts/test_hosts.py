"""Jobs on several hosts: the pages of docs/how-to are worked through, on machines that are network namespaces.

A block whose first line is a comment with a file's name becomes that file, on every machine; the table of certificates
is copied as it says; in a console block each command runs on the machine before its `$`, and prints what stands below
it (`...` is any text). `&` starts a command, `wait` waits for those of the machine, which must end well.
"""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from flamecore.testing.progress import Patience

if TYPE_CHECKING:
    from tests.hosts.conftest import Command, Machines

pytestmark = [pytest.mark.usefixtures("installed"), pytest.mark.grpc, pytest.mark.nats]

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w/@.-]+\.\w+|Dockerfile)\n")
PROMPT = re.compile(r"^(node1|node2|node3|laptop|)\$ ", re.MULTILINE)
LINES = 1_500


def page(name: str) -> str:
    return (PAGES / name).read_text("utf-8")


def section(title: str) -> str:
    """Return a section of the page of several hosts."""
    parts = re.split(r"^## (.*)\n", page("several-hosts.md"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def blocks(name: str) -> dict[str, str]:
    """Return the blocks of a page that are files, by name."""
    return {named[1]: text for _, text in BLOCK.findall(page(name)) if (named := FILE_NAME.match(text))}


class Reader:
    """Works through sections of the page."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.exports: dict[str, list[str]] = {}
        self.started: dict[str, list[tuple[str, Command]]] = {}
        for number, name in enumerate(("one.txt", "two.txt")):
            self.write(name, words(number))

    def write(self, name: str, text: str) -> None:
        for machine in self.machines.names:
            path = self.machines.files(machine) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")

    def work_through(self, text: str) -> None:
        """Do what a section says."""
        for kind, source in BLOCK.findall(text):
            if named := FILE_NAME.match(source):
                self.write(named[1], source)
            elif kind == "console":
                _, *parts = PROMPT.split(source)
                for machine, step in zip(parts[::2], parts[1::2], strict=True):
                    # A command goes on in the next line after a backslash.
                    command, wanted = re.match(r"((?:.*\\\n)*.*)\n?((?:.*\n?)*)", step).groups()  # type: ignore[union-attr]
                    self.do(machine or "laptop", command, wanted)

    def do(self, machine: str, command: str, wanted: str) -> None:
        """Run one command of the page."""
        if command.startswith("export "):
            self.exports.setdefault(machine, []).append(command)
        elif command == "wait":
            for text, started in self.started.pop(machine):
                if not text.startswith("nats-server"):
                    started.wait()
        elif command.endswith(" &"):
            started = self.machines.start(machine, self.whole(machine, f"exec {command[:-2]}"))
            self.started.setdefault(machine, []).append((command, started))
        elif command.startswith("flamestream status "):
            self.look(machine, command, wanted)
        else:
            difference = self.differs(command, self.machines.run(machine, self.whole(machine, command)), wanted)
            assert not difference, difference

    def whole(self, machine: str, command: str) -> str:
        return "; ".join([*self.exports.get(machine, ()), command])

    def look(self, machine: str, command: str, wanted: str) -> None:
        """Ask until everybody has joined: at first nothing listens."""
        limit = Patience(30)
        asked = self.whole(machine, command)
        while difference := self.differs(command, self.machines.run(machine, asked, code=None), wanted):
            assert not limit.passed(), difference

    def differs(self, command: str, found: str, wanted: str) -> str:
        """Return how an output differs from the page's; empty if it does not."""
        found = re.sub(r"[ \t]+$", "", found, flags=re.MULTILINE)
        same = doctest.OutputChecker().check_output(wanted, found, doctest.ELLIPSIS)
        return "" if same else f"{command}\nprints\n{found}\nand the page says\n{wanted}"

    def copy_certificates(self, text: str, machines: Sequence[str] = ()) -> None:
        """Copy certificates as the table says, to some machines or all."""
        rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", text, re.MULTILINE)
        assert [row[0] for row in rows] == list(self.machines.names)
        for machine, sources, targets in rows:
            if machines and machine not in machines:
                continue
            folder = self.machines.files(machine) / "certs"
            folder.mkdir()
            names = (re.findall("`(.*?)`", cell) for cell in (sources, targets))
            for source, target in zip(*names, strict=True):
                shutil.copy(self.machines.files("node1") / "authority" / source, folder / target)


def words(seed: int) -> str:
    random = Random(seed)
    return "\n".join(" ".join(random.choices("abcdefgh", k=3)) for _ in range(LINES)) + "\n"


@pytest.fixture
def reader(machines: Machines) -> Reader:
    pytest.importorskip("cryptography", reason="the extra `certs` is not installed")
    # Few records on their way at a time: the job takes long enough to be looked at.
    machines.environ["FLAMESTREAM__JOB__MAX_IN_FLIGHT"] = "4"
    made = Reader(machines)
    text = section("The same folder everywhere")
    before, table, after = text.partition("Each host gets")
    made.work_through(before)
    made.copy_certificates(table + after)
    made.work_through(after)
    return made


def delivered(machines: Machines, machine: str) -> str:
    return (machines.files(machine) / "counts.jsonl").read_text("utf-8")


def wait_for_output(machines: Machines) -> None:
    out = machines.files("node1") / "counts.jsonl"
    limit = Patience(30)
    while not (out.exists() and out.stat().st_size):
        assert not limit.passed(), "nothing is delivered"
        time.sleep(0.05)


def run_embedded(machines: Machines) -> str:
    """Return the outputs of the job in one process."""
    machines.environ.pop("FLAMESTREAM__JOB__MAX_IN_FLIGHT", None)
    machines.run("laptop", "flamestream run job.toml --set transport.use=inproc --set deploy.start=local --quiet")
    return delivered(machines, "laptop")


def test_the_page_runs_a_job_over_grpc(machines: Machines, reader: Reader) -> None:
    reader.work_through(section("Over gRPC"))
    assert delivered(machines, "node1") == run_embedded(machines)


def test_the_page_runs_a_job_over_nats(machines: Machines, reader: Reader) -> None:
    reader.work_through(section("Over NATS"))
    assert delivered(machines, "node1") == run_embedded(machines)


def test_the_page_runs_a_job_over_grpc_found_in_a_registry(machines: Machines, reader: Reader) -> None:
    reader.work_through(section("A registry, to find a job on any host"))
    assert delivered(machines, "node1") == run_embedded(machines)


def test_the_page_of_several_processes_runs_on_one_host(machines: Machines) -> None:
    Reader(machines).work_through(page("several-processes.md"))


def lose_a_host(machines: Machines, reader: Reader, title: str, **options: str) -> None:
    """Start what a section starts, cut one host from the network, and see how everybody ends."""
    machines.environ |= {f"FLAMESTREAM__TRANSPORT__{key}": value for key, value in options.items()}
    text = section(title).partition("laptop$ flamestream status")[0] + "```\n"
    reader.work_through(re.sub(r"(node1\$ flamestream check).*?(?=^```$)", "", text, flags=re.MULTILINE | re.DOTALL))
    wait_for_output(machines)
    machines.cut("node3")
    everybody = [(text, started) for all_ in reader.started.values() for text, started in all_]
    (supervisor,) = (started for text, started in everybody if text.startswith("flamestream run "))
    said = supervisor.wait(30, code=1)
    assert "w3" in said.partition("\n")[0]
    assert "lost" in said
    for text, started in everybody:
        if text.startswith("flamestream "):
            ending = started.wait(30, code=None)  # 1 for who has noticed it, 0 for who was told that the job is over
            assert "Traceback" not in ending


def test_a_host_that_is_cut_off_ends_the_job_over_grpc(machines: Machines, reader: Reader) -> None:
    lose_a_host(machines, reader, "Over gRPC", GRPC__KEEPALIVE_S="1")


def test_a_host_that_is_cut_off_ends_the_job_over_nats(machines: Machines, reader: Reader) -> None:
    lose_a_host(machines, reader, "Over NATS", NATS__SILENCE_TIMEOUT_S="1", NATS__SEND_TIMEOUT_S="2")


BUSY = """
import ctypes
from pathlib import Path

import flamecore as fc


def split(line: str) -> list[str]:
    if Path("busy").exists():  # on one host
        Path("busy").rename("begun")
        ctypes.PyDLL(None).sleep(3)  # keeps the interpreter
        Path("over").touch()
    return line.split()


flow = fc.Flow("word-count")
lines = flow.source("lines", str).rebalance()
lines.flat_map(split).key_by(lambda word: word).count().sink("counts")
"""
LIMITS = {
    "DEPLOY__SILENCE_TIMEOUT_S": "1",
    "TRANSPORT__GRPC__KEEPALIVE_S": "1",
    "TRANSPORT__GRPC__SEND_TIMEOUT_S": "1",
    "TRANSPORT__NATS__SILENCE_TIMEOUT_S": "1",
    "TRANSPORT__NATS__SEND_TIMEOUT_S": "1",
}
"""Limits of silence that the call passes."""


def be_busy(machines: Machines, reader: Reader, title: str) -> tuple[Command, list[Command]]:
    """Start what a section starts, and wait until the worker on one host is in a call of 3 s.

    Returns:
        The supervisor, and the others.
    """
    machines.environ |= {f"FLAMESTREAM__{key}": value for key, value in LIMITS.items()}
    reader.write("word_count.py", BUSY)
    (machines.files("node3") / "busy").touch()
    text = section(title).partition("laptop$ flamestream status")[0] + "```\n"
    reader.work_through(re.sub(r"(node1\$ flamestream check).*?(?=^```$)", "", text, flags=re.MULTILINE | re.DOTALL))
    everybody = [each for all_ in reader.started.values() for each in all_ if each[0].startswith("flamestream ")]
    (supervisor,) = (started for text, started in everybody if text.startswith("flamestream run "))
    limit = Patience(60)
    while not (machines.files("node3") / "begun").exists():
        assert not limit.passed(), supervisor.said
        time.sleep(0.02)
    assert machines.programs("node3", "watching.watcher")
    return supervisor, [started for _, started in everybody if started is not supervisor]


def wait_for_the_last(machines: Machines) -> None:
    """Wait until no process of the job is left on any machine; that beside a worker ends with it."""
    limit = Patience(30)
    while left := {name: left for name in machines.names if (left := machines.programs(name, "flame"))}:
        assert not limit.passed(), left
        time.sleep(0.05)


@pytest.mark.parametrize("title", ["Over gRPC", "Over NATS"])
def test_a_worker_on_another_host_may_compute_for_long(machines: Machines, reader: Reader, title: str) -> None:
    supervisor, others = be_busy(machines, reader, title)
    for each in (supervisor, *others):
        each.wait()
    assert (machines.files("node3") / "over").exists()
    assert "node=w3 state=running" in supervisor.said
    assert "event=job.faulted" not in supervisor.said
    wait_for_the_last(machines)
    assert delivered(machines, "node1") == run_embedded(machines)


@pytest.mark.parametrize("title", ["Over gRPC", "Over NATS"])
def test_a_host_that_is_cut_off_while_its_worker_computes_is_lost(
    machines: Machines, reader: Reader, title: str
) -> None:
    """Nothing is heard of the process beside the worker either."""
    supervisor, others = be_busy(machines, reader, title)
    machines.cut("node3")
    said = supervisor.wait(30, code=1)
    assert "error: " in said
    assert "w3" in said[said.rindex("error: ") :]
    for each in others:
        assert "Traceback" not in each.wait(30, code=None)
    wait_for_the_last(machines)


def start_all(machines: Machines, reader: Reader, commands: dict[str, tuple[str, str]]) -> dict[str, Command]:
    """Start commands, each on its machine, with the token in the environment."""
    return {
        name: machines.start(machine, reader.whole(machine, f"exec {command}"))
        for name, (machine, command) in commands.items()
    }


def test_units_of_systemd_do_as_the_page_says(machines: Machines, reader: Reader) -> None:
    """The units run the job, and drain it when the supervisor is told to end."""

    def command(unit: str, machine: str, name: str = "") -> tuple[str, str]:
        lines = dict(line.split("=", 1) for line in blocks("systemd.md")[unit].splitlines() if "=" in line)
        assert lines["WorkingDirectory"] == "/srv/words"
        program, _, arguments = lines["ExecStart"].partition(" ")
        assert program == "/srv/words/venv/bin/flamestream"
        return machine, f"flamestream {arguments.replace('%i', name).replace('%H', machine)}"

    machines.environ["FLAMESTREAM__SOURCE__LINES__PATH"] = '["one.txt"]'  # of one front, what was read is a beginning
    started = start_all(
        machines,
        reader,
        {
            "job": command("flamestream-words.service", "node1"),
            "a1": command("flamestream-acker@.service", "node1", "a1"),
            "w2": command("flamestream-worker@.service", "node2", "w2"),
            "w3": command("flamestream-worker@.service", "node3", "w3"),
        },
    )
    wait_for_output(machines)
    started["job"].terminate()
    for each in started.values():
        each.wait()
    part, whole = delivered(machines, "node1"), run_embedded(machines)
    assert 0 < len(part) < len(whole)
    assert whole.startswith(part)


def test_units_of_systemd_are_well_formed(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    there = tmp_path / "flamestream"
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    for name, text in blocks("systemd.md").items():
        if name.endswith(".service"):
            unit = tmp_path / name.replace("@", "@one")
            unit.write_text(text.replace("/srv/words/venv/bin/flamestream", str(there)))
            done = subprocess.run(
                [program, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, "")


def test_commands_of_containers_run_the_job(machines: Machines, reader: Reader) -> None:
    for machine in ("node1", "node2", "node3"):
        shutil.rmtree(machines.files(machine) / "certs")
    machines.run("node1", "rm -r authority; flamestream certs init authority --hosts node1,node2,node3,acker")
    reader.copy_certificates(section("The same folder everywhere"), ("node1", "node2", "node3"))
    (machines.files("node1") / "out").mkdir()
    services = re.findall(
        r"^  (\w+):\n    build: \.\n    command: (?:>-)?((?:.*\n      )*.*)",
        blocks("containers.md")["compose.yaml"],
        re.MULTILINE,
    )
    assert [name for name, _ in services] == ["node1", "acker", "node2", "node3"]
    commands = {name: ("node1" if name == "acker" else name, " ".join(text.split())) for name, text in services}
    for each in start_all(machines, reader, commands).values():
        each.wait()
    found = (machines.files("node1") / "out" / "counts.jsonl").read_text("utf-8")
    assert found == run_embedded(machines)
