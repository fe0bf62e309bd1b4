"""The output of `flamestream check` word for word; it starts nothing."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flamecore.abc.transport import Outlook, Transport, TransportContext
from flamecore.cli import main
from flamecore.errors import ConfigError
from flamecore.runtime.cluster.job import ClusterJob
from flamecore.runtime.cluster.placement import check_findable
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamestream_sockets import SocketTransport

pytestmark = pytest.mark.usefixtures("installed")

FLOW = """
    import flamecore as fc

    flow = fc.Flow("words")
    one, two = flow.source("one", str), flow.source("two", str)
    one.merge(two).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
"""

CYCLES = """
    import flamecore as fc

    def body(lines):
        return lines.key_by(len).reduce(max).map(lambda pair: pair[1][1:]).branch(bool)

    flow = fc.Flow("cycles")
    lines = flow.source("one", str).merge(flow.source("two", str))
    for name in ("first", "second", "third"):
        lines.loop(body, name=name).sink(name)
    lines.key_by(lambda line: line).reduce(max).sink("counts")
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("FLAMESTREAM_TOKEN", raising=False)
    Path("words_app.py").write_text(dedent(FLOW), "utf-8")
    for name in ("a", "b", "c"):
        Path(f"{name}.txt").write_text("to be or not to be\n", "utf-8")


@pytest.fixture(autouse=True)
def _nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async def started(*_: object) -> str:
        raise AssertionError("it was started")

    monkeypatch.setattr(ClusterJob, "run", started)
    for transport in Transport.__subclasses__():
        monkeypatch.setattr(transport, "start", started)


def check(job: str, *options: str) -> Result:
    head = """
        schema = 1
        [source.one]
        use = "lines"
        path = ["a.txt", "b.txt"]
        [source.two]
        use = "lines"
        path = "c.txt"
        [job]
        flow = "words_app.py"
    """
    Path("job.toml").write_text(dedent(head) + dedent(job), "utf-8")
    return CliRunner().invoke(main, ["check", "job.toml", *options], prog_name="flamestream")


def processes(done: Result) -> str:
    """Return the part of the output that shows what would run where."""
    return done.stdout[done.stdout.index("\nprocess") + 1 :]


def test_check_prints_a_job_in_one_process() -> None:
    done = check("workers = 2\n[acker]\nuse = 'sharded'")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == dedent(f"""\
        job            words
        flow           {Path.cwd()}/words_app.py
        workers        2
        clock          sequence
        guarantee      at_least_once
        on_error       fail
        max_in_flight  8192
        transport      inproc
        acker          sharded
        source         one: lines (path = ['{Path.cwd()}/a.txt', '{Path.cwd()}/b.txt']), replayable
        source         two: lines (path = '{Path.cwd()}/c.txt'), replayable
        sink           counts: stdout, at_least_once
        process        this one: the control, worker/0, worker/1 (key groups 0 to 127), acker/0, acker/1, rear/counts
                         front 1 reads one: a.txt
                         front 2 reads one: b.txt
                         front 3 reads two: c.txt
        note           the 2 workers take turns in one process, and make no function faster, neither one that computes \
nor one that waits; --on processes gives each a process of its own
        """)


@pytest.mark.grpc
def test_check_prints_the_processes_of_one_host() -> None:
    done = check(
        "workers = 3\nowners = 2\n[transport]\nuse = 'grpc'\n[acker]\nuse = 'sharded'\n[deploy]\nacker = 'worker'"
    )
    assert done.exit_code == 0, done.stderr
    assert processes(done) == dedent("""\
        process        supervisor: the control, rear/counts
                         reached at a unix socket in a folder of the job
        process        worker-0, started by the supervisor: worker/0
                         front 1 reads one: a.txt
                         reached at a unix socket in a folder of the job
        process        worker-1, started by the supervisor: worker/1 (key groups 0 to 63), acker/1
                         front 2 reads one: b.txt
                         reached at a unix socket in a folder of the job
        process        worker-2, started by the supervisor: worker/2 (key groups 64 to 127), acker/0
                         front 3 reads two: c.txt
                         reached at a unix socket in a folder of the job
        """)


