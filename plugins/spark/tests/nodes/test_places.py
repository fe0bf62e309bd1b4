"""Jobs with data of Spark run there by default: what is settled, and refused, before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import ConfigError, FlameError, MissingDependencyError
from flamecore.runtime.cluster.dry_run import dry_run
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.suggest import install_command
from flamestream_spark.session import java, master, session


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the session of other tests, whose master would come before the configured one."""
    monkeypatch.setattr(master, "_of_session", lambda *_: None)


def itself(line: str) -> str:
    return line


flow = fc.Flow("placed")
flow.source("lines", str).key_by(itself).count().sink("counts")
two = fc.Flow("two")
two.source("left", str).sink("lefts")
two.source("right", str).sink("rights")

SOURCE = {"source.lines.use": "spark", "source.lines.path": "in", "source.lines.format": "text"}
SINK = {"sink.counts.use": "spark", "sink.counts.path": "out"}
LINES = {"source.lines.use": "lines", "source.lines.path": __file__}


def spec_of(*tables: dict[str, Any], of: fc.Flow = flow) -> JobSpec:
    settings: dict[str, Any] = {"transport.grpc.insecure": True}
    for table in tables:
        settings |= table
    return resolve(make_config(from_program(settings), environ={}), of)


def problems(spec: JobSpec) -> list[FlameError]:
    return [*spec.problems, *(spec.host().problems() if spec.has_host else ())]


@pytest.mark.parametrize("settings", [SOURCE, LINES | SINK, SOURCE | {"source.lines.stream": True}], ids=str)
def test_data_of_spark_has_a_job_run_there(settings: dict[str, Any]) -> None:
    if "source.lines.stream" in settings:
        settings = settings | {"source.lines.spool": "spool"}
    spec = spec_of(settings)
    assert problems(spec) == []
    assert (spec.config.deploy.on, spec.config.transport.use) == ("spark", "grpc")


@pytest.mark.parametrize(
    "settings", [{"source.lines.use": "spark", "source.lines.spool": "spool"}, SOURCE | SINK | {"deploy.on": "here"}]
)
def test_rows_that_others_put_into_a_folder_are_read_here(settings: dict[str, Any]) -> None:
    spec = spec_of(settings)
    assert (spec.config.deploy.on, spec.config.transport.use) == ("here", "inproc")


def test_a_source_says_where_the_session_of_all_runs() -> None:
    spec = spec_of(SOURCE, SINK, {"source.lines.master": "local[3]", "source.lines.config": {"spark.x": "1"}})
    assert problems(spec) == []
    assert spec.drivers.host is not None
    options = spec.drivers.host[1]
    assert (options.master, options.config) == ("local[3]", {"spark.x": "1"})


@pytest.mark.parametrize(
    ("of", "settings"),
    [
        (flow, SOURCE | {"source.lines.master": "local[3]", "spark.master": "local[4]"}),
        (
            two,
            {
                f"source.{name}.{key}": value
                for name in ("left", "right")
                for key, value in (("use", "spark"), ("path", "in"))
            }
            | {"source.left.master": "local[4]", "source.right.master": "local[3]"},
        ),
    ],
)
def test_two_masters_in_one_job_are_refused(of: fc.Flow, settings: dict[str, Any]) -> None:
    (problem,) = spec_of(settings, of=of).problems
    assert isinstance(problem, ConfigError)
    assert "master is 'local[3]', and workers and sources of this job share a session of Spark" in str(problem)
    assert "'local[4]'" in str(problem)
    assert 'deploy.on = "here"' in problem.hint


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"state.use": "sqlite", "state.path": "/mnt/state"}, "state is kept by 'sqlite' in /mnt/state"),
        ({"state.use": "directory", "state.path": "/mnt/state"}, ""),
        ({"state.use": "directory", "state.path": "file:///mnt/state"}, ""),
    ],
)
def test_a_state_that_executors_do_not_reach_is_refused(state: dict[str, str], told: str) -> None:
    spool = {"source.lines.spool": "/mnt/spool", "spark.config": {"spark.driver.host": "10.0.0.1"}}
    found = problems(spec_of(SOURCE, spool, state, {"spark.master": "yarn"}))
    assert [str(problem).partition(",")[0] for problem in found] == ([told] if told else [])
    for place in ("local[2]", "local-cluster[2,1,1024]"):
        assert problems(spec_of(SOURCE, state, {"spark.master": place})) == [], "all is on this machine"


