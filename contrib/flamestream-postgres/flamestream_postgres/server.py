"""Real PostgreSQL server for tests: `with Server() as server: ... server.dsn`.

It listens on a socket in a folder of its own.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg

LIMIT_S: Final = 30.0
_USER: Final = "postgres"


class NoServerError(Exception):
    """There is no server to start; the text says what is missing."""


class Server:
    """One server; start and end it as often as you like: it keeps its data.

    Raises:
        NoServerError: Its programs are not there, or it cannot be run by this user.
    """

    def __init__(self) -> None:
        self._programs = _programs()
        self._as: dict[str, Any] = _as_user()
        # Short: the path of a socket has at most some hundred bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """Return the address of the server, for clients."""
        return f"host={self._folder.name} user={_USER} dbname=postgres"

    def __enter__(self) -> Self:
        if self._as:
            shutil.chown(self._folder.name, self._as["user"])
        self._run("initdb", "-D", self._data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGINT)
        self._folder.cleanup()

    @property
    def _data(self) -> str:
        return str(Path(self._folder.name) / "data")

    def start(self) -> None:
        """Start it, and wait until it takes clients."""
        settings = {"listen_addresses": "", "unix_socket_directories": self._folder.name, "fsync": "off"}
        command = [str(self._programs / "postgres"), "-D", self._data]
        for name, value in settings.items():
            command += ("-c", f"{name}={value}")
        log = (Path(self._folder.name) / "log").open("ab")
        with log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._as)
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                psycopg.connect(self.dsn).close()
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    said = (Path(self._folder.name) / "log").read_text()[-2000:]
                    raise NoServerError(f"PostgreSQL does not start: {error}\n{said}") from error
                time.sleep(0.02)
            else:
                return

    def crash(self) -> None:
        """End the server as the loss of its machine would.

        Nothing more is written, and all connections break.
        """
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """End it as an operator would; clients are told."""
        self._end(signal.SIGINT)

    def _end(self, how: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(LIMIT_S)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments], cwd="/", capture_output=True, check=False, **self._as
        )
        if done.returncode:
            raise NoServerError(f"{program} fails: {done.stderr.decode()[-2000:]}")


def _programs() -> Path:
    """Return the folder with the programs of the newest version."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if not folders:
        raise NoServerError("there is no program initdb, on the path or in /usr/lib/postgresql: install postgresql")
    return folders[-1].parent


def _as_user() -> dict[str, Any]:
    """Return the user to run it as, since it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    try:
        user = pwd.getpwnam(_USER)
    except KeyError:
        raise NoServerError(f"PostgreSQL does not run as root, and there is no user {_USER}") from None
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
