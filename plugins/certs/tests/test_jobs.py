"""Real jobs over TCP with the certificates of `flamestream certs init`."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from ephemeral_port_reserve import reserve

from flamecore.testing.progress import Patience

pytest.importorskip("cryptography", reason="the extra `certs` is not installed")

LIMIT_S = 60.0
LINES = 700

APP = """
    import time
    from pathlib import Path

    import flamecore as fc


    def slowly(line: str) -> str:
        time.sleep(0.2 if Path("linger").exists() else 0.005)
        return line


    flow = fc.Flow("lengths")
    flow.source("lines", str).rebalance().map(slowly).key_by(len).count().sink("counts")
"""

JOB = """
    schema = 1
    [job]
    flow = "app.py"
    workers = 2
    [source.lines]
    use = "lines"
    path = "lines.txt"
    [sink.counts]
    use = "jsonl"
    path = "counts.jsonl"
    [transport]
    use = "{transport}"
"""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "flamecore", *map(str, arguments)]


def certs(folder: Path) -> str:
    """Make certificates; return the printed text to paste."""
    done = subprocess.run(command("certs", "init", folder), capture_output=True, text=True, check=True)
    return done.stdout


def job_file(folder: Path, transport: str, pasted: str) -> Path:
    """Write a job that counts lines by length; return the path of its job file.

    A line takes 5 ms, and 200 ms while there is a file `linger`.
    """
    (folder / "app.py").write_text(dedent(APP))
    (folder / "lines.txt").write_text("".join(f"{'x' * (number % 7)}\n" for number in range(LINES)))
    path = folder / "job.toml"
    path.write_text(dedent(JOB).format(transport=transport) + pasted)
    return path


def check_counts(folder: Path) -> None:
    counted: dict[int, int] = {}
    lines = (folder / "counts.jsonl").read_text().splitlines()
    assert len(lines) == LINES
    for number, line in enumerate(lines):
        length = number % 7
        counted[length] = counted.get(length, 0) + 1
        assert line == f"[{length},{counted[length]}]"


@pytest.mark.grpc
def test_two_workers_run_a_job_over_grpc(tmp_path: Path) -> None:
    job = job_file(tmp_path, "grpc", certs(tmp_path / "certs"))
    done = subprocess.run(command("run", job, "-q"), capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_counts(tmp_path)


@pytest.mark.nats
def test_two_workers_run_a_job_over_nats(tmp_path: Path) -> None:
    from flamestream_nats.testing import NatsServer, ServerTls

    folder = tmp_path / "certs"
    pasted = certs(folder)
    with NatsServer(tls=ServerTls(folder / "nats.pem", folder / "nats.key", folder / "ca.pem")) as server:
        pasted = pasted.replace("tls://127.0.0.1:4222", server.url)
        job = job_file(tmp_path, "nats", pasted)
        done = subprocess.run(command("run", job, "-q"), capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        check_counts(tmp_path)
        certs(tmp_path / "strangers")
        job.write_text(job.read_text().replace(str(folder), str(tmp_path / "strangers")))
        refused = subprocess.run(command("run", job, "-q"), capture_output=True, text=True, check=False, cwd=tmp_path)
        assert refused.returncode == 2
        assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr


@contextmanager
def started(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Yield a function that starts commands; end those still running afterwards."""
    processes: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "FLAMESTREAM_TOKEN": "not a secret"}

    def start(*arguments: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(command(*arguments), env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    try:
        yield start
    finally:
        for process in processes:
            with process:  # closes its pipes, and waits
                process.kill()


def speaks(location: str, folder: Path, version: ssl.TLSVersion) -> bool:
    """Return whether a server accepts a client with TLS up to `version`.

    The client has a good certificate.
    """
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "worker.pem", folder / "worker.key")
    context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    host, _, port = location.rpartition(":")
    with socket.create_connection((host, int(port))) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host) as connection:
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                return connection.recv(1) != b""
        except OSError:
            return False


