"""Tests of the end of a session with the control."""

from __future__ import annotations

import asyncio

import pytest

from flamecore.errors import FlameError, JobError, PeerGoneError
from flamecore.model.messages import CONTROL
from flamecore.runtime.cluster.session import ControlSession


def ended(*errors: FlameError, welcome: bool = True) -> BaseException | None:
    """End a session with errors; return what it has ended with."""

    async def end() -> BaseException | None:
        session = ControlSession(
            {"node": "w0", "job": "words", "job_name": "words", "control": "supervisor-1", "role": "worker"}
        )
        session.over, session.welcome = asyncio.get_running_loop().create_future(), welcome
        for error in errors:
            session.end(error)
        return session.over.exception()

    return asyncio.run(end())


@pytest.mark.parametrize("peer", [CONTROL, "supervisor-1"])
@pytest.mark.parametrize(("welcome", "any_more"), [(False, ""), (True, " any more")])
def test_a_lost_control_is_named_by_its_address_or_its_location(peer: str, welcome: bool, any_more: str) -> None:
    gone = PeerGoneError("supervisor-1 is gone: it is silent", address="w0", peer=peer)
    error = ended(gone, welcome=welcome)
    assert isinstance(error, PeerGoneError)
    assert error.what == f"job 'words' has no supervisor{any_more}: {gone.what}"


def test_the_loss_of_another_process_is_told_as_it_is() -> None:
    gone = PeerGoneError("w1 is gone: it is silent", address="w0", peer="w1")
    assert ended(gone) is gone


def test_the_first_error_counts() -> None:
    first = JobError("first")
    assert ended(first, JobError("second")) is first


def test_a_process_without_parts_in_an_epoch_is_no_peer_in_it() -> None:
    """Its loss is no fault of the epoch, and no connection waits for it."""
    session = ControlSession(
        {"node": "w0", "job": "words", "job_name": "words", "control": "at-control", "role": "worker"}
    )
    session.learn([("worker/0", "at-w0"), ("worker/1", "at-w1"), ("acker/0", "at-control")])
    assert session.concerns("at-w1")
    session.learn([("worker/0", "at-w0"), ("acker/0", "at-control")])
    assert not session.concerns("at-w1")
    assert session.concerns("at-w0")
    assert not session.concerns("at-control")
    assert session.locations[CONTROL] == "at-control"
