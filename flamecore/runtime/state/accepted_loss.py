"""What of its state a job may lose, because somebody has said so: `flamestream plan --accept`, `flamestream upgrade`.

The word is a blob beside the state. It holds for one change: of this state, to a flow with these facts and types. The
run that makes the change writes a snapshot without what is lost before it does anything else, and takes the blob away.

Times that sinks hold and no journal accounts for can only be found by a run, which opens the sinks. The run that is
refused for them writes them down (`SinksAhead`), so that they can be accepted like any other loss.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, TypeVar

import xxhash

from flamecore.abc.store import Store
from flamecore.errors import CodecError, CorruptError
from flamecore.model.graph import Graph, payload_types
from flamecore.model.types import type_text
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.wire import STORED
from flamecore.runtime.state.format import Binding, Manifest, seal, unseal
from flamecore.runtime.state.holder import PREFIX
from flamecore.runtime.state.schema import NEW, state_schema

W = TypeVar("W", "AcceptedLoss", "SinksAhead")

ACCEPTED: Final = "accepted/"
"""What the names of such blobs begin with."""

_AHEAD: Final = "ahead/"

BESIDE: Final = (ACCEPTED, _AHEAD, PREFIX)
"""What the names of blobs begin with that are of no epoch."""


class AcceptedLoss(NamedTuple):
    """What may be lost.

    Attributes:
        operations: For each operation whose state is dropped, the facts that were stored of it.
        fronts: (source, partition name) of what is not read on.
        sinks: (sink, the time up to which it holds its outputs) of sinks that are ahead of the journals: some of what
            they hold may come again under other times.
    """

    operations: dict[str, dict[str, Any]]
    fronts: tuple[tuple[str, str], ...] = ()
    sinks: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.operations or self.fronts or self.sinks)

    def covers(self, sink: str, time: int) -> bool:
        """Return whether a sink may hold its outputs up to a time that nothing accounts for."""
        return any(name == sink and time <= accepted_time for name, accepted_time in self.sinks)

    def taken_from(self, manifest: Manifest) -> Manifest:
        """What is left of a snapshot."""
        gone = [name for name, facts in self.operations.items() if manifest.flow.get(name) == facts]
        fronts = tuple(
            front._replace(ended=front.ended or (front.source, front.partition_name) in self.fronts)
            for front in manifest.fronts
        )
        return (manifest.without(gone) if gone else manifest)._replace(fronts=fronts)


class SinksAhead(NamedTuple):
    """Sinks that a run has found ahead of what the journals account for.

    Attributes:
        sinks: (sink, the time up to which it holds its outputs).
        accounted: The time up to which the state accounts for outputs.
    """

    sinks: tuple[tuple[str, int], ...]
    accounted: int


def accepted_blobs(identity: str, graph: Graph) -> tuple[str, str]:
    """Return the name of the blob that accepts a loss of that state, for that graph; and its name in earlier versions,
    which knew fewer facts of a graph."""
    types = sorted({type_text(hint) for hint in payload_types(graph)})
    schema = state_schema(graph)
    fewer = {name: {key: fact for key, fact in facts.items() if key not in NEW} for name, facts in schema.items()}
    digests = (json.dumps([identity, facts, types], sort_keys=True).encode() for facts in (schema, fewer))
    now, earlier = (f"{ACCEPTED}{xxhash.xxh3_128_hexdigest(digest)}" for digest in digests)
    return now, earlier


async def accept(store: Store, identity: str, graph: Graph, loss: AcceptedLoss) -> str:
    """Write down that this may be lost. Returns the name of the blob.

    Raises:
        StoreError: It cannot be written.
    """
    name, _ = accepted_blobs(identity, graph)
    await _replace(store, name, seal(_codec.encode(loss, STORED), name, Binding(identity)))
    return name


async def _replace(store: Store, name: str, data: bytes) -> None:
    if not await store.create(name, data):  # there is one, of another loss perhaps
        await store.delete([name])
        await store.create(name, data)


async def accepted(store: Store, identity: str, graph: Graph) -> AcceptedLoss:
    """What may be lost; nothing where nobody has said anything.

    Raises:
        CorruptError: The blob is damaged.
    """
    for name in accepted_blobs(identity, graph):
        if (loss := await _read(store, name, identity, AcceptedLoss)) is not None:
            return loss
    return AcceptedLoss({})


def ahead_blob(identity: str) -> str:
    """Name of the blob that tells of sinks that are ahead of a state."""
    return f"{_AHEAD}{identity}"


async def note_ahead(store: Store, identity: str, ahead: SinksAhead) -> None:
    """Write down which sinks are ahead of a state.

    Raises:
        StoreError: It cannot be written.
    """
    name = ahead_blob(identity)
    await _replace(store, name, seal(_codec.encode(ahead, STORED), name, Binding(identity)))


async def noted_ahead(store: Store, identity: str) -> SinksAhead | None:
    """Return which sinks the last run has found ahead of a state; None: none.

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


_codec: Final = Codec(own={AcceptedLoss: ("AcceptedLoss", "flamecore.acceptance:Loss"), SinksAhead: ("SinksAhead",)})
