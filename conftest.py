"""Settings of all tests, those of the plugins too: which cases run, and what is said of them.

A run has a tier and a draw (see `flamecore.testing.draws`). Without FLAMESTREAM_DRAW the draw is the commit, so that
landings together run nearly all cases; with changes that are not committed, or without git, it is a random number.
Hypothesis has the draw as its seed, and judges values, no durations.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain, groupby
from pathlib import Path

import hypothesis
import pytest

from flamecore.testing import draws
from flamecore.testing.progress import Patience

ROOT = Path(__file__).parent

SERVERS = ROOT / "tests" / "servers"
NOT_HERE = 3
"""Exit code of a script there if something is missing for it; its last words say what."""

CLIENTS = ("grpc", "nats")
"""Marks of tests that need the module of that name."""

SMALL = ("tests/unit/",)
FEW = 24
"""Folders whose tests run all their cases in every tier, up to so many: these cost less than to start others."""

JOBS = (
    "tests/pipelines/",
    "tests/hosts/",
    "plugins/certs/tests/test_jobs.py",
    "plugins/nats/tests/test_jobs.py",
    "plugins/nats/tests/test_outages.py",
    "plugins/processes/tests/test_default_transport.py",
)
"""Places of tests of whole jobs on processes, most of which recover or wait for something."""

SPARK = "plugins/spark/"
"""Place of tests most of which start a JVM, by the fixture `spark` or, those that have the mark, by themselves."""

FETCHING = {"jars", "kafka"}
"""Fixtures of what Maven fetches."""

MOST_NEEDED = 40
"""Examples of a property below which no tier goes: most faults show within so many."""

STANDS_STILL_S = 120.0

left_out = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Draw, unless the number is given; processes that tests start inherit it."""
    # A shell has what a script starts in the background ignore Ctrl-C, and processes below it inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault(draws.DRAW, str(draws.drawn(ROOT)))
    # As in this process, where every warning is an error: see `flamecore.runtime.tasks.leftovers`. Not beside Spark,
    # whose processes open and leave much that is not ours.
    if find_spec("pyspark") is None:
        os.environ.setdefault("PYTHONWARNINGS", "error:left open:ResourceWarning")
    # By default an example that takes 200 ms fails. On a busy machine any may.
    examples = len(draws.seeds(100, least=MOST_NEEDED))
    hypothesis.settings.register_profile("flamestream", deadline=None, max_examples=examples)
    hypothesis.settings.load_profile("flamestream")
    hypothesis.core.global_force_seed = draws.draw()


def pytest_report_header() -> str:
    """Say which part of all it is."""
    tier = draws.tier()
    part = f"{tier.cases:.0%} of the cases, {tier.seeds:.0%} of the seeds"
    return f"{draws.TIER}={os.environ.get(draws.TIER, '')} {draws.DRAW}={draws.draw()}: {part}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose client is not installed."""
    for client in CLIENTS:
        if item.get_closest_marker(client) is not None and find_spec(client) is None:
            pytest.skip(f"the client of {client} is not installed")