@pytest.mark.nats
def test_check_prints_processes_that_meet_at_a_server() -> None:
    servers = 'servers = ["nats://user:secret@127.0.0.1:4222"]'
    done = check(f"workers = 2\n[transport]\nuse = 'nats'\n[transport.nats]\n{servers}\n[deploy]\nacker = 'own'")
    assert done.exit_code == 0, done.stderr
    assert "secret" not in done.stdout + done.stderr
    place = "server nats://127.0.0.1:4222"
    assert processes(done) == dedent(f"""\
        process        supervisor: the control, rear/counts
                         reached at {place}, without TLS
        process        worker-0, started by the supervisor: worker/0
                         front 1 reads one: a.txt
                         front 3 reads two: c.txt
                         reached at {place}, without TLS
        process        worker-1, started by the supervisor: worker/1 (key groups 0 to 127)
                         front 2 reads one: b.txt
                         reached at {place}, without TLS
        process        acker-0, started by the supervisor: acker/0
                         reached at {place}, without TLS
        """)


JOINED = """
    workers = 2
    [transport]
    use = "grpc"
    [transport.grpc]
    listen = "10.0.0.1:7070"
    {options}
    [deploy]
    start = "join"
    acker = "own"
"""


@pytest.mark.grpc
def test_check_prints_processes_on_several_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("10.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "one.pem")
    files = 'tls_ca = "ca.pem"\ntls_certificate = "one.pem"\ntls_key = "one.pem"'
    monkeypatch.setenv("FLAMESTREAM_TOKEN", "a secret")
    done = check(JOINED.format(options=files.replace("\n", "\n    ")))
    assert done.exit_code == 0, done.stderr
    assert "a secret" not in done.stdout
    assert processes(done) == dedent("""\
        process        supervisor: the control, rear/counts
                         reached at 10.0.0.1:7070, over TLS
        process        worker #1, started by hand: worker/0
                         front 1 reads one: a.txt
                         front 3 reads two: c.txt
                         flamestream worker --join grpc://10.0.0.1:7070 --job words --name NAME
        process        worker #2, started by hand: worker/1 (key groups 0 to 127)
                         front 2 reads one: b.txt
                         flamestream worker --join grpc://10.0.0.1:7070 --job words --name NAME
        process        acker #1, started by hand: acker/0
                         flamestream acker --join grpc://10.0.0.1:7070 --job words --name NAME
        """)


@pytest.mark.grpc
def test_check_names_unprotected_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMESTREAM_TOKEN", "a secret")
    done = check(JOINED.format(options="insecure = true"))
    assert done.exit_code == 0, done.stderr
    assert "NOT PROTECTED: without TLS, as insecure = true allows" in done.stdout


def problems(done: Result) -> str:
    """Return what is said to be wrong."""
    assert done.exit_code == 2, done.stdout
    return done.stderr


@pytest.mark.grpc
def test_check_prints_all_problems_of_a_deployment_at_once() -> None:
    done = check(JOINED.format(options="insecure = false"), "--set", "source.two.path=none.txt", "-w", "200",
                 "--sink", "counts=jsonl", "--set", "sink.counts.path=nowhere/out.jsonl")  # fmt: skip
    assert problems(done) == dedent(f"""\
        problem 1 of 5: source 'two': there is no file {Path.cwd()}/none.txt
          Did you mean {Path.cwd()}/c.txt? (looked in {Path.cwd()})
        problem 2 of 5: sink 'counts': {Path.cwd()}/nowhere/out.jsonl cannot be made: there is no folder {Path.cwd()}/nowhere
          Make it: mkdir -p {Path.cwd()}/nowhere
        problem 3 of 5: 10.0.0.1:7070 is not on this machine alone, and messages would go there without TLS and a token of the job
          Set tls_certificate, tls_key and tls_ca; or set insecure = true under [transport.grpc].
        problem 4 of 5: job.workers is 200, and 128 key groups are shared out among workers
          Use 128 at most.
        problem 5 of 5: deploy.start = "join", and there is no secret that workers could show: $FLAMESTREAM_TOKEN is not set
          Set FLAMESTREAM_TOKEN to the same text for the supervisor and every process that joins.
        """)  # noqa: E501
    assert "process" not in done.stdout


@pytest.mark.grpc
def test_a_supervisor_that_workers_cannot_find_is_refused() -> None:
    for listen, place in (("unix", "a unix socket in a folder of the job"), ("127.0.0.1", "127.0.0.1, at any port")):
        done = check("[transport]\nuse = 'grpc'\n[deploy]\nstart = 'join'", "--set", f"transport.grpc.listen={listen}")
        assert f"workers would have no way to find the supervisor: it would listen at {place}" in problems(done)


def test_a_supervisor_that_no_worker_could_find_names_the_option_of_its_transport() -> None:
    done = check("[transport]\nuse = 'socket'\n[deploy]\nstart = 'join'")
    assert "it would listen at a unix socket in a folder of the job" in problems(done)
    assert 'Name a place, such as [transport.socket] folder = "/tmp/NAME".' in problems(done)


def test_a_supervisor_that_no_worker_could_find_over_a_transport_names_another() -> None:
    """Strangers' transports may have no such option."""
    config = make_config(from_program({"deploy.start": "join"}), environ={})
    transport = SocketTransport(None, TransportContext("words"))
    with pytest.raises(ConfigError, match="it would listen at home") as caught:
        check_findable(config, transport, Outlook("home"), listed=False)
    assert '[transport.grpc] listen = "127.0.0.1:7070", with transport.use = "grpc".' in caught.value.hint
    check_findable(config, transport, Outlook("home"), listed=True)
    check_findable(config, transport, Outlook("home", join="socket:///home"), listed=False)


@pytest.mark.grpc
@pytest.mark.nats
def test_a_supervisor_may_be_found_in_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMESTREAM_TOKEN", "a secret")
    job = "[transport]\nuse = 'grpc'\n[transport.grpc]\nlisten = '127.0.0.1:0'\n[deploy]\nstart = 'join'\n"
    done = check(f"{job}[registry]\nuse = 'nats'\nservers = ['nats://127.0.0.1:4222']")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("registry       nats (servers = ['nats://127.0.0.1:4222'])\n") == 1
    assert "flamestream worker --join ADDRESS --job words --name NAME" in done.stdout


def test_check_prints_the_store_and_does_not_make_it() -> None:
    done = check("[state]\nuse = 'sqlite'\npath = 'state.db'")
    assert done.exit_code == 0, done.stderr
    assert f"state          sqlite (path = '{Path.cwd()}/state.db')\n" in done.stdout
    assert not Path("state.db").exists()


def test_a_transport_within_one_process_is_refused_for_several() -> None:
    done = check("[deploy]\nstart = 'join'\n[transport]\nuse = 'inproc'")
    assert "deploy.start = \"join\", and transport 'inproc' reaches no other process" in problems(done)


@pytest.mark.grpc
def test_files_for_tls_that_do_not_match_are_refused(tmp_path: Path) -> None:
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("one", "two"):
        issued = authority.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    files = 'tls_ca = "ca.pem"\ntls_certificate = "one.pem"\n'
    job = f"[transport]\nuse = 'grpc'\n[transport.grpc]\nlisten = '127.0.0.1:0'\n{files}"
    assert check(f"{job}tls_key = 'one.key'").exit_code == 0
    assert "tls_key" in problems(check(f"{job}tls_key = 'two.key'"))
    assert "none.key" in problems(check(f"{job}tls_key = 'none.key'"))


@pytest.mark.grpc
def test_run_refuses_the_problems_check_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when nobody has joined."""
    check(JOINED.format(options="insecure = true"))
    done = CliRunner().invoke(main, ["run", "job.toml"], prog_name="flamestream")
    assert (done.exit_code, "FLAMESTREAM_TOKEN is not set" in done.stderr) == (2, True)
    monkeypatch.setenv("FLAMESTREAM_TOKEN", "a secret")
    done = CliRunner().invoke(main, ["run", "job.toml", "--set", "transport.grpc.listen=unix"], prog_name="flamestream")
    assert (done.exit_code, "workers would have no way" in done.stderr) == (2, True)


@pytest.mark.grpc
def test_check_prints_json_for_programs() -> None:
    facts: dict[str, Any] = json.loads(check("workers = 2\n[transport]\nuse = 'grpc'", "--json").stdout)
    assert facts["ok"] is True
    assert [process["name"] for process in facts["processes"]] == ["supervisor", "worker-0", "worker-1"]
    assert facts["processes"][1] == {
        "name": "worker-0",
        "start": "supervisor",
        "command": None,
        "place": "a unix socket in a folder of the job",
        "tls": None,
        "missing": [],
        "parts": ["worker/0"],
        "fronts": [
            {"front": 1, "source": "one", "partition": "a.txt"},
            {"front": 3, "source": "two", "partition": "c.txt"},
        ],
        "key_groups": {},
        "homes": {},
    }


def test_check_says_where_cycles_are_at_home() -> None:
    Path("words_app.py").write_text(dedent(CYCLES), "utf-8")
    told = processes(check("workers = 2"))
    assert "worker/0 (key groups 0 to 63; home of second), worker/1 (key groups 64 to 127; home of first" in told
    facts = json.loads(check("workers = 2", "--json").stdout)
    assert facts["processes"][0]["homes"] == {"worker/0": ["second"], "worker/1": ["first", "third"]}
