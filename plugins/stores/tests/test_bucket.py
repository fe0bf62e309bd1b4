"""Store `directory` in object stores and HDFS: URLs, calls and answers, an S3 server, a NameNode."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from flamecore.abc.store import Store, StoreContext
from flamecore.errors import ConfigError, MissingDependencyError, StoreError
from flamecore.testing.bench.stores import using
from flamecore.testing.checks.stores import StoreTests
from flamecore.toolkit import hadoop
from flamecore.toolkit.hadoop import HadoopFiles
from flamestream_stores.directory import Directory


def store(path: str, job: str = "job", **options: Any) -> Directory:
    return Directory(Directory.Options(path=path, **options), StoreContext(job))


@pytest.fixture
def fsspec() -> Any:
    return pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'flamestream[fsspec]'")


# -- which object stores -----------------------------------------------------------------------------------------------


URLS = [
    "sftp://host/state",
    "webhdfs://host/state",
    "simplecache::s3://bucket/state",
    "x://y",
    "dbfs:/state",
    "s3:/b/x",
]


@pytest.mark.parametrize("url", URLS)
def test_a_place_without_conditional_writes_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="only if there is none") as caught:
        store(url)
    assert caught.value.path == "state.path"
    assert "s3://" in caught.value.hint


def test_promises_depend_on_the_object_store() -> None:
    far = store("s3://bucket/state").capabilities
    assert (far.durable, far.shared) == (True, True)
    memory = store("memory://state").capabilities
    assert (memory.durable, memory.shared) == (False, False)
    near = store("file:///tmp/state").capabilities
    assert (near.durable, near.shared) == (True, False)


def test_a_missing_fsspec_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[fsspec\]'$") as caught:
        using(store("memory://state"), Directory.names)
    assert (caught.value.module, caught.value.extra) == ("fsspec", "fsspec")


def test_a_missing_client_is_named(fsspec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[fsspec\]' s3fs$") as caught:
        using(store("s3://bucket/state"), Directory.names)
    assert caught.value.module == "s3fs"


def test_secrets_are_not_shown() -> None:
    made = store("s3://bucket/state", storage_options={"key": "AKIA", "secret": "hush"})
    assert "hush" not in repr(made.options)
    assert "secret" in repr(made.options)


# -- calls and answers -------------------------------------------------------------------------------------------------


class Answers:
    """A file system that records its calls, and fails with a given error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[tuple[Any, ...]] = []

    def pipe_file(self, path: str, data: bytes, mode: str) -> None:
        self.asked.append((path, data, mode))
        if self.error is not None:
            raise self.error

    def _strip_protocol(self, path: str) -> str:
        return path.partition("://")[2]

    def ls(self, path: str, detail: bool) -> list[str]:
        if self.error is not None:
            raise self.error
        return [f"{path}/a=b.blob", f"{path}/c.blob", f"{path}/notes.txt"]