# Last, when -m and -k have chosen: a test must not lose all cases of an environment to those that run in another one.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave of each test the cases of this tier and draw."""
    tests = {test: list(cases) for test, cases in groupby(sorted(items, key=_test_of), key=_test_of)}
    tier = draws.tier()
    if not tier.fetches:
        tests = {test: cases for test, cases in tests.items() if FETCHING.isdisjoint(_fixtures_of(cases[0]))}
    kept: set[pytest.Item] = set()
    costly_parts = {**dict.fromkeys(JOBS, tier.jobs), SPARK: tier.jvm}
    for folder, part in costly_parts.items():
        costly = [test for test, cases in tests.items() if test.startswith(folder) and not _is_spared(cases[0], folder)]
        for test in {*costly}.difference(draws.chosen(costly, folder, part)):
            del tests[test]
    for test, cases in tests.items():
        is_small = test.startswith(SMALL)
        if _is_smoke(cases[0]):
            kept.update(cases)
        else:
            drawn = [[case] for case in cases] if is_small else _with_their_seeds(cases)
            part = min(FEW / len(cases), 1.0) if is_small else 0.0
            kept.update(chain.from_iterable(draws.chosen(drawn, test, max(part, tier.cases))))
    config.stash[left_out] = len(items) - len(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _test_of(item: pytest.Item) -> str:
    """Return the test that an item is a case of: one test of a kit is run for each variant of a driver."""
    test = item.nodeid.partition("[")[0]
    variant = item.get_closest_marker("variant")
    if variant is None:
        return test
    path, _, rest = test.partition("::")
    return f"{path}::{variant.args[0]}::{rest.rpartition('::')[2]}"


def _fixtures_of(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def _is_smoke(item: pytest.Item) -> bool:
    return item.get_closest_marker("smoke") is not None


def _is_spared(item: pytest.Item, folder: str) -> bool:
    """Return whether the test of an item runs in every tier, though most of its folder do not."""
    needs_jvm = item.get_closest_marker("jvm") is not None or "spark" in _fixtures_of(item)
    return _is_smoke(item) or (folder == SPARK and not needs_jvm)


def _with_their_seeds(cases: list[pytest.Item]) -> list[list[pytest.Item]]:
    """Return the cases of a test, those together that differ by a seed alone: seeds are those of the draw already."""
    together: dict[object, list[pytest.Item]] = {}
    for case in cases:
        callspec = getattr(case, "callspec", None)
        is_seeded = callspec is not None and "seed" in callspec.params
        settings = tuple((name, at) for name, at in callspec.indices.items() if name != "seed") if is_seeded else case
        together.setdefault(settings, []).append(case)
    return [*together.values()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out, and how to repeat what failed."""
    count = config.stash.get(left_out, 0)
    if count:
        terminalreporter.write_line(f"{count} cases left out by the draw; {draws.TIER}=whole runs all")
    failed = [report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())]
    if failed:
        settings = f"{draws.TIER}={os.environ.get(draws.TIER, '')} {draws.DRAW}={draws.draw()}"
        environment = os.environ.get("TOX_ENV_NAME")
        command = f"tox -e {environment} --" if environment else "pytest"
        names = " ".join(f"'{name}'" for name in dict.fromkeys(failed[:5]))
        terminalreporter.write_line(f"repeat: {settings} {command} {names}")
        terminalreporter.write_line("The draw may be the first to show an old fault: run it on the parent commit, too.")


# In place of a limit of time: on a busy machine a test takes long and is right. By a timer, not by a thread, since a
# process with threads must not fork.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Fail a test that makes no progress for a while, and show where each thread is."""
    limit = Patience(STANDS_STILL_S)

    def look(*_: object) -> None:
        if limit.passed():
            faulthandler.dump_traceback()
            # Again if somebody has caught it, such as an event loop between two of its callbacks.
            signal.setitimer(signal.ITIMER_REAL, 5.0)
            pytest.fail(f"no progress for {STANDS_STILL_S} s: no time of a processor was used; see the stacks above")
        signal.setitimer(signal.ITIMER_REAL, limit.left_s + 0.01)

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, STANDS_STILL_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of HDFS, with a NameNode and a DataNode of its own."""
    if find_spec("hdfs_native") is None:
        pytest.skip("no client of HDFS: pip install hdfs-native")
    with _serving("hdfs.py", "hdfs://", tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture(scope="session")
def jars_folder(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of what Maven has fetched: in pytest's cache, for all runs on this machine, if there is one."""
    cache = getattr(pytestconfig, "cache", None)
    return tmp_path_factory.mktemp("jars") if cache is None else Path(cache.mkdir("jars"))


@pytest.fixture(scope="session")
def jars(jars_folder: Path) -> Callable[[Sequence[str]], list[str]]:
    """Return a function that fetches the jars of some artifacts, and of all that they need, by Maven.

    Artifacts are named "GROUP:ARTIFACT:VERSION".
    """

    def fetched(coordinates: Sequence[str]) -> list[str]:
        command = [sys.executable, str(SERVERS / "maven.py"), str(jars_folder), *coordinates]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # it has a limit of its own
        if done.returncode == NOT_HERE:
            pytest.skip(done.stdout.strip())
        assert done.returncode == 0, "the jars cannot be fetched; see above"
        return done.stdout.splitlines()

    return fetched


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, jars_folder: Path) -> Iterator[str]:
    """Yield the address of a broker of Kafka, which makes topics, of several partitions, as they are written to."""
    with _serving("kafka.py", "127.", tmp_path_factory.mktemp("kafka"), jars_folder) as address:
        yield address


@contextmanager
def _serving(script: str, beginning: str, *arguments: Path) -> Iterator[str]:
    """Run a script of `tests/servers`, and yield the address that it prints, which begins so."""
    command = [sys.executable, str(SERVERS / script), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as servers:
        assert servers.stdin is not None
        assert servers.stdout is not None
        said = servers.stdout.readline().strip()  # its own limits end it
        if not said.startswith(beginning):
            if servers.wait(60) == NOT_HERE:
                pytest.skip(f"no server of {script}: {said}")
            pytest.fail(f"{script} does not start; see above")
        yield said
        servers.stdin.close()
