"""Jobs on several hosts: docs/how-to/several-hosts.md is worked through, on machines that are network namespaces.

A block whose first line is a comment with a file's name becomes that file, on every machine; the table of certificates
is copied as it says; in a console block each command runs on the machine before its `$`, and prints what stands below
it (`...` is any text). `&` starts a command, `wait` waits for those of the machine, which must end well.
"""

from __future__ import annotations

import doctest
import re
import shutil
import time
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipelines.conftest import Command, Machines

pytestmark = pytest.mark.usefixtures("installed")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "several-hosts.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w/.-]+\.\w+)\n")
PROMPT = re.compile(r"^(node1|node2|node3|laptop)\$ ", re.MULTILINE)
LINES = 1_500


def need(*modules: str) -> None:
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"module {module} is not installed")


def section(title: str) -> str:
    """A section of the page; that before all others if it is empty."""
    parts = re.split(r"^## (.*)\n", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


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
                    command, _, wanted = step.partition("\n")
                    self.do(machine, command, wanted)

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
        """Ask until everybody has joined."""
        end = time.monotonic() + 30
        while difference := self.differs(command, self.machines.run(machine, self.whole(machine, command)), wanted):
            assert time.monotonic() < end, difference

    def differs(self, command: str, found: str, wanted: str) -> str:
        """How a command's output differs from what the page says; empty if it does not."""
        found = re.sub(r"[ \t]+$", "", found, flags=re.MULTILINE)
        same = doctest.OutputChecker().check_output(wanted, found, doctest.ELLIPSIS)
        return "" if same else f"{command}\nprints\n{found}\nand the page says\n{wanted}"

    def copy_certificates(self, text: str) -> None:
        """As the table says."""
        rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", text, re.MULTILINE)
        assert [row[0] for row in rows] == list(self.machines.names)
        for machine, sources, targets in rows:
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
    need("cryptography")
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


def run_embedded(machines: Machines) -> str:
    """What the job gives in one process."""
    machines.environ.clear()
    machines.run("laptop", "flamestream run job.toml --set transport.use=inproc --set deploy.start=local --quiet")
    return delivered(machines, "laptop")


def test_over_grpc(machines: Machines, reader: Reader) -> None:
    need("grpc")
    reader.work_through(section("Over gRPC"))
    assert delivered(machines, "node1") == run_embedded(machines)


def test_over_nats(machines: Machines, reader: Reader) -> None:
    need("nats")
    reader.work_through(section("Over NATS"))
    assert delivered(machines, "node1") == run_embedded(machines)


def lose_a_host(machines: Machines, reader: Reader, title: str, **options: str) -> None:
    """Start what a section starts, cut one host from the network, and see how everybody ends."""
    machines.environ |= {f"FLAMESTREAM__TRANSPORT__{key}": value for key, value in options.items()}
    text = section(title).partition("laptop$ flamestream status")[0] + "```\n"
    reader.work_through(re.sub(r"(node1\$ flamestream check).*?(?=^```$)", "", text, flags=re.MULTILINE | re.DOTALL))
    out = machines.files("node1") / "counts.jsonl"
    end = time.monotonic() + 30
    while not (out.exists() and out.stat().st_size):
        assert time.monotonic() < end, "nothing is delivered"
        time.sleep(0.05)
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
    need("grpc")
    lose_a_host(machines, reader, "Over gRPC", GRPC__KEEPALIVE_S="1")


def test_a_host_that_is_cut_off_ends_the_job_over_nats(machines: Machines, reader: Reader) -> None:
    need("nats")
    lose_a_host(machines, reader, "Over NATS", NATS__SILENCE_TIMEOUT_S="1", NATS__SEND_TIMEOUT_S="2")
