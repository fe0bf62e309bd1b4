"""Fixtures of all tests: one session of Spark, and a Java that starts quickly."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2s
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest
from ephemeral_port_reserve import reserve
from pyarrow import Table

from flamecore.errors import MissingDependencyError
from flamecore.testing.progress import Patience
from flamestream_spark.compat import data_sources
from flamestream_spark.session.java import find_java
from flamestream_spark.session.session import session

LEARN_S: Final = 300.0
PROGRAM: Final = """
from flamestream_spark.session.session import session

with session("local[2]") as spark:
    rows = spark.createDataFrame([(2, "b"), (1, "a")], "n int, line string")
    rows.orderBy("n").mapInArrow(lambda batches: batches, "n int, line string").count()
"""
"""A program from whose run Java learns which classes Spark needs."""

SERVER: Final = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"


PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "spark.md"
"""The page with the connectors that go with each release of Spark."""

QUICK_HOME: Final = pytest.StashKey[Path]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what the installed Spark does not have, and let PySpark before 4.2 leave sockets open that fetched rows."""
    version = "4.2" if find_spec("pyspark") is None else import_module("pyspark").__version__
    here = Path(__file__).parent
    for item in items if version < "4.2" else ():
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            if version < "4" and item.get_closest_marker("spark4") is not None:
                item.add_marker(pytest.mark.skip(reason=f"Spark {version} does not have it"))


# Not in a fixture: the time limit of the first test would count what is done for all.
def pytest_collection_finish(session: pytest.Session) -> None:
    """Archive the classes that Spark needs, before the first of these tests."""
    here = Path(__file__).parent
    cache = getattr(session.config, "cache", None)
    if (
        cache is None
        or session.config.option.collectonly
        or not any(here in item.path.parents for item in session.items)
    ):
        return
    try:
        home = find_java() or os.environ.get("JAVA_HOME")
    except MissingDependencyError:  # tests that need one say so
        home = None
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is not None and find_spec("pyspark") is not None and sys.platform != "win32":
        session.config.stash[QUICK_HOME] = quick_home(java, cache.mkdir("java"))


@pytest.fixture(scope="session", autouse=True)
def quick_java(pytestconfig: pytest.Config) -> Iterator[None]:
    """Start Java as suits programs of seconds: compiled quickly, and with Spark's classes as an earlier run left them.

    Each process of Spark that a test starts takes less than half of the work then. What is learnt stays in pytest's
    cache, for all runs with this Java and this Spark.
    """
    with pytest.MonkeyPatch.context() as environ:
        if (home := pytestconfig.stash.get(QUICK_HOME, None)) is not None:
            environ.setenv("JAVA_HOME", str(home))
        yield


def quick_home(java: str, cache: Path) -> Path:
    """Make a folder that serves as `JAVA_HOME`, and return it."""
    import pyspark

    jars = Path(pyspark.__file__).with_name("jars")
    said = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    key = blake2s(f"{java} {said!r} {jars} {jars.stat().st_mtime_ns}".encode(), digest_size=8).hexdigest()
    made = cache / key
    if not made.is_dir():
        new = cache / f"{key}.{os.getpid()}"
        learn = make_home(new / "learn", java, f"-XX:ArchiveClassesAtExit={new / 'classes.jsa'}")
        # It takes as long as its output is open: Java writes the file down after Python has ended.
        command = [sys.executable, "-c", PROGRAM]
        environ = os.environ | {"JAVA_HOME": str(learn)}
        with contextlib.suppress(subprocess.TimeoutExpired):  # nothing learnt: Java is slower
            subprocess.run(command, env=environ, capture_output=True, timeout=LEARN_S, check=False)
        archive = f"-XX:SharedArchiveFile={made / 'classes.jsa'}"
        make_home(new, java, "-XX:TieredStopAtLevel=1", archive, "-Xlog:cds*=off")
        try:
            new.rename(made)
        except OSError:  # another run was faster
            shutil.rmtree(new)
    return made


def make_home(folder: Path, java: str, *options: str) -> Path:
    """Make a folder whose `bin/java` starts that Java with options."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nexec {shlex.join([java, *options])} "$@"\n')
    script.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def spark(quick_java: None) -> Iterator[Any]:
    """Yield a session that runs four tasks at once, on this machine."""
    with session("local[4]", {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}) as made:
        yield made


@pytest.fixture(scope="session")
def data_source() -> None:
    """Skip tests of the data source where Spark has none in Python."""
    try:
        data_sources()
    except MissingDependencyError as error:
        pytest.skip(error.what)


@pytest.fixture(scope="session")
def arrow_of() -> Callable[[Any], Any]:
    """Return a function that has Spark compute a DataFrame, as a table of Arrow."""
    # 3.5 has no public one.
    return lambda frame: frame.toArrow() if hasattr(frame, "toArrow") else Table.from_batches(frame._collect_as_arrow())


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Return the URL of a server that speaks S3, with a bucket `bucket`."""
    if find_spec("moto") is None or find_spec("s3fs") is None:
        pytest.skip("no S3 server: pip install s3fs 'moto[server]'")
    port = reserve()
    # A process of its own: delta-rs does not let other threads of this one run while it waits.
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        limit = Patience(60)
        while True:
            try:
                urlopen(Request(f"http://127.0.0.1:{port}/bucket", method="PUT")).close()
                break
            except OSError:
                assert server.poll() is None
                assert not limit.passed()
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def s3_environment(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment by which clients of S3 know the server."""
    for name, value in (
        ("AWS_ENDPOINT_URL", s3),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "hush"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)


def connector_of(column: str) -> str:
    """Return the coordinates of a connector for the installed Spark, from the table in the documentation.

    Args:
        column: The column of the table: "connector of Kafka" or "runtime of Iceberg".
    """
    if find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    if not PAGE.is_file():
        pytest.skip("the documentation is not in the wheel")
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in PAGE.read_text("utf-8").splitlines()]
    (heading,) = (row for row in rows if column in row)
    release = ".".join(import_module("pyspark").__version__.split(".")[:2])
    (row,) = (row for row in rows if row[0] == release and len(row) == len(heading) and ("org.apache" in row[1]))
    found = row[heading.index(column)]
    if ":" not in found:
        pytest.skip(f"{column} for Spark {release}: {found}")
    return found


@pytest.fixture(scope="session")
def kafka_jars(jars: Callable[[Sequence[str]], list[str]]) -> str:
    """Return the jars with which Spark reads and writes Kafka, as `spark.jars` takes them."""
    return ",".join(jars([connector_of("connector of Kafka")]))


@pytest.fixture(scope="session")
def iceberg_jars(jars: Callable[[Sequence[str]], list[str]]) -> str:
    """Return the jars with which Spark reads and writes tables of Iceberg, as `spark.jars` takes them."""
    return ",".join(jars([connector_of("runtime of Iceberg")]))