def own_address(*settings: dict[str, Any]) -> dict[str, Any]:
    """Return how executors elsewhere reach the driver of a job."""
    spool = {"source.lines.spool": "/mnt/spool", "spark.master": "yarn"}
    return {
        key: value
        for key, value in spec_of(SOURCE, spool, *settings).config.transport.tables["grpc"].items()
        if key in ("listen", "advertise")
    }


HOST = {"spark.driver.host": "10.0.0.1"}
BEHIND = {"spark.driver.host": "driver.flows.svc", "spark.driver.bindAddress": "0.0.0.0"}


@pytest.mark.parametrize("way", ["job", "session", "submit", "environment", "defaults"])
@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        (HOST, {"listen": "10.0.0.1:0"}),
        (BEHIND, {"listen": "0.0.0.0:0", "advertise": "driver.flows.svc"}),
        ({"spark.driver.host": "fd00::1"}, {"listen": "[fd00::1]:0"}),
    ],
)
def test_executors_reach_the_driver_where_spark_is_told_to(
    way: str, told: dict[str, str], wanted: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {}
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    if way == "job":
        settings["spark.config"] = told
    elif way == "session":
        monkeypatch.setattr(master, "_of_session", ({"spark.master": "yarn"} | told).get)
    elif way == "submit":
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
        monkeypatch.setattr(master, "given_to_spark", lambda: told)
        settings["spark.config"] = {"spark.driver.host": "of the job"}
    elif way == "environment":
        words = " ".join(f"--conf {name}={value}" for name, value in told.items())
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{words} pyspark-shell")
    else:
        (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in told.items()))
    assert own_address(settings) == wanted
    own = {"transport.grpc.listen": "10.0.0.9:7070"}
    assert own_address(settings, own) == {"listen": "10.0.0.9:7070"}, "the job's own word comes first"


def test_a_machine_without_java_is_told_before_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "active", lambda: None)
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = problems(spec_of(SOURCE))
    assert isinstance(problem, MissingDependencyError)
    assert problem.module == "java"
    assert install_command("flamestream", "spark", "java") in problem.hint
    assert problem.hint.endswith('; or run the job in this process: deploy.on = "here".')


def test_a_table_that_nothing_here_writes_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    spec = spec_of(SOURCE, SINK, {"sink.counts.format": "delta"})
    (problem,) = problems(spec)
    dry_run(spec)
    assert [str(one) for one in spec.problems] == [str(problem)]
    assert isinstance(problem, MissingDependencyError)
    assert problem.hint == f"Run: {install_command('flamestream', 'spark', 'delta')}"
    assert problems(spec_of(SOURCE, SINK)) == []


@pytest.mark.parametrize("module", ["pyspark", "pandas"])
def test_a_machine_without_pyspark_is_told_before_the_start(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    if module == "pyspark":  # a part that is there looks for the whole
        monkeypatch.delitem(sys.modules, "pyspark.find_spark_home", raising=False)
    (problem,) = problems(spec_of(SOURCE))
    assert isinstance(problem, MissingDependencyError)
    assert install_command("flamestream", "spark") in problem.hint


def test_a_machine_without_grpc_is_told_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("grpc", "flamestream_grpc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    (problem,) = spec_of(SOURCE).problems
    assert isinstance(problem, MissingDependencyError)
    assert install_command("flamestream", "grpc") in problem.hint
