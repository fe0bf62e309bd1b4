"""Registry `nats`: entries in a key-value bucket of JetStream.

All hosts reach the server. It keeps the last change of each key in a stream, on disk. It accepts a change only if it
names the number of the change before: that number is the revision. A cluster accepts a change when most of `replicas`
have it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from nats.js.errors import APIError, BucketNotFoundError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from flamecore.abc.hooks import hookimpl
from flamecore.abc.registry import Entry, JobRegistry, RegistryCapabilities, RegistryContext
from flamecore.errors import RegistryError
from flamestream_nats.access import Access, needs
from flamestream_nats.options import SCHEMES, RegistryOptions, check

T = TypeVar("T")

_NOT_THE_LAST: Final = frozenset({10071, 10164})
"""Error codes of the server for a change that is not based on the last revision."""


class NatsRegistry(JobRegistry):
    """One bucket."""

    name: ClassVar[str] = "nats"
    Options: ClassVar[Any] = RegistryOptions
    schemes: ClassVar[tuple[str, ...] | None] = SCHEMES

    def __init__(self, options: Any, context: RegistryContext) -> None:
        super().__init__(options or RegistryOptions(), context)
        check(self.options)
        self._access = Access(
            self.options,
            context.node or "registry",
            self.options.request_timeout_s,
            who=f"the registry at {self.options.shown}",
            keeps="jobs",
            waits=context.waits,
        )

    @classmethod
    def address_of(cls, url: str) -> Mapping[str, Any]:
        return {"servers": (url,)}

    @property
    def capabilities(self) -> RegistryCapabilities:
        return RegistryCapabilities(shared=True)

    async def open(self) -> None:
        await self._access.open(self._failed)
        with self._access.answers(self._failed, needs(self.options)):
            self._jetstream = self._access.connection.jetstream(self.options.request_timeout_s)
            self._bucket = await self._find_bucket()

    async def _find_bucket(self) -> KeyValue:
        try:
            return await self._jetstream.key_value(self.options.bucket)
        except BucketNotFoundError:
            # Two may create it at once: both get the same one.
            return await self._jetstream.create_key_value(
                bucket=self.options.bucket,
                description="jobs of flamestream, and where their parts are",
                replicas=self.options.replicas,
            )

    async def get(self, key: str) -> Entry | None:
        with self._answers(key):
            try:
                found = await self._bucket.get(key)
            except KeyNotFoundError:
                return None
        return Entry(found.value or b"", found.revision or 0)

    async def create(self, key: str, value: bytes) -> int | None:
        return await self._changed(key, self._bucket.create(key, value))

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        # To the server, revision 0 means that there must be no entry; in a deletion, that any revision will do.
        return await self._changed(key, self._bucket.update(key, value, last=revision)) if revision > 0 else None

    async def delete(self, key: str, revision: int) -> bool:
        return revision > 0 and await self._changed(key, self._bucket.delete(key, last=revision)) is not None

    async def keys(self, prefix: str = "") -> list[str]:
        before = f"$KV.{self.options.bucket}."
        with self._answers():
            info = await self._jetstream.stream_info(f"KV_{self.options.bucket}", subjects_filter=f"{before}>")
        found = (subject.removeprefix(before) for subject in info.state.subjects or ())
        # Deleted keys are among them.
        return [key for key in sorted(found) if key.startswith(prefix) and await self.get(key) is not None]

    async def aclose(self) -> None:
        await self._access.aclose()

    # -- answers of the server ----------------------------------------------------------------------------------------

    async def _changed(self, key: str, change: Awaitable[T]) -> T | None:
        """Return the result of a change, or None if it was based on an old revision."""
        with self._answers(key):
            try:
                return await change
            except APIError as error:
                if isinstance(error, KeyWrongLastSequenceError) or error.err_code in _NOT_THE_LAST:
                    return None
                raise

    def _answers(self, key: str = "") -> AbstractContextManager[None]:
        """Raise every error of a request as RegistryError."""
        return self._access.answers(partial(self._failed, key=key))

    def _failed(self, what: str, hint: str, key: str = "") -> RegistryError:
        return RegistryError(what, hint=hint, registry=self.name, key=key)


@hookimpl
def flamestream_registry() -> type[JobRegistry]:
    return NatsRegistry