@pytest.mark.grpc
def test_no_port_of_a_job_speaks_tls_below_1_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the control's port nor those for the workers' data do."""
    monkeypatch.delenv("GRPC_SSL_CIPHER_SUITES", raising=False)  # a test in this process may have set it
    folder, here = tmp_path / "certs", f"127.0.0.1:{reserve()}"
    job = job_file(tmp_path, "grpc", certs(folder).replace('listen = "127.0.0.1"', f'listen = "{here}"'))
    (tmp_path / "linger").touch()
    files = {"tls_ca": "ca.pem", "tls_certificate": "client.pem", "tls_key": "client.key"}
    as_client = [part for key, file in files.items() for part in ("--set", f"transport.grpc.{key}={folder / file}")]
    with started(tmp_path) as start:
        run = start("run", job, "-q")
        nodes: dict[str, Any] = {}
        limit = Patience(LIMIT_S)
        while len(nodes) < 2:
            assert run.poll() is None, run.communicate()[1]
            assert not limit.passed(), "nobody has come"
            look = ("status", f"grpc://{here}", "--job", "lengths", "--json", *as_client)
            status = subprocess.run(
                command(*look, "--set", "transport.grpc.listen=127.0.0.1"),
                env={**os.environ, "FLAMESTREAM_TOKEN": "not a secret"},
                capture_output=True,
                text=True,
                check=False,
            )
            nodes = json.loads(status.stdout)["nodes"] if status.returncode == 0 else {}
        for location in (here, *(node["location"] for node in nodes.values())):
            assert speaks(location, folder, ssl.TLSVersion.TLSv1_3), location
            assert not speaks(location, folder, ssl.TLSVersion.TLSv1_2), location
        (tmp_path / "linger").unlink()
        assert run.wait(LIMIT_S) == 0
    check_counts(tmp_path)


ROGUE = """
    import asyncio, os, sys

    from flamecore import __version__
    from flamecore.abc.transport import TransportContext
    from flamecore.model.messages import Begin, Join, Left, NodeReport, Opened, Rescale, Stop
    from flamecore.runtime.codec.codec import Codec
    from flamestream_grpc import GrpcTransport, Options

    NONSENSE = (
        [[]],
        5,
        None,
        {"node": "w1"},
        Begin(),
        Stop(True),
        NodeReport("rogue", {"items_in": "many"}),
        NodeReport("rogue", {"no such": 1}),
        Opened("rogue", "no epoch"),
        Join("rogue", "worker", "no location", 1, "no version"),
    )


    async def main(control: str, address: str) -> None:
        token = os.environ["FLAMESTREAM_TOKEN"]
        context = TransportContext(
            job="lengths", incarnation=1, codec=Codec(), node="x", token=token, locate=lambda _: control
        )
        transport = GrpcTransport(Options(listen="127.0.0.1"), context)
        await transport.start()
        endpoint = await transport.bind(address)
        for message in NONSENSE:
            await endpoint.send("job", message)
        if address.startswith("node/"):
            await endpoint.send("job", Rescale(1))
        await transport.aclose()


    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.grpc
