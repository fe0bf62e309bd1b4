"""The master of a session: Spark's own configuration comes before the job's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flamestream_spark.session import master
from flamestream_spark.session.master import given_to_spark, has_own_logging, master_of


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of configuration, without a session or spark-submit."""
    monkeypatch.setattr(master, "_of_session", lambda name: None)
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


def test_nobody_names_a_master() -> None:
    assert master_of("") == "local[*]"
    assert master_of("local[3]") == "local[3]"


def test_defaults_of_spark_count_where_the_job_says_nothing(conf: Path) -> None:
    (conf / "spark-defaults.conf").write_text("# spark.master yarn\n\nspark.master  spark://head:7077 \nspark.x=a b\n")
    assert given_to_spark() == {"spark.master": "spark://head:7077", "spark.x": "a b"}
    assert master_of("") == "spark://head:7077"
    assert master_of("local[3]") == "local[3]"


@pytest.mark.parametrize("arguments", ["--master yarn", "--master=yarn", "--conf spark.master=yarn"])
def test_arguments_in_the_environment_come_before_defaults(
    conf: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    (conf / "spark-defaults.conf").write_text("spark.master spark://head:7077")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{arguments} --name 'a b' pyspark-shell")
    assert master_of("") == "yarn"


def test_a_server_of_the_environment_is_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    assert master_of("") == "sc://host:15002"


@pytest.mark.parametrize("said", ["", "local[3]"])
def test_spark_submit_comes_before_the_job(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(master, "given_to_spark", lambda: {"spark.master": "spark://head:7077"})
    assert master_of(said) == "spark://head:7077"


def test_a_log_of_the_users_is_known_by_its_file_and_by_options_of_java(conf: Path) -> None:
    assert not has_own_logging({"spark.driver.extraJavaOptions": "-Da=b"})
    assert has_own_logging({"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine.xml"})
    (conf / "log4j2.properties").touch()
    assert has_own_logging({})


def test_the_master_is_known_without_spark_where_nothing_has_imported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)
    assert master._of_session("spark.master") is None
