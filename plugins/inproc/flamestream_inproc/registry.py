"""Registry `supervisor`: entries in the supervisor's memory.

It is for jobs that one supervisor runs alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from flamecore.abc.hooks import hookimpl
from flamecore.abc.registry import Entry, JobRegistry, RegistryCapabilities, RegistryContext


@dataclass(slots=True)
class Held:
    """Entries by key, and the last revision given to any of them."""

    entries: dict[str, Entry] = field(default_factory=dict)
    revision: int = 0


class SupervisorRegistry(JobRegistry):
    """Entries in memory. Objects that are given one `Held` share its content."""

    name: ClassVar[str] = "supervisor"
    schemes: ClassVar[tuple[str, ...] | None] = ()

    def __init__(self, options: Any, context: RegistryContext, held: Held | None = None) -> None:
        super().__init__(options, context)
        self.held = held or Held()

    @property
    def capabilities(self) -> RegistryCapabilities:
        return RegistryCapabilities(shared=False)

    async def get(self, key: str) -> Entry | None:
        return self.held.entries.get(key)

    async def create(self, key: str, value: bytes) -> int | None:
        return None if key in self.held.entries else self._put(key, value)

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        return self._put(key, value) if self._is_last(key, revision) else None

    async def delete(self, key: str, revision: int) -> bool:
        if not self._is_last(key, revision):
            return False
        del self.held.entries[key]
        return True

    async def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.held.entries if key.startswith(prefix))

    def _is_last(self, key: str, revision: int) -> bool:
        entry = self.held.entries.get(key)
        return entry is not None and entry.revision == revision

    def _put(self, key: str, value: bytes) -> int:
        self.held.revision += 1
        self.held.entries[key] = Entry(value, self.held.revision)
        return self.held.revision


@hookimpl
def flamestream_registry() -> type[JobRegistry]:
    return SupervisorRegistry
