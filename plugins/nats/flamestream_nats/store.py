"""Store `nats`: blobs as messages of a stream of JetStream.

All hosts reach the server. A job has a stream. Each subject of it takes one message and refuses the next, so the first
writer has the name:

    flamestream.state.JOB.blob.NAME                a small blob, or the number of pieces of a large one
    flamestream.state.JOB.piece.NAME.WRITER.N      a piece

The pieces of a large blob come first; the blob exists once its own message does. The server stores that only if piece 0
is still there: so the pieces left by killed writers can be cleared away, even if such a writer was only slow.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Awaitable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Final, TypeVar

from nats import errors

from flamecore.abc.hooks import hookimpl
from flamecore.abc.store import Store, StoreCapabilities, StoreContext, check_name
from flamecore.errors import CorruptError, StoreError
from flamestream_nats.access import Access, needs
from flamestream_nats.explain import reason
from flamestream_nats.jetstream.stream import Changed, OtherStream, Refused, Stream, Taken
from flamestream_nats.options import StoreOptions, check

T = TypeVar("T")

WHOLE_BYTES: Final = 128 * 2**10
"""Larger blobs are stored in pieces."""
PIECE_BYTES: Final = 2**19
"""Largest piece, if the server takes such large messages."""
ABANDONED: Final = timedelta(seconds=60)
"""Age of a writer's last piece after which the writer counts as dead."""

_HEADERS_BYTES: Final = 1024
_AT_ONCE: Final = 8
_OLDEST: Final = (2, 11)
_WRITER: Final = "Flamestream-Writer"
_PIECES: Final = "Flamestream-Pieces"
_BYTES: Final = "Flamestream-Bytes"
_FULL: Final = re.compile("resource|exceeded|no space|store failed", re.IGNORECASE)
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


