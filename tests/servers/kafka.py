"""Start Apache Kafka on loopback, one node: `python tests/servers/kafka.py FOLDER JARS`.

It prints the address of the broker once that answers, and ends it with its own input. FOLDER gets the data, JARS is the
folder where `maven.py` beside it keeps jars. Exit code 3: Maven does not give Kafka, or there is no Java.

Programs that end a broker themselves, or start it again, use the class `Broker`.
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

from ephemeral_port_reserve import reserve
from maven import MISSING, NotFetchedError, fetch

# slf4j has no way to a log without the second one.
JARS: Final = ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
START_S: Final = 120.0
TAIL: Final = 4000
PARTITIONS: Final = 3
"""Number of partitions of a topic that is made by its first record."""

_ANSWER_S: Final = 5.0
_LOOK_S: Final = 0.1
_LOOPBACK: Final = "127.0.0.1"
_OPTIONS: Final = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.apache.logging.log4j.level=WARN",
)
# A broker that is started again is let in once the session of the one before is over.
_SETTINGS: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
log.dirs={folder}/data
num.partitions={partitions}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
"""
# Header of a request: its kind, 18 for "which requests are known"; version; number; no name of a client.
_ASK: Final = struct.pack(">hhih", 18, 0, 1, -1)


class Broker:
    """One node of Kafka, broker and controller at once, with its own process.

    Topics are made by their first record, with `PARTITIONS` partitions.

    Args:
        folder: The folder of its data. A broker that starts where another one was goes on with its topics, and has its
            address, however that one ended.
        jars: The jars of Kafka.

    Attributes:
        address: Its host and port, for clients.
        log: The file with all that its processes say.

    Raises:
        NotFetchedError: There is no Java.
    """

    def __init__(self, folder: Path, jars: Sequence[Path]) -> None:
        java = shutil.which("java")
        if java is None:
            raise NotFetchedError("there is no java on the PATH")
        self._command = [java, *_OPTIONS, "-cp", ":".join(map(str, jars))]
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "log"
        self._settings = folder / "server.properties"
        address = folder / "address"
        if not address.exists():
            port = reserve(_LOOPBACK)
            self._format(folder, port)
            address.write_text(f"{_LOOPBACK}:{port}")
        self.address = address.read_text()

    def _format(self, folder: Path, port: int) -> None:
        """Write the settings, and make the folder of the data."""
        folder.mkdir(parents=True, exist_ok=True)
        text = _SETTINGS.format(
            host=_LOOPBACK, port=port, controller=reserve(_LOOPBACK), folder=folder, partitions=PARTITIONS
        )
        self._settings.write_text(text)
        cluster = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", f"--config={self._settings}"]
        with self.log.open("ab") as log:
            done = subprocess.run([*self._command, *tool], stdout=log, stderr=log, timeout=START_S, check=False)
        if done.returncode:
            raise RuntimeError(self._told("does not make its folder"))

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            RuntimeError: It has ended, or does not answer within `START_S`; with the end of its log.
        """
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "kafka.Kafka", str(self._settings)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        limit = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None:
                raise RuntimeError(self._told(f"has ended with code {self._process.returncode}"))
            if time.monotonic() > limit:
                self.kill()
                raise RuntimeError(self._told(f"does not answer within {START_S:g} s"))
            time.sleep(_LOOK_S)

    def _answers(self) -> bool:
        """Return whether it answers requests, which it does once it has read its data."""
        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _ANSWER_S) as connection:
                connection.sendall(struct.pack(">i", len(_ASK)) + _ASK)
                return len(connection.recv(4)) == 4
        except OSError:
            return False

    def _told(self, what: str) -> str:
        said = self.log.read_text("utf-8", "replace")[-TAIL:]
        return f"Kafka {what}; the end of its log:\n{said}"

    def kill(self) -> None:
        """End its process at once. The records that it has taken stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def main() -> None:
    """Start a broker, and wait for the end of the input."""
    try:
        broker = Broker(Path(sys.argv[1]).resolve(), fetch(Path(sys.argv[2]), JARS))
    except NotFetchedError as error:
        print(error)
        sys.exit(MISSING)
    with broker:
        print(broker.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
