"""A job's state, looked at from outside: while the job runs, after a crash, between runs.

A running job goes on taking snapshots and forgetting them, so what was there a moment ago may be gone: whoever reads
looks again then, and finds what has come instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from flamecore.acceptance import ACCEPTED
from flamecore.codec import Codec
from flamecore.errors import CorruptError, JobError
from flamecore.facts import groups_function
from flamecore.found import Found, look
from flamecore.names import suggestion
from flamecore.recovery import decode_journal, load_state
from flamecore.snapshot import Manifest, epoch_blob, unseal
from flamecore.store import Store

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
    """

    snapshots: tuple[tuple[Manifest, tuple[Damage, ...]], ...]
    damaged: tuple[Damage, ...]
    beginning: bool
    journals: int

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
    """Read every blob that counts, and hold it against its checksum.

    Raises:
        StoreError: The store fails.
        CorruptError: The record of the last epoch is damaged, so nobody knows what counts.
    """
    known: dict[str, str] = {}  # blobs are written once, so what was read need not be read again

    async def check(blob: str, read: Callable[[bytes | None, str], Any]) -> str:
        if blob not in known:
            try:
                read(await store.read(blob), blob)
                known[blob] = ""
            except CorruptError as error:
                known[blob] = error.what
        return known[blob]

    async def judge(found: Found) -> Verdict:
        snapshots = []
        for manifest in found.snapshots:
            blobs = [part.blob for part in manifest.parts]
            damaged = [Damage(blob, what) for blob in blobs if (what := await check(blob, unseal))]
            snapshots.append((manifest, tuple(damaged)))
        others = [Damage(error.blob, error.what) for error in found.damaged]
        others += [Damage(blob, what) for blob in found.journals if (what := await check(blob, decode_journal))]
        return Verdict(tuple(snapshots), tuple(others), found.beginning, len(found.journals))

    for _ in range(_TRIES):
        verdict = await judge(await look(store))
        known = {blob: what for blob, what in known.items() if not what}
        if verdict.sound or not await _forgotten(store, verdict):
            break
    return verdict


async def _forgotten(store: Store, verdict: Verdict) -> bool:
    """Whether what seems to be damaged belongs to what the job has forgotten meanwhile."""
    found = await look(store)
    counting = {manifest.blob for manifest in found.snapshots}
    return any(manifest.blob not in counting for manifest, damaged in verdict.snapshots if damaged) or any(
        blob.startswith("journal/") and blob not in found.journals for blob, _ in verdict.damaged
    )


async def newest(store: Store, act: Callable[[Manifest], Awaitable[T]]) -> T:
    """Do something with the newest snapshot; again with another one, if the job forgets it meanwhile.

    Raises:
        JobError: There is none.
        CorruptError: It is damaged.
        StoreError: The store fails.
    """
    for _ in range(_TRIES):
        found = await look(store)
        if not found.snapshots:
            raise none_yet(store, found)
        manifest = found.snapshots[0]
        try:
            return await act(manifest)
        except CorruptError as error:
            if await store.read(manifest.blob) is not None:
                error.add_note("What is damaged, and what would be gone back to: flamestream snapshot verify")
                raise
    raise JobError("snapshots are forgotten faster than they can be read", hint="Raise state.interval_s.")


def none_yet(store: Store, found: Found) -> JobError:
    """The error where there is no snapshot."""
    if found.last is None:
        what = f"store {store.name!r} holds nothing of job {store.context.job!r}"
        return JobError(what, hint="Are the path under [state] and the job's name those that it ran with?")
    return JobError(
        f"job {store.context.job!r} has taken no snapshot yet, in {len(found.epochs)} epochs",
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
    found = await look(store)
    if found.last is None:
        return []
    needed = {*found.journals, epoch_blob(found.last.epoch - 1)}
    if not found.snapshots:  # where fronts began is told by every epoch so far
        needed |= {epoch_blob(record.epoch) for record in found.epochs}
    for manifest in found.snapshots:
        needed |= {manifest.blob, *(part.blob for part in manifest.parts)}
    own = f"{found.last.epoch:08d}"
    names = [name for name in await store.names() if not name.startswith(ACCEPTED)]
    left = [name for name in names if name.split("/")[1] < own and name not in needed]
    if left and not pretend:
        await store.delete(left)
    return left