class NatsStore(Store):
    """One stream."""

    name: ClassVar[str] = "nats"
    Options: ClassVar[Any] = StoreOptions

    def __init__(self, options: Any, context: StoreContext) -> None:
        super().__init__(options or StoreOptions(), context)
        check(self.options)
        job, prefix = _token(context.job), self.options.prefix
        limit_s = self.options.request_timeout_s
        self._access = Access(
            self.options,
            f"store of {context.job}",
            limit_s,
            who=f"the NATS server at {self.options.shown}",
            keeps="state",
            up=lambda: self._stream.renew(),
            broken=lambda: self._stream.give_up(),
        )
        self._connection = self._access.connection
        name = f"{prefix.replace('.', '_')}-state-{job}"
        self._stream = Stream(self._connection, name, f"{prefix}.state.{job}", limit_s)

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(durable=True, shared=True)

    async def open(self) -> None:
        await self._access.open(self._failed)
        try:
            await self._find_stream()
        except BaseException:
            await self.aclose()
            raise

    async def _find_stream(self) -> None:
        version = self._connection.server_version
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
            what = f"the NATS server at {self.options.shown} is of version {version}"
            raise self._failed(what, f"Use version {_OLDEST[0]}.{_OLDEST[1]} or later.")
        with self._answers(hint=needs(self.options)):
            try:
                await self._stream.open(self.options.replicas)
            except OtherStream as error:
                raise self._failed(str(error), "Give another prefix under [state].") from error
            await self._clear()

    async def create(self, name: str, data: bytes) -> bool:
        check_name(name, self.name)
        with self._answers(name):
            while True:
                writer = secrets.token_hex(8)
                try:
                    await self._put(_token_of(name), writer, data)
                except Changed:
                    continue  # its pieces were cleared away: it was too slow, or the name was deleted meanwhile
                except Taken:
                    # By this very message, if its answer was lost.
                    return await self._is_of(_token_of(name), writer)
                return True

    async def read(self, name: str) -> bytes | None:
        subject = f"blob.{_token_of(name)}"
        with self._answers(name):
            while (found := await self._stream.get(subject)) is not None:
                count = int(found.headers[_PIECES])
                if not count:
                    return found.data
                pieces = await self._pieces(name, found.headers[_WRITER], count)
                if sum(map(len, pieces)) == int(found.headers[_BYTES]):
                    return b"".join(pieces)
                if await self._stream.get(subject) == found:
                    raise self._cut(name, len(pieces), count)
                # It has just been deleted, its own message first.
        return None

    async def names(self, prefix: str = "") -> list[str]:
        with self._answers():
            found = (await self._stream.list("blob.*")).subjects
        names = (subject.removeprefix("blob.").replace("=", ".") for subject in found)
        return sorted(name for name in names if name.startswith(prefix))

    async def delete(self, names: Collection[str]) -> None:
        with self._answers():
            await _some_at_once(self._delete(_token_of(name)) for name in names)

    async def _delete(self, token: str) -> None:
        await self._stream.purge(f"blob.{token}")
        await self._stream.purge(f"piece.{token}.>")

    async def aclose(self) -> None:
        await self._access.aclose()

    # -- large blobs -------------------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """Return the most bytes of a blob that fit one message."""
        return self._connection.max_payload - _HEADERS_BYTES

    async def _put(self, token: str, writer: str, data: bytes) -> None:
        if len(data) <= min(WHOLE_BYTES, self._room):
            await self._stream.put(f"blob.{token}", data, {_WRITER: writer, _PIECES: "0"})
            return
        if await self._stream.get(f"blob.{token}") is not None:
            raise Taken(0, "found before anything was written")
        size = min(PIECE_BYTES, self._room)
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        facts = {_WRITER: writer, _PIECES: str(len(pieces)), _BYTES: str(len(data))}
        mine = f"piece.{token}.{writer}"
        try:
            first = await self._put_piece(f"{mine}.0", pieces[0])
            await _some_at_once(self._put_piece(f"{mine}.{number}", pieces[number]) for number in range(1, len(pieces)))
            await self._stream.put(f"blob.{token}", b"", facts, after=(f"{mine}.0", first))
        except (Refused, errors.Error):
            if not await self._is_of(token, writer):
                await self._stream.purge(f"{mine}.>")
            raise

    async def _put_piece(self, subject: str, piece: bytes) -> int:
        try:
            return await self._stream.put(subject, piece, {})
        except Taken:  # by this very call, since the subject is its own: the answer was lost
            found = await self._stream.get(subject)
            return 0 if found is None else found.number

    async def _is_of(self, token: str, writer: str) -> bool:
        """Return whether a name is taken by a given writer."""
        found = await self._stream.get(f"blob.{token}")
        return found is not None and found.headers.get(_WRITER) == writer

    async def _pieces(self, name: str, writer: str, count: int) -> list[bytes]:
        """Return the pieces of a blob that are there, in order."""
        subject = f"piece.{_token_of(name)}.{writer}"
        found = await _some_at_once(self._stream.get(f"{subject}.{number}") for number in range(count))
        return [piece.data for piece in found if piece is not None]

    async def _clear(self) -> None:
        """Delete abandoned pieces that belong to no blob."""
        listing = await self._stream.list("piece.>")
        for token, writer in sorted({(subject.split(".")[1], subject.split(".")[2]) for subject in listing.subjects}):
            mine = f"piece.{token}.{writer}.*"
            if await self._is_of(token, writer):
                continue
            last = await self._stream.get(mine)
            if last is not None and listing.now - last.time > ABANDONED:
                await self._stream.purge(mine)

    # -- answers of the server ----------------------------------------------------------------------------------------

    @contextmanager
    def _answers(self, name: str = "", hint: str = "Look into the server's log.") -> Iterator[None]:
        """Raise every error of a request as StoreError."""
        with self._access.answers(partial(self._failed, name=name), hint):
            try:
                yield
            except Refused as error:
                if not _FULL.search(reason(error)):
                    raise
                hint = "Make room on the server's disk, or raise its limits; what is stored already is whole."
                raise self._failed(self._access.explained(error), hint, name) from error

    def _failed(self, what: str, hint: str, name: str = "") -> StoreError:
        return StoreError(f"store {self.name!r}: {what}", hint=hint, store=self.name, blob=name)

    def _cut(self, name: str, pieces: int, count: int) -> CorruptError:
        return CorruptError(
            f"store {self.name!r}: of the {count} pieces of {name!r} in stream {self._stream.name}, {pieces} are whole",
            hint="Has somebody deleted messages of the stream? An earlier snapshot may be whole.",
            store=self.name,
            blob=name,
        )


def _token(job: str) -> str:
    """Return the token of subjects for a job of any name; different for each."""
    if _PLAIN.fullmatch(job):
        return job
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', job)[:100]}={hashlib.sha256(job.encode()).hexdigest()[:16]}"


def _token_of(name: str) -> str:
    """Return the token of subjects for a blob's name; no name has a `=`."""
    return name.replace(".", "=")


async def _some_at_once(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await calls, a few at a time; return the results in order, or raise an error."""
    results: list[T] = []
    for some in _batches(calls):
        ended = await asyncio.gather(*some, return_exceptions=True)
        for end in ended:
            if isinstance(end, BaseException):
                raise end
            results.append(end)
    return results


def _batches(calls: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(calls)
    while some := list(islice(rest, _AT_ONCE)):
        yield some


@hookimpl
def flamestream_store() -> type[Store]:
    return NatsStore
