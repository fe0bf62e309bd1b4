"""State that a job may lose, because a user has accepted the loss.

`flamestream plan --accept` and `flamestream upgrade` accept. The acceptance is a blob beside the state. It holds for
one change: of this state, to a flow with these facts and types. The run that makes the change first writes a snapshot
without the lost state, then deletes the blob.

Only a run can find sinks with times beyond every journal, because it opens the sinks. A run refused for such sinks
records them (`SinksAhead`), so that they can be accepted like any other loss.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple, TypeVar

import xxhash

from flamecore.abc.store import Store
from flamecore.errors import CodecError, CorruptError
from flamecore.model.graph import Graph, payload_types
from flamecore.model.types import type_text
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.wire import STORED
from flamecore.runtime.state.format import Binding, Manifest, seal, unseal
from flamecore.runtime.state.holder import PREFIX
from flamecore.runtime.state.schema import state_schema

W = TypeVar("W", "AcceptedLoss", "SinksAhead")

ACCEPTED: Final = "accepted/"
"""Prefix of the names of acceptance blobs."""

_AHEAD: Final = "ahead/"

BESIDE: Final = (ACCEPTED, _AHEAD, PREFIX)
"""Prefixes of the names of blobs that belong to no epoch."""


class AcceptedLoss(NamedTuple):
    """An accepted loss.

    Attributes:
        operations: For each operation whose state is dropped, its stored facts.
        fronts: (source, partition name) of partitions that are not read further.
        sinks: (sink, the time up to which it holds its outputs) of sinks that are ahead of the journals: some of
            their outputs may come again under other times.
    """

    operations: dict[str, dict[str, object]]
    fronts: tuple[tuple[str, str], ...] = ()
    sinks: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.operations or self.fronts or self.sinks)

    def covers(self, sink: str, time: int) -> bool:
        """Return whether a sink may be ahead of the journals, up to `time`."""
        return any(name == sink and time <= accepted_time for name, accepted_time in self.sinks)

    def taken_from(self, manifest: Manifest) -> Manifest:
        """Return a snapshot without the accepted loss."""
        gone = [name for name, facts in self.operations.items() if manifest.flow.get(name) == facts]
        fronts = tuple(
            front._replace(ended=front.ended or (front.source, front.partition_name) in self.fronts)
            for front in manifest.fronts
        )
        return (manifest.without(gone) if gone else manifest)._replace(fronts=fronts)


class SinksAhead(NamedTuple):
    """Sinks that hold outputs beyond the times in the journals.

    Attributes:
        sinks: (sink, the time up to which it holds its outputs).
        accounted: The time up to which the state accounts for outputs.
    """

    sinks: tuple[tuple[str, int], ...]
    accounted: int


def accepted_blob(identity: str, graph: Graph) -> str:
    """Return the name of the acceptance of a loss, for a state and a graph."""
    types = sorted({type_text(hint) for hint in payload_types(graph)})
    # By all that the loss depends on: another state, or a flow that was changed again, finds no
    # acceptance.
    facts = json.dumps([identity, state_schema(graph), types], sort_keys=True).encode()
    return f"{ACCEPTED}{xxhash.xxh3_128_hexdigest(facts)}"


async def accept(store: Store, identity: str, graph: Graph, loss: AcceptedLoss) -> str:
    """Record that this may be lost; return the name of the blob.

    Raises:
        StoreError: The blob cannot be written.
    """
    name = accepted_blob(identity, graph)
    await _replace(store, name, seal(_codec.encode(loss, STORED), name, Binding(identity)))
    return name


async def _replace(store: Store, name: str, data: bytes) -> None:
    # Not atomic, and it need not be: a run that finds neither blob is refused, as before the acceptance.
    if not await store.create(name, data):  # one exists, perhaps of another loss
        await store.delete([name])
        await store.create(name, data)


async def accepted(store: Store, identity: str, graph: Graph) -> AcceptedLoss:
    """Return the accepted loss; an empty one if none was accepted.

    Raises:
        CorruptError: The blob is damaged.
    """
    return await _read(store, accepted_blob(identity, graph), identity, AcceptedLoss) or AcceptedLoss({})


def ahead_blob(identity: str) -> str:
    """Return the name of the blob that lists sinks ahead of a state."""
    return f"{_AHEAD}{identity}"


async def note_ahead(store: Store, identity: str, ahead: SinksAhead) -> None:
    """Record the sinks that are ahead of a state.

    Raises:
        StoreError: It cannot be written.
    """
    name = ahead_blob(identity)
    await _replace(store, name, seal(_codec.encode(ahead, STORED), name, Binding(identity)))


async def noted_ahead(store: Store, identity: str) -> SinksAhead | None:
    """Return the sinks that the last run has found ahead of a state, or None.

    Raises:
        CorruptError: The blob is damaged.
    """
    return await _read(store, ahead_blob(identity), identity, SinksAhead)


async def _read(store: Store, name: str, identity: str, kind: type[W]) -> W | None:
    blob = await store.read(name)
    if blob is None:
        return None
    try:
        word = _codec.decode(unseal(blob, name, Binding(identity)), STORED)
    except CodecError as error:
        raise CorruptError(f"blob {name} cannot be used: {error.what}", store=store.name, blob=name) from error
    if not isinstance(word, kind):
        raise CorruptError(f"blob {name} holds a {type(word).__name__}", store=store.name, blob=name)
    return word


_codec: Final = Codec(own=(AcceptedLoss, SinksAhead))
