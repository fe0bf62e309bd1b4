"""Commands of flamestream, each in a process of its own that forks from one which has imported the engine.

To start Python and to import the engine takes most of the processor time of a short job. What is tested here is what a
command does, not how it starts: in the tier `whole` each starts cold, and so do the tests of processes and signals.

The processes share one seed of hashes, and the modules of the first; nothing of one command reaches another.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

_COLD: Final = "import sys; from flamecore.cli import main; main(prog_name='flamestream')"
_IMPORTED: Final = (
    "flamecore.cli.running",
    "flamecore.cli.stored",
    "flamecore.runtime.launch",
    "flamestream_inproc",
    "flamestream_ackers.centralized",
    *[f"flamestream_edges.{name}" for name in ("csv", "jsonl", "lines", "sqlite", "stdio")],
    *[f"flamestream_stores.{name}" for name in ("directory", "sqlite")],
)
_MOST: Final = 1 << 20


class _Server:
    """The process that the others fork from, as the tests see it."""

    def __init__(self) -> None:
        ours, its = socket.socketpair()
        with its:
            line = [sys.executable, __file__, str(its.fileno())]
            self._process = subprocess.Popen(line, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
        self._socket = ours
        atexit.register(self.close)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def call(self, asked: Mapping[str, Any], files: list[IO[bytes]]) -> int:
        """Run a command to its end; return its exit code."""
        data = json.dumps(asked).encode()
        socket.send_fds(self._socket, [len(data).to_bytes(4, "big")], [file.fileno() for file in files])
        self._socket.sendall(data)
        told = self._socket.recv(64)
        assert told, "the process that commands fork from has ended"
        return int(told)


_server: _Server | None = None


def call(
    *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `flamestream` with some arguments to its end.

    Args:
        arguments: The arguments.
        cwd: Working folder; None: that of this process.
        env: Its environment; None: that of this process.
        given: Its standard input.

    Returns:
        The exit code and what it has written, as UTF-8.
    """
    global _server
    words = [*map(str, arguments)]
    environ = dict(os.environ if env is None else env)
    if os.environ.get("FLAMESTREAM_TIER") == "whole" or not hasattr(os, "fork"):
        line = [sys.executable, "-c", _COLD, *words]
        return subprocess.run(
            line, cwd=cwd, env=environ, input=given, capture_output=True, encoding="utf-8", check=False
        )
    if _server is None:
        _server = _Server()
    asked = {"arguments": words, "cwd": str(cwd or Path.cwd()), "env": environ}
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(given.encode())
        stdin.seek(0)
        code = _server.call(asked, [stdin, stdout, stderr])
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(words, code, *texts)


def _serve(connection: socket.socket) -> None:
    """Fork for each command, until the tests have ended."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        size, files, _, _ = socket.recv_fds(connection, 4, 3)
        if not size:
            return
        data = bytearray()
        while len(data) < int.from_bytes(size, "big"):
            data += connection.recv(_MOST)
        asked = json.loads(data)
        pid = os.fork()
        if not pid:
            connection.close()
            _become(asked, files)
            return
        for file in files:
            os.close(file)
        _, status = os.waitpid(pid, 0)
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become(asked: Mapping[str, Any], files: list[int]) -> None:
    """Be the command, which ends this process as Python ends."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 - of the whole process
        for number, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
    )
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[0] = ""
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv = ["flamestream", *asked["arguments"]]
    random.seed()
    from flamecore.cli import main

    main(prog_name="flamestream")


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
