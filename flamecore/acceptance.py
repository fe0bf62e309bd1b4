"""What of its state a job may lose, because somebody has said so: `flamestream plan --accept`, `flamestream upgrade`.

The word is a blob beside the state. It holds for one change: of this state, to a flow with these facts and types. The
run that makes the change writes a snapshot without what is lost before it does anything else, and takes the blob away.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import xxhash

from flamecore.codec import Codec
from flamecore.errors import CodecError, CorruptError
from flamecore.facts import state_facts
from flamecore.fitting import in_types
from flamecore.graph import Graph, payload_types
from flamecore.snapshot import Manifest, seal, unseal
from flamecore.store import Store

ACCEPTED: Final = "accepted/"
"""What the names of such blobs begin with."""


class Loss(NamedTuple):
    """What may be lost.

    Attributes:
        operations: For each operation whose state is dropped, the facts that were stored of it.
        fronts: (source, partition name) of what is not read on.
    """

    operations: dict[str, dict[str, Any]]
    fronts: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.operations or self.fronts)

    def taken_from(self, manifest: Manifest) -> Manifest:
        """What is left of a snapshot."""
        gone = [name for name, facts in self.operations.items() if manifest.flow.get(name) == facts]
        fronts = tuple(
            front._replace(ended=front.ended or (front.source, front.partition_name) in self.fronts)
            for front in manifest.fronts
        )
        return (manifest.without(gone) if gone else manifest)._replace(fronts=fronts)


def accepted_blob(identity: str, graph: Graph) -> str:
    """Name of the blob that accepts a loss of that state, for that graph."""
    types = sorted({in_types(hint) for hint in payload_types(graph)})
    facts = json.dumps([identity, state_facts(graph), types], sort_keys=True)
    return f"{ACCEPTED}{xxhash.xxh3_128_hexdigest(facts.encode())}"


async def accept(store: Store, identity: str, graph: Graph, loss: Loss) -> str:
    """Write down that this may be lost. Returns the name of the blob.

    Raises:
        StoreError: It cannot be written.
    """
    name = accepted_blob(identity, graph)
    data = seal(_codec.encode(loss))
    if not await store.create(name, data):  # there is one, of another loss perhaps
        await store.delete([name])
        await store.create(name, data)
    return name


async def accepted(store: Store, identity: str, graph: Graph) -> Loss:
    """What may be lost; nothing where nobody has said anything.

    Raises:
        CorruptError: The blob is damaged.
    """
    name = accepted_blob(identity, graph)
    blob = await store.read(name)
    if blob is None:
        return Loss({})
    try:
        loss = _codec.decode(unseal(blob, name))
    except CodecError as error:
        raise CorruptError(f"blob {name} cannot be used: {error.what}", store=store.name, blob=name) from error
    if not isinstance(loss, Loss):
        raise CorruptError(f"blob {name} holds a {type(loss).__name__}", store=store.name, blob=name)
    return loss


_codec: Final = Codec((Loss,))
