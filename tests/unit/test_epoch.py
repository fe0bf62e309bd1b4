"""The supervisor's part of an epoch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import flamecore as fc
from flamecore.epoch import Epoch
from flamecore.errors import SinkError
from flamecore.meta import FrontId
from flamecore.observe import Observers
from flamecore.plan import Plan


class Failing:
    """Snapshots that cannot be taken."""

    async def commit(self) -> None:
        raise SinkError("the disk is full", sink="out")


def test_a_snapshot_that_fails_ends_the_epoch_whoever_has_asked_for_it() -> None:
    """Also a client who wants something changed: what was cut for it would be in no snapshot."""
    flow = fc.Flow("counts")
    flow.source("lines", str).key_by(lambda line: line).count().sink("out")
    plan = Plan(flow.graph(), 1, (FrontId("lines", 0),), partitions=("",))

    async def ask() -> None:
        nobody: Any = None
        epoch = Epoch("e", plan, nobody, nobody, Observers(()), failing=lambda: None, taken=lambda _: None)
        epoch._commits = Failing()  # type: ignore[assignment]
        with pytest.raises(SinkError):
            await epoch.commit()
        with pytest.raises(SinkError, match="the disk is full"):
            await epoch.outcome

    asyncio.run(ask())
