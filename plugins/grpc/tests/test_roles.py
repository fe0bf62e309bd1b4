"""Roles: each process sends only as the role that its certificate names may."""

from __future__ import annotations

import pytest

from flamecore.errors import FrameError
from flamecore.toolkit.frames import Frame
from flamecore.toolkit.links.budget import Budget
from flamecore.toolkit.links.incoming import Peer
from flamestream_grpc import Options
from flamestream_grpc.safety import roles_of

CONTROL, REAR, WORKER = "job", "rear/counts@1.1.ab", "worker/0@1.1.ab"
MAY = {
    ("client", "client/x", CONTROL),
    *((role, sender, CONTROL) for role in ("operator",) for sender in ("client/x", "operator/x")),
    *(("acker", sender, to) for sender in ("node/x", "acker/0@1") for to in (CONTROL, REAR, WORKER)),
    *(("worker", sender, to) for sender in ("node/x", "acker/0@1", "worker/0@1") for to in (CONTROL, REAR, WORKER)),
}
SENDERS = ("client/x", "operator/x", "node/x", "worker/0@1", "acker/0@1", "job", "rear/counts@1", "clients/x")


def may_send(names: list[str], sender: str, receiver: str) -> bool:
    shown = {"peer_uri": [f"urn:flamestream:{name}".encode() for name in names]}
    peer = Peer("there", "instance", Options(), Budget(1), roles_of(shown))
    try:
        peer.channel(Frame(sender, receiver, 1, b""))
    except FrameError as error:
        return not (error.reason == "role" and sender in error.what and receiver in error.what)
    return True


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("role", ["client", "operator", "acker", "worker", "supervisor", "nats", "unheard"])
def test_a_role_sends_from_its_addresses_to_its_receivers(role: str, sender: str) -> None:
    """A client or an operator sends to the control only: to no worker, and to no rear."""
    for receiver in (CONTROL, REAR, WORKER):
        assert may_send([role], sender, receiver) == (role == "supervisor" or (role, sender, receiver) in MAY)


@pytest.mark.parametrize("sender", SENDERS)
def test_a_certificate_of_several_roles_may_do_what_one_of_them_may(sender: str) -> None:
    for receiver in (CONTROL, REAR):
        one = any(may_send([role], sender, receiver) for role in ("client", "acker"))
        assert may_send(["client", "acker"], sender, receiver) == one


def test_a_certificate_without_a_role_may_do_anything() -> None:
    assert may_send([], "operator/x", CONTROL)
    assert may_send([], "worker/0@1", REAR)