def test_a_job_goes_on_when_a_process_with_its_token_talks_nonsense(tmp_path: Path) -> None:
    """Its messages are refused, and the log names their sender."""
    here = f"127.0.0.1:{reserve()}"
    job = job_file(tmp_path, "grpc", f'\n[transport.grpc]\nlisten = "{here}"\n')
    (tmp_path / "linger").touch()
    (tmp_path / "rogue.py").write_text(dedent(ROGUE))
    out = tmp_path / "counts.jsonl"
    with started(tmp_path) as start:
        run = start("run", job, "-q")
        limit = Patience(LIMIT_S)
        while not (out.exists() and out.stat().st_size):
            assert run.poll() is None, run.communicate()[1]
            assert not limit.passed(), "nothing has come out"
            time.sleep(0.02)
        for address in ("node/rogue", "client/rogue"):
            done = subprocess.run(
                [sys.executable, tmp_path / "rogue.py", here, address],
                env={**os.environ, "FLAMESTREAM_TOKEN": "not a secret"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        assert run.poll() is None, run.communicate()[1]
        (tmp_path / "linger").unlink()
        _, said = run.communicate()
        assert run.returncode == 0, said
        for address in ("node/rogue", "client/rogue"):
            (line,) = [line for line in said.splitlines() if "message.refused" in line and address in line]
            assert "kind=list" in line
        assert said.count("message.refused") == 2, said
    check_counts(tmp_path)


@pytest.mark.grpc
def test_a_worker_whose_certificate_names_another_host_is_refused_and_others_are_waited_for(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme", reason="makes certificates for other hosts")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, host in (("good", "127.0.0.1"), ("bad", "198.51.100.1")):
        authority.issue_cert(host).private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")

    def tls(name: str) -> list[str]:
        files = {"tls_ca": "ca.pem", "tls_certificate": f"{name}.pem", "tls_key": f"{name}.pem"}
        chosen = [f"transport.grpc.{key}={tmp_path / file}" for key, file in files.items()]
        return [part for text in chosen for part in ("--set", text)]

    here = f"127.0.0.1:{reserve()}"
    job = job_file(tmp_path, "grpc", f'\n[transport.grpc]\nlisten = "{here}"\nconnect_timeout_s = 3\n')
    job.write_text(job.read_text() + '[deploy]\nstart = "join"\n')
    join = ("--join", f"grpc://{here}", "--job", "lengths", "--set", "transport.grpc.listen=127.0.0.1")
    with started(tmp_path) as start:
        run = start("run", job, "-q", *tls("good"))
        start("worker", *join, "--name", "w1", *tls("bad"))
        assert run.stderr is not None
        said: list[str] = []
        while "node.refused" not in (line := run.stderr.readline()):
            assert line, "".join(said)
            said.append(line)
        assert "node=w1" in line
        assert "cannot be reached at 127.0.0.1:" in line
        workers = [start("worker", *join, "--name", name, *tls("good")) for name in ("w2", "w3")]
        for process in (run, *workers):
            _, last = process.communicate()
            assert process.returncode == 0, last
    check_counts(tmp_path)


CLIENT = """
    import asyncio, os, signal, sys

    from flamecore import __version__
    from flamecore.runtime.codec.codec import Codec
    from flamecore.model.messages import Join, NodeFailed
    from flamecore.abc.transport import TransportContext
    from flamestream_grpc import GrpcTransport, Options


    async def main(control: str, folder: str, address: str) -> None:
        files = {"tls_ca": "ca.pem", "tls_certificate": "client.pem", "tls_key": "client.key"}
        transport = GrpcTransport(
            Options(listen="127.0.0.1", **{key: f"{folder}/{file}" for key, file in files.items()}),
            TransportContext(
                job="lengths",
                incarnation=1,
                codec=Codec(),
                node="x",
                token=os.environ["FLAMESTREAM_TOKEN"],
                locate=lambda _: control,
            ),
        )
        location = await transport.start()
        endpoint = await transport.bind(address)
        await endpoint.send("job", NodeFailed("w1", "JobError", "a lie"))
        role = "observer" if address == "client/x" else "worker"
        await endpoint.send("job", Join("x", role, location, 1, __version__))
        if address == "client/x":
            print(type((await endpoint.receive()).message).__name__, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        while True:  # until it is told that it is refused
            await endpoint.send("job", "hello")


    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.grpc
def test_a_client_looks_and_an_operator_changes(tmp_path: Path) -> None:
    folder, here = tmp_path / "certs", f"127.0.0.1:{reserve()}"
    pasted = certs(folder).replace('listen = "127.0.0.1"', f'listen = "{here}"')
    job = job_file(tmp_path, "grpc", pasted + f'\n[state]\nuse = "sqlite"\npath = "{tmp_path / "state"}"\n')
    (tmp_path / "linger").touch()

    def ask(role: str, *what: str | Path) -> subprocess.CompletedProcess[str]:
        files = {"tls_certificate": f"{role}.pem", "tls_key": f"{role}.key"}
        chosen = [f"transport.grpc.{key}={folder / file}" for key, file in files.items()]
        name, *rest = what
        options = [part for text in (*chosen, "transport.grpc.listen=127.0.0.1") for part in ("--set", text)]
        config = () if job in rest else ("--config", job)
        line = command(name, f"grpc://{here}", *rest, "--job", "lengths", *config, *options)
        environment = {**os.environ, "FLAMESTREAM_TOKEN": "not a secret"}
        return subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    out = tmp_path / "counts.jsonl"
    with started(tmp_path) as start:
        run = start("run", job, "-q")
        limit = Patience(LIMIT_S)
        while not (out.exists() and out.stat().st_size):
            assert run.poll() is None, run.communicate()[1]
            assert not limit.passed(), "nothing has come out"
            time.sleep(0.02)
        assert ask("client", "status").returncode == 0
        for what in (("rescale", "-w", "1"), ("upgrade", job)):
            refused = ask("client", *what)
            assert refused.returncode == 1
            assert "refuses this process" in refused.stderr
            assert "certificate is for another role: client" in refused.stderr
            assert "must be for the role operator" in refused.stderr
        assert ask("operator", "status").returncode == 0
        changed = ask("operator", "rescale", "-w", "1")
        assert changed.returncode == 0, changed.stderr
        (tmp_path / "linger").unlink()
        _, said = run.communicate()
        assert run.returncode == 0, said
    told = [line for line in said.splitlines() if "message.refused" in line]
    assert len(told) == 2
    assert all("operator/operator-" in line and "client" in line for line in told)
    check_counts(tmp_path)


@pytest.mark.grpc
def test_a_worker_with_a_certificate_of_another_authority_is_refused_and_the_job_goes_on(tmp_path: Path) -> None:
    """A client's certificate cannot take part either; the job goes on all the same."""
    ours, strange = tmp_path / "certs", tmp_path / "strangers"
    here = f"127.0.0.1:{reserve()}"
    pasted = certs(ours).replace('listen = "127.0.0.1"', f'listen = "{here}"')
    certs(strange)
    job = job_file(tmp_path, "grpc", pasted + '\n[deploy]\nstart = "join"\n')
    (tmp_path / "linger").touch()  # so that it does not end before all have come, however slow they are

    def tls(folder: Path, role: str) -> list[str]:
        files = {"tls_ca": "ca.pem", "tls_certificate": f"{role}.pem", "tls_key": f"{role}.key"}
        chosen = [f"transport.grpc.{key}={folder / file}" for key, file in files.items()]
        return [part for text in (*chosen, "transport.grpc.listen=127.0.0.1") for part in ("--set", text)]

    join = ("--join", f"grpc://{here}", "--job", "lengths")
    with started(tmp_path) as start:
        run = start("run", job, "-q")
        workers = [start("worker", *join, "--name", name, *tls(ours, "worker")) for name in ("w1", "w2")]
        out = tmp_path / "counts.jsonl"
        limit = Patience(LIMIT_S)
        while not (out.exists() and out.stat().st_size):
            assert run.poll() is None, run.communicate()[1]
            assert not limit.passed(), "nothing has come out"
            time.sleep(0.02)
        early = "transport.grpc.connect_timeout_s=0.3"
        stranger = start("worker", *join, "--name", "w3", *tls(strange, "worker"), "--set", early)
        looker = start("status", f"grpc://{here}", "--job", "lengths", *tls(strange, "client"), "--set", early)
        for refused in (stranger, looker):
            _, said = refused.communicate()
            assert refused.returncode == 1
            assert "ConnectError" in said or "there is no answer" in said
        assert run.poll() is None, "the job was to be running still"
        (tmp_path / "client.py").write_text(dedent(CLIENT))
        for address, outcome in (("node/x", "certificate is for another role"), ("client/x", "Status")):
            done = subprocess.run(
                [sys.executable, tmp_path / "client.py", here, ours, address],
                env={**os.environ, "FLAMESTREAM_TOKEN": "not a secret"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert outcome in done.stdout + done.stderr
            assert done.returncode == (1 if address == "node/x" else -signal.SIGKILL)
        look = start("status", f"grpc://{here}", "--job", "lengths", *tls(ours, "client"))
        assert look.wait(LIMIT_S) == 0, look.communicate()[1]
        (tmp_path / "linger").unlink()
        for process in (run, *workers):
            _, said = process.communicate()
            assert process.returncode == 0, said
    check_counts(tmp_path)
