"""A job in one process: what ends it, and what it says then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import FlameError, JobError, PeerGoneError
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.engine.epoch import Epoch
from flamecore.runtime.engine.job import AnyJob
from flamecore.runtime.launch import make_job
from flamecore.testing.simulation.virtual import run_virtually

pytestmark = pytest.mark.usefixtures("installed")


async def forever() -> AsyncIterator[str]:
    while True:
        yield "line"
        await asyncio.sleep(1)


def endless() -> AnyJob:
    flow = fc.Flow("endless")
    flow.source("lines", str).sink("out")
    out: list[Any] = []
    return make_job(make_config(from_program({})), flow, given={"lines": forever(), "out": out})


async def its_epoch(job: AnyJob) -> Epoch:
    while not job.begun:
        await asyncio.sleep(0.01)
    assert job.epoch is not None
    return job.epoch


async def ending(job: AnyJob, error: FlameError) -> None:
    """End a job with an error in its epoch."""
    running = asyncio.create_task(job.run())
    (await its_epoch(job)).fail(error)
    await running


def test_an_unreachable_part_ends_a_job_in_one_process_with_that_error() -> None:
    """There is no other epoch to go on in; the error and its cause are the part's own."""
    error = PeerGoneError("nobody is there", address="worker/0", peer="rear/out")
    error.__cause__ = OSError("a broken pipe")
    job = endless()
    with pytest.raises(PeerGoneError) as raised:
        run_virtually(ending(job, error))
    assert raised.value is error
    assert isinstance(raised.value.__cause__, OSError)
    assert not error.before_start


def test_the_first_error_without_remedy_counts() -> None:
    job, first = endless(), JobError("another run has taken the state")

    async def run() -> None:
        running = asyncio.create_task(job.run())
        await its_epoch(job)
        for error in (first, JobError("it is lost twice")):
            job._end(error)
        await running

    with pytest.raises(JobError) as raised:
        run_virtually(run())
    assert raised.value is first


def test_a_job_runs_once() -> None:
    async def run() -> None:
        job = endless()
        job.drain()
        assert (await job.run()).drained
        with pytest.raises(JobError, match="runs once"):
            await job.run()

    run_virtually(run())
