"""Contents of the state at the end of any story: keys that are equal and differ, and states like the initial one.

It follows from the items alone: neither workers, nor snapshots, nor faults decide it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.abc.store import StoreContext
from flamecore.model.hashing import KEY_GROUPS, key_groups
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.operators import drift, ordered
from flamecore.runtime.operators.keyed_state import MOST_ENDED
from flamecore.runtime.state.restore import load_state
from flamecore.runtime.state.scan import scan
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.simulation.crashes import Crashes
from flamecore.testing.simulation.trouble import Trouble
from flamestream_stores.memory import Memory

ACKERS = {name: acker_named(name) for name in ("centralized", "local", "sharded")}
CODEC = Codec()
KEYS: list[Any] = [1, True, 1.0, 0.0, -0.0, 0, False, "x", (1, "a"), (True, "a")]
VALUES: list[Any] = [0, 0.0, -0.0, False, (0, 0.0), (0, -0.0), 7]


@pytest.fixture(autouse=True, params=[2, MOST_ENDED])
def most_ended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget keys that have ended at once, as in long runs, and not at all, as in short ones."""
    for module in (drift, ordered):
        monkeypatch.setattr(module, "MOST_ENDED", request.param)


def stored(disk: dict[str, bytes], operation: str) -> dict[str, str]:
    """Return keys and states of the newest snapshot as text."""

    async def load() -> Mapping[Any, Any]:
        store = Memory(None, StoreContext("job"), disk)
        manifest = (await scan(store)).snapshots[0]
        assert manifest.finished
        return (await load_state(store, CODEC, manifest, range(KEY_GROUPS), {operation: key_groups}))[operation]

    return {repr(key): repr(state) for key, state in asyncio.run(load()).items()}


def left_by(items: Sequence[tuple[Any, Any]], initial: Any) -> dict[str, str]:
    held: dict[Any, tuple[Any, Any]] = {}
    for key, state in items:
        first = held.pop(key, (key, None))[0]
        if CODEC.encode(state) != CODEC.encode(initial):
            held[key] = (first, state)
    return {repr(first): repr(state) for first, state in held.values()}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("faults", [0, 6])
@pytest.mark.parametrize("initial", VALUES, ids=repr)
def test_the_last_snapshot_has_what_the_items_leave(initial: Any, faults: int, workers: int) -> None:
    for seed in seeds(4):
        random = Random(f"first keys {seed}")
        items = [(random.choice(KEYS), random.choice(VALUES)) for _ in range(random.randint(1, 40))]
        flow = fc.Flow("last")
        keyed = flow.source("items", tuple).rebalance().map(lambda item: item).key_by(lambda item: item[0])
        keyed.fold(initial, lambda _, item: item[1], name="last").sink("out")
        story = Crashes(
            flow.graph(),
            {"items": items},
            seed=seed,
            ackers=ACKERS,
            trouble=Trouble(faults=faults, grows=False),
            workers=[workers],
        )
        story.play()
        assert stored(story.world.disk, "last") == left_by(items, initial), f"seed {seed}"
