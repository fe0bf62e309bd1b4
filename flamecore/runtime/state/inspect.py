"""A job's state, looked at from outside: while the job runs, after a crash, between runs.

A running job goes on taking snapshots and forgetting them, so what was there a moment ago may be gone: whoever reads
looks again then, and finds what has come instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from flamecore.abc.store import Store
from flamecore.errors import CorruptError, JobError
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


class Damage(NamedTuple):
    """Something of a state that cannot be used."""

    blob: str
    what: str


class Verdict(NamedTuple):
    """How sound a state is.

    Attributes:
        snapshots: Those that count, newest first, each with what is damaged of it.
        damaged: What else is.
        beginning: The beginning could be gone back to as well: nothing has been forgotten yet.
        journals: How many journals count; they are needed whatever is gone back to.
        unbound: Blobs that count and do not say where they belong, because they were written in format 2: one that was
            exchanged for another would not be found.
    """

    snapshots: tuple[tuple[Manifest, tuple[Damage, ...]], ...]
    damaged: tuple[Damage, ...]
    beginning: bool
    journals: int
    unbound: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damaged and not any(damaged for _, damaged in self.snapshots)

    @property
    def startable(self) -> bool:
        """Whether a run would go on from anything."""
        journals = any(blob.startswith("journal/") for blob, _ in self.damaged)
        return not journals and (self.beginning or self.goes_on is not None)

    @property
    def goes_on(self) -> Manifest | None:
        """The snapshot that a run would go on from; None: from the beginning, if at all."""
        return next((manifest for manifest, damaged in self.snapshots if not damaged), None)


async def verify(store: Store) -> Verdict:
    """Read every blob that counts, and hold it against its seal, and against what the blobs that refer to it say.

    Raises:
        StoreError: The store fails.
        CorruptError: The record of the last epoch is damaged, so nobody knows what counts.
    """
    known: dict[tuple[str, Binding], str] = {}  # blobs are written once, so what was read need not be read again

    async def check(blob: str, expected: Binding, read: Callable[[bytes | None, str, Binding], Any]) -> str:
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
        return Verdict(tuple(snapshots), tuple(others), contents.beginning, len(contents.journals), contents.unbound)

    for _ in range(_TRIES):
        verdict = await judge(await scan(store))
        known = {blob: what for blob, what in known.items() if not what}
        if verdict.sound or not await _forgotten(store, verdict):
            break
    return verdict


async def _forgotten(store: Store, verdict: Verdict) -> bool:
    """Whether the job has taken a snapshot meanwhile, and what seems to be damaged may be what it has forgotten."""
    contents = await scan(store)
    return [manifest.blob for manifest in contents.snapshots] != [manifest.blob for manifest, _ in verdict.snapshots]


async def newest(store: Store, act: Callable[[Manifest], Awaitable[T]]) -> T:
    """Do something with the newest snapshot; again with another one, if the job forgets it meanwhile.

    Raises:
        JobError: There is none.
        CorruptError: It is damaged.
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
            if await store.read(manifest.blob) is not None:
                error.add_note("What is damaged, and what would be gone back to: flamestream snapshot verify")
                raise
    raise JobError("snapshots are forgotten faster than they can be read", hint="Raise state.interval_s.")


def none_yet(store: Store, contents: StoreContents) -> JobError:
    """The error where there is no snapshot."""
    if contents.last is None:
        what = f"store {store.name!r} holds nothing of job {store.context.job!r}"
        return JobError(what, hint="Are the path under [state] and the job's name those that it ran with?")
    return JobError(
        f"job {store.context.job!r} has taken no snapshot yet, in {len(contents.epochs)} epochs",
        hint="One is taken every state.interval_s, once there is something new.",
    )


class Value(NamedTuple):
    """What an operation keeps for one key.

    Attributes:
        key: As it is stored; None if nothing is.
        value: Its state; for a grouping the payloads that the next windows begin with, oldest first.
        found: Whether there is any.
        snapshot: Where it was found.
    """

    key: Any
    value: Any
    found: bool
    snapshot: Manifest


async def value_of(store: Store, codec: Codec, operation: str, keys: Iterable[Any]) -> Value:
    """Look up one key in the newest snapshot. Only parts, and sections of them, with its key group are read.

    Args:
        store: Open.
        codec: Knows the flow's types.
        operation: Name of the vertex.
        keys: What the key may be; the first that is stored is meant.

    Raises:
        JobError: There is no snapshot, or no such operation in it.
        CodecError: The value is of a class that the codec does not know.
        CorruptError: A part is damaged.
    """
    candidates = list(keys)

    async def find(manifest: Manifest) -> Value:
        facts: Mapping[str, Any] | None = manifest.flow.get(operation)
        if facts is None:
            kept = ", ".join(sorted(manifest.flow)) or "nothing"
            raise JobError(
                f"the state has nothing of an operation {operation!r}; there is: {kept}",
                hint=suggestion(operation, manifest.flow),
            )
        groups_of = groups_function(facts)
        for key in candidates:
            try:
                (group,) = groups_of([key])
            except (TypeError, ValueError, IndexError):
                continue  # it cannot be a key of this operation
            held = await load_state(store, codec, manifest, [group], {operation: groups_of})
            for name, value in held[operation].items():
                if type(name) is type(key) and name == key:
                    shown = tuple(entry[-1] for entry in value) if facts["kind"] == "grouping" else value
                    return Value(name, shown, True, manifest)
        return Value(None, None, False, manifest)

    return await newest(store, find)


async def prune(store: Store, *, pretend: bool = False) -> list[str]:
    """Delete what faults and earlier runs have left and nothing goes back to.

    What belongs to the last epoch is left alone, whether it is at work or not: it may just be writing. A run that
    begins meanwhile goes on from what this one keeps.

    Args:
        store: Open.
        pretend: Only say what would go.

    Returns:
        Names of the blobs.

    Raises:
        StoreError: The store fails.
        CorruptError: The record of the last epoch is damaged, so nobody knows what counts.
    """
    contents = await scan(store)
    if contents.last is None:
        return []
    needed = {*contents.journals, epoch_blob(contents.last.epoch - 1)}
    if not contents.snapshots:  # where fronts began is told by every epoch so far
        needed |= {epoch_blob(record.epoch) for record in contents.epochs}
    for manifest in contents.snapshots:
        needed |= {manifest.blob, *(part.blob for part in manifest.parts)}
    own = f"{contents.last.epoch:08d}"
    names = [name for name in await store.names() if not name.startswith(BESIDE)]
    left = [name for name in names if name.split("/")[1] < own and name not in needed]
    if left and not pretend:
        await store.delete(left)
    return left
