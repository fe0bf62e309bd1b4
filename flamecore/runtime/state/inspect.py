"""Inspection of a job's state: while the job runs, after a crash, between runs.

A running job keeps taking and deleting snapshots, so a snapshot may be gone while it is read: readers then scan again,
and find a newer one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from flamecore.abc.store import Store
from flamecore.errors import CorruptError, JobError
from flamecore.model.drift import Drift
from flamecore.model.graph import Graph
from flamecore.model.vertices import Grouping, payloads_of
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.state.accepted_loss import BESIDE
from flamecore.runtime.state.format import Binding, Manifest, epoch_blob, unseal
from flamecore.runtime.state.journal import decode_journal
from flamecore.runtime.state.restore import load_state
from flamecore.runtime.state.scan import StoreContents, expected_journals, lost_journals, scan
from flamecore.runtime.state.schema import groups_function
from flamecore.suggest import suggestion

T = TypeVar("T")

_TRIES: Final = 100

_WITHOUT_FLOW: Final[Mapping[str, Callable[[Any], object]]] = {
    Drift.kind: lambda stored: stored,
    Grouping.kind: payloads_of,
}
"""Functions that show the state of operations of the core, which need no setting of the vertex, by kind."""


class Damage(NamedTuple):
    """A blob of a state that cannot be used."""

    blob: str
    what: str


class Verdict(NamedTuple):
    """The result of a verification.

    Attributes:
        snapshots: Snapshots that count, newest first, each with its damaged blobs.
        damaged: Other damaged blobs.
        beginning: Whether rollback to the beginning is possible: nothing has been deleted yet.
        journals: Number of journals that count; every rollback needs them.
    """

    snapshots: tuple[tuple[Manifest, tuple[Damage, ...]], ...]
    damaged: tuple[Damage, ...]
    beginning: bool
    journals: int

    @property
    def sound(self) -> bool:
        """Return whether nothing is damaged."""
        return not self.damaged and not any(damaged for _, damaged in self.snapshots)

    @property
    def startable(self) -> bool:
        """Return whether a run could continue from this state or the beginning."""
        journals = any(blob.startswith("journal/") for blob, _ in self.damaged)
        return not journals and (self.beginning or self.goes_on is not None)

    @property
    def goes_on(self) -> Manifest | None:
        """Return the snapshot that a run would continue from; None: the beginning, if any."""
        return next((manifest for manifest, damaged in self.snapshots if not damaged), None)


async def verify(store: Store) -> Verdict:
    """Read every blob that counts; check its seal and the digests of its references.

    Raises:
        StoreError: The store fails.
        CorruptError: The record of the last epoch is damaged, so it is not known which blobs count.
    """
    known: dict[tuple[str, Binding], str] = {}  # blobs are written once, so each is read once

    async def check(blob: str, expected: Binding, read: Callable[[bytes | None, str, Binding], object]) -> str:
        if (blob, expected) not in known:
            try:
                read(await store.read(blob), blob, expected)
                known[blob, expected] = ""
            except CorruptError as error:
                known[blob, expected] = error.what
        return known[blob, expected]

    async def judge(contents: StoreContents) -> Verdict:
        snapshots = []
        for manifest in contents.snapshots:
            parts = [(part.blob, Binding(manifest.identity, digest=part.digest)) for part in manifest.parts]
            damaged = [Damage(blob, what) for blob, where in parts if (what := await check(blob, where, unseal))]
            snapshots.append((manifest, tuple(damaged)))
        oldest = contents.snapshots[-1] if contents.snapshots and not contents.beginning else None
        journals = expected_journals(contents)
        others = [
            Damage(error.blob, error.what) for error in (*contents.damaged, *lost_journals(store, contents, oldest))
        ]
        others += [Damage(blob, what) for blob, where in journals if (what := await check(blob, where, decode_journal))]
        return Verdict(tuple(snapshots), tuple(others), contents.beginning, len(contents.journals))

    for _ in range(_TRIES):
        verdict = await judge(await scan(store))
        # A valid blob remains valid, since blobs are written once. An invalid one is read again: it may have been
        # deleted meanwhile.
        known = {blob: what for blob, what in known.items() if not what}
        if verdict.sound or not await _forgotten(store, verdict):
            break
    return verdict


async def _forgotten(store: Store, verdict: Verdict) -> bool:
    """Return whether the job's snapshots have changed since the verification.

    Blobs that seem damaged may then be of a snapshot that it has deleted.
    """
    contents = await scan(store)
    return [manifest.blob for manifest in contents.snapshots] != [manifest.blob for manifest, _ in verdict.snapshots]


async def newest(store: Store, act: Callable[[Manifest], Awaitable[T]]) -> T:
    """Call `act` with the newest snapshot; retry if the job deletes it meanwhile.

    Raises:
        JobError: There is no snapshot.
        CorruptError: The snapshot is damaged.
        StoreError: The store fails.
    """
    for _ in range(_TRIES):
        contents = await scan(store)
        if not contents.snapshots:
            raise none_yet(store, contents)
        manifest = contents.snapshots[0]
        try:
            return await act(manifest)
        except CorruptError as error:
            # While the manifest is there, the job has not deleted the snapshot: the damage is real.
            if await store.read(manifest.blob) is not None:
                error.add_note("What is damaged, and what would be gone back to: flamestream snapshot verify")
                raise
    raise JobError("snapshots are forgotten faster than they can be read", hint="Raise state.interval_s.")


def none_yet(store: Store, contents: StoreContents) -> JobError:
    """Return the error of a store without snapshots."""
    if contents.last is None:
        what = f"store {store.name!r} holds nothing of job {store.context.job!r}"
        return JobError(what, hint="Are the path under [state] and the job's name those that it ran with?")
    return JobError(
        f"job {store.context.job!r} has taken no snapshot yet, in {len(contents.epochs)} epochs",
        hint="One is taken every state.interval_s, once there is something new.",
    )


class Value(NamedTuple):
    """The state of an operation for one key.

    Attributes:
        key: The stored key; None if there is none.
        value: Its state, as `flamecore.model.vertices.Vertex.state_shown` returns it.
        found: Whether there is any.
        snapshot: The snapshot that was searched.
    """

    key: object
    value: object
    found: bool
    snapshot: Manifest


async def value_of(
    store: Store, codec: Codec, operation: str, keys: Iterable[object], graph: Graph | None = None
) -> Value:
    """Look up one key in the newest snapshot.

    Reads only parts with its key group, and only sections of the operation.

    Args:
        store: The open store.
        codec: Codec with the flow's types.
        operation: Name of the vertex.
        keys: Candidates for the key; the first stored one is looked up.
        graph: The flow's graph, which knows the places of keys.

    Raises:
        JobError: There is no snapshot, or no such operation in it; or only the flow knows where its keys are, or what
            its state is.
        CodecError: The value is of a class unknown to the codec.
        CorruptError: A part is damaged.
    """
    candidates = list(keys)

    async def find(manifest: Manifest) -> Value:
        facts: Mapping[str, object] | None = manifest.flow.get(operation)
        if facts is None:
            kept = ", ".join(sorted(manifest.flow)) or "nothing"
            raise JobError(
                f"the state has nothing of an operation {operation!r}; there is: {kept}",
                hint=suggestion(operation, manifest.flow),
            )
        there = graph.vertices if graph is not None else ()
        vertex = next((one for one in there if one.name == operation and one.keeps_state), None)
        groups_of = groups_function(facts, vertex)
        if groups_of is None:
            raise JobError(
                f"the state of {operation!r} is stored by the places of its keys, which a function of the flow returns",
                hint="Name the flow, with its key_by(…, place=…): --app module:name.",
            )
        shown = vertex.state_shown if vertex is not None else _WITHOUT_FLOW.get(str(facts["kind"]))
        if shown is None:
            raise JobError(
                f"{operation!r} is a {facts['kind']}: only the flow knows the parts of its state by their names",
                hint="Name the flow: --app module:name, or the job file.",
            )
        for key in candidates:
            try:
                (group,) = groups_of([key])
            except (TypeError, ValueError, IndexError):
                continue  # it cannot be a key of this operation
            held = await load_state(store, codec, manifest, [group], {operation: groups_of})
            for name, value in held[operation].items():
                if type(name) is type(key) and name == key:
                    return Value(name, shown(value), True, manifest)
        return Value(None, None, False, manifest)

    return await newest(store, find)


async def prune(store: Store, *, pretend: bool = False) -> list[str]:
    """Delete garbage of faults and earlier runs, which no rollback needs.

    Leaves all blobs of the last epoch alone, whether it is active or not: it may be writing. A run that begins
    meanwhile continues from blobs that are kept.

    Args:
        store: The open store.
        pretend: Whether to only list the blobs, and delete none.

    Returns:
        Names of the blobs.

    Raises:
        StoreError: The store fails.
        CorruptError: The record of the last epoch is damaged, so it is not known which blobs count.
    """
    contents = await scan(store)
    if contents.last is None:
        return []
    needed = {*contents.journals, epoch_blob(contents.last.epoch - 1)}
    if not contents.snapshots:  # the start of each front is in the records of all epochs
        needed |= {epoch_blob(record.epoch) for record in contents.epochs}
    for manifest in contents.snapshots:
        needed |= {manifest.blob, *(part.blob for part in manifest.parts)}
    # Numbers of fixed width compare as texts.
    own = f"{contents.last.epoch:08d}"
    names = [name for name in await store.names() if not name.startswith(BESIDE)]
    left = [name for name in names if name.split("/")[1] < own and name not in needed]
    if left and not pretend:
        await store.delete(left)
    return left
