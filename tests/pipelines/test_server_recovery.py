"""The NATS server of a job, for its messages and its state, is killed and comes back, or comes back too late."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import wait_until_gone
from words import Words, ended, wait_for

if TYPE_CHECKING:
    from flamestream_nats.testing import NatsServer

pytestmark = pytest.mark.nats

STORES = {"nats": {"state__use": "nats", "state__path": None}, "sqlite": {}}


@pytest.fixture
def server() -> Iterator[NatsServer]:
    from flamestream_nats.testing import NatsServer

    with NatsServer(jetstream=True) as made:
        yield made


@pytest.mark.parametrize("store", STORES)
def test_a_job_goes_on_when_the_server_is_back(tmp_path: Path, server: NatsServer, store: str) -> None:
    words = Words(tmp_path, ["transport.use=nats", f'transport.nats.servers=["{server.url}"]'])
    with words.running(**STORES[store]) as run:
        for _ in range(2):
            before = words.delivered()
            wait_for(lambda before=before: words.delivered() > before + 200, run)  # type: ignore[misc]
            server.kill()
            server.start()
        assert words.finish(run) == 0, run.said()
    words.check()


@pytest.mark.parametrize("store", STORES)
def test_a_job_resumes_when_the_server_is_back_too_late(tmp_path: Path, server: NatsServer, store: str) -> None:
    over = ["transport.use=nats", f'transport.nats.servers=["{server.url}"]', "transport.nats.reconnect_timeout_s=1"]
    words = Words(tmp_path, over)
    with words.running(**STORES[store], deploy__start_timeout_s=5) as run:
        wait_for(lambda: words.delivered() > 200, run)
        server.kill()
        assert ended(run) == 1, run.said()
        assert not wait_until_gone(run.met)
    error = run.said()[run.said().rindex("\nerror: ") :]
    assert "has been away for 1 s" in error, error
    assert "Traceback" not in run.said(), run.said()
    server.start()
    with words.running(**STORES[store]) as run:
        assert words.finish(run) == 0, run.said()
    words.check()


def test_a_job_survives_a_worker_that_dies_while_the_server_is_away(tmp_path: Path, server: NatsServer) -> None:
    """Those that are started in its place find no server, again and again; it comes back before the job gives up."""
    words = Words(tmp_path, ["transport.use=nats", f'transport.nats.servers=["{server.url}"]'])
    with words.running(deploy__stop_timeout_s=1) as run:
        wait_for(lambda: words.delivered() > 200, run)
        server.kill()
        os.kill(run.nodes()[0].pid, signal.SIGKILL)
        wait_for(lambda: run.said().count("job.faulted") > 3, run)
        server.start()
        assert words.finish(run) == 0, run.said()
    words.check()