@pytest.fixture
def answers(fsspec: Any, monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers()
    monkeypatch.setattr(fsspec, "filesystem", lambda *arguments, **options: made)
    return made


def test_a_blob_is_an_object_below_the_job(answers: Answers) -> None:
    async def do(made: Directory) -> list[str]:
        assert await made.create("a/b", b"data")
        return await made.names()

    assert using(store("s3://bucket/state/", "my job"), do) == ["a/b", "c"]
    assert answers.asked == [("bucket/state/my job/a=b.blob", b"data", "create")]


@pytest.mark.parametrize(
    "error",
    [FileExistsError("there"), OSError(errno.EINVAL, "At least one of the pre-conditions you specified did not hold")],
)
def test_a_taken_name_is_not_created_again(answers: Answers, error: Exception) -> None:
    async def do(made: Directory) -> bool:
        answers.error = error
        return await made.create("a", b"data")

    assert using(store("s3://bucket/state"), do) is False


@pytest.mark.parametrize("error", [OSError(errno.EINVAL, "Invalid"), PermissionError("no"), RuntimeError("odd")])
def test_other_errors_are_wrapped_with_their_cause(answers: Answers, error: Exception) -> None:
    async def do(made: Directory) -> None:
        answers.error = error
        for call in (made.create("a", b""), made.names()):
            with pytest.raises(StoreError, match="s3://bucket/state/job cannot") as caught:
                await call
            assert caught.value.__cause__ is error
            assert "storage_options" in caught.value.hint

    using(store("s3://bucket/state"), do)


def test_a_missing_bucket_is_an_error(answers: Answers) -> None:
    answers.error = FileNotFoundError("The specified bucket does not exist")
    with pytest.raises(StoreError, match="bucket does not exist"):
        using(store("s3://bucket/state"), Directory.names)


# -- a server ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """Yield options for a server that speaks S3, with a bucket `flame`."""
    reason = "no S3 server: tox -e s3-whole, or pip install s3fs 'moto[server]'"
    s3fs = pytest.importorskip("s3fs", reason=reason)
    server_of = pytest.importorskip("moto.server", reason=reason)
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
        s3fs.S3FileSystem(skip_instance_cache=True, **options).mkdir("flame")
        yield options
    finally:
        server.stop()


class TestS3(StoreTests):
    @pytest.fixture(autouse=True)
    def _server(self, s3: dict[str, Any]) -> None:
        self.s3 = s3

    def make(self, context: StoreContext) -> Store:
        return Directory(Directory.Options(path="s3://flame/state", storage_options=self.s3), context)


def test_a_missing_bucket_of_s3_is_an_error(s3: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="s3://none/state/job cannot be listed"):
        using(store("s3://none/state", storage_options=s3), Directory.names)


class TestHdfs(StoreTests):
    limit_s = 120.0  # the client asks half a second after each write whether it is there

    @pytest.fixture(autouse=True)
    def _server(self, hdfs: str) -> None:
        self.url = hdfs

    def make(self, context: StoreContext) -> Store:
        return Directory(Directory.Options(path=f"{self.url}/state"), context)


def test_a_missing_client_of_hdfs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(MissingDependencyError, match=r"pip install hdfs-native$") as caught:
        using(store("hdfs://host/state"), Directory.names)
    assert caught.value.module == "hdfs-native"


def test_an_error_of_hdfs_is_in_one_line(hdfs: str) -> None:
    files = HadoopFiles(hdfs, {})
    files.pipe_file("/plain", b"")
    with pytest.raises(StoreError) as caught:
        using(store(f"{hdfs}/plain"), lambda made: made.create("a", b""))
    assert "/plain (is not a directory)" in str(caught.value)
    assert ".java" not in str(caught.value)


def test_a_server_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hdfs_native", reason="no client of HDFS: pip install hdfs-native")
    monkeypatch.setattr(hadoop, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"hdfs://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(StoreError, match="no answer of HDFS within"):
            using(store(f"{url}/state"), Directory.names)


def test_a_file_of_hdfs_is_there_whole_or_not_at_all(hdfs: str) -> None:
    files = HadoopFiles(hdfs, {"dfs.replication": 1})
    files.pipe_file("/whole/a?b#c", b"1", "create")
    with pytest.raises(FileExistsError):
        files.pipe_file("/whole/a?b#c", b"2", "create")
    with pytest.raises(TypeError):
        files.pipe_file("/whole/d", "no bytes")  # type: ignore[arg-type]
    assert files.find(f"{hdfs}/whole") == ["/whole/a?b#c"]
    assert files.ls(f"/whole/{hadoop.ASIDE}") == [], "nothing is left of a write that failed"
    files.pipe_file("/whole/a?b#c", b"3")
    assert files.cat_file("/whole/a?b#c") == b"3"
    with files.open("/whole/a?b#c", "rb", 4096) as opened:
        assert (opened.read(), opened.seek(0), opened.read(9)) == (b"3", 0, b"3")
    files.pipe_file("/whole/deep/e", b"")
    assert sorted(files.find("/whole")) == ["/whole/a?b#c", "/whole/deep/e"]
    assert files.find("/whole", maxdepth=1) == ["/whole/a?b#c"]
    for missing in (files.ls, files.find, files.cat_file):
        with pytest.raises(FileNotFoundError):
            missing("/nowhere")
    files.rm_file("/nowhere")
