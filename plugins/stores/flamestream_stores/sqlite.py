"""Store `sqlite`: blobs as rows of an SQLite database, for processes of one host.

The database is in WAL mode, where a transaction is seen only once it is whole in the log, and with `synchronous = FULL`
only once the log is forced to the disk. A small blob is one statement: SQLite releases the interpreter's lock while it
works, and getting that back from a busy event loop takes longer than the statement.

Every object has its own thread for its connection. Waiting for the disk, or for other processes, blocks nothing else.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.paths import FilePath
from flamecore.abc.store import Store, StoreCapabilities, StoreContext, check_name
from flamecore.errors import CorruptError, StoreError
from flamecore.toolkit.closing import to_its_end
from flamestream_stores.locks import writing
from flamestream_stores.places import Survives, failed, file_name, make_folder, no_state, room, store_error

T = TypeVar("T")

PIECE_BYTES: Final = 8 * 2**20
"""Largest blob stored whole; a larger one is stored in pieces of this size.

SQLite copies a row several times over, and takes none above 1 GB.
"""

_SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")
_APPLICATION: Final = 0x464C4D53  # "FLMS"
_VERSION: Final = 1
_LOG_BYTES: Final = 64 * 2**20
_PAUSE_S: Final = 0.001

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS blobs (job TEXT NOT NULL, name TEXT NOT NULL, piece INTEGER NOT NULL, "
    "data BLOB NOT NULL, PRIMARY KEY (job, name, piece))"
)
_INSERT: Final = "INSERT INTO blobs VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_READ: Final = "SELECT data FROM blobs WHERE job = ? AND name = ? ORDER BY piece"
_NAMES: Final = "SELECT name FROM blobs WHERE job = ? AND piece = 0 AND name >= ? AND name < ? ORDER BY name"
_DELETE: Final = "DELETE FROM blobs WHERE job = ? AND name = ?"

_BUSY: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")
_FULL: Final = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")
"""Errors of a full disk; the second if not even the index of the write-ahead log has room."""
_LOCKED: Final = "Another process{} holds it; end that, or raise busy_timeout_s under [state]."
_GONE: Final = "Has somebody replaced it while the job ran? Start the job again."
_HINTS: Final = {
    "SQLITE_NOTADB": "It is another kind of file; give another path under [state].",
    "SQLITE_CORRUPT": "Look at it with: sqlite3 FILE 'PRAGMA integrity_check'",
    "SQLITE_BUSY": _LOCKED,
    "SQLITE_LOCKED": _LOCKED,
    "SQLITE_READONLY": "Make the file and its folder writable for this user, or give another path under [state].",
    "SQLITE_CANTOPEN": "Make its folder readable and writable for this user, or give another path under [state].",
    "SQLITE_IOERR": "Is the disk well, and not full, and is the file still there?",
    "SQLITE_TOOBIG": "A blob of that size does not fit into this build of SQLite.",
    "SQLITE_NOMEM": "This process has no more memory.",
}


class SqliteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the store.

    Attributes:
        path: A folder, in which each job has a database of its own, JOB.db; or, if it ends with `.db`, `.sqlite` or
            `.sqlite3`, one database for all. Created if it does not exist.
        survives: Event that a blob outlasts once it is created: `power_loss` forces each to the disk; `process_death`,
            which is much quicker, leaves that to the system, and a loss of power may cost the blobs of the last
            seconds.
        busy_timeout_s: Maximum wait for other processes that write. A process that hangs during a write blocks all
            others; then they end with an error that names it.
    """

    path: FilePath
    survives: Survives = "power_loss"
    busy_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 60.0


class Sqlite(Store):
    """A table of blobs; its key is job, name and the number of the piece."""

    name: ClassVar[str] = "sqlite"
    Options: ClassVar[Any] = SqliteOptions

    def __init__(self, options: Any, context: StoreContext) -> None:
        super().__init__(options, context)
        path = Path(options.path).expanduser()
        self._path = path if path.suffix in _SUFFIXES else path / f"{file_name(context.job)}.db"
        self._database: sqlite3.Connection | None = None
        self._inode = 0
        self._thread: ThreadPoolExecutor | None = None

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(durable=True, shared=False)

    async def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, f"store of {self.context.job}")
        try:
            await self._call(self._open)
        except BaseException:
            await self.aclose()
            raise

    async def create(self, name: str, data: bytes) -> bool:
        check_name(name, self.name)
        return await self._call(self._create, name, data, blob=name)

    async def read(self, name: str) -> bytes | None:
        return await self._call(self._read, name, blob=name)

    async def names(self, prefix: str = "") -> list[str]:
        return await self._call(self._names, prefix)

    async def delete(self, names: Collection[str]) -> None:
        if names:
            await self._call(self._delete, tuple(names))

    async def aclose(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            await to_its_end(self._close_in(thread))
        except sqlite3.Error as error:
            raise self._failed(error) from error
        finally:
            thread.shutdown(wait=False)

    async def _close_in(self, thread: ThreadPoolExecutor) -> None:
        await asyncio.get_running_loop().run_in_executor(thread, self._close)

    async def _call(self, function: Callable[..., T], *arguments: Any, blob: str = "") -> T:
        if self._thread is None:
            raise store_error(self.name, f"{self._path} is not open", "Call open() first.", blob)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._patiently, function, *arguments)
        except sqlite3.Error as error:
            raise self._failed(error, blob) from error
        except OSError as error:
            what = f"{self._path} cannot be used"
            raise failed(self.name, what, error, folder=self._path.parent, blob=blob) from error

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _patiently(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function, and repeat the call while other processes hold the database.

        SQLite itself would wait ever longer between its attempts, up to 0.1 s, while later processes get their turns.
        Every function called here is one transaction, or may be repeated.
        """
        until = time.monotonic() + self.options.busy_timeout_s
        while True:
            try:
                return function(*arguments)
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith(_BUSY) or time.monotonic() >= until:
                    raise
            time.sleep(random.uniform(0.1, 1.0) * _PAUSE_S)

    def _open(self) -> None:
        durable = self.options.survives == "power_loss"
        if not self.context.create and not self._path.exists():
            raise no_state(self.name, self._path, self.context.job)
        if self._database is None:
            make_folder(self._path.parent, sync=durable)
            with suppress(FileExistsError):  # files that SQLite makes beside it get the same mode
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(self._path, timeout=0, isolation_level=None)
        database = self._database
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            what = f"{self._path} cannot have a write-ahead log, its journal is {mode!r}"
            raise store_error(self.name, what, "Give a path on a local disk under [state].")
        database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        database.execute(f"PRAGMA fullfsync = {durable:d}")  # where fsync alone does not reach the disk
        database.execute("PRAGMA secure_delete = OFF")  # some builds overwrite deleted data with zeros
        database.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        self._transact(self._prepare, database)
        self._inode = self._path.stat().st_ino

    def _prepare(self, database: sqlite3.Connection) -> None:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != _APPLICATION and (application or tables):
            what = f"{self._path} is a database of another program"
            raise store_error(self.name, what, "Give another path under [state].")
        if version > _VERSION:
            raise CorruptError(
                f"store {self.name!r}: {self._path} is of format {version}, and this version reads up to {_VERSION}",
                hint="Use the version of flamestream that wrote it, or a later one.",
                store=self.name,
                blob="",
            )
        if application != _APPLICATION:
            database.execute(_TABLE)
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(f"PRAGMA user_version = {_VERSION}")

    def _create(self, name: str, data: bytes) -> bool:
        database = self._database
        assert database is not None, "open() has returned"
        if os.stat(self._path).st_ino != self._inode:  # noqa: PTH116 – SQLite would go on with the file that has no name
            raise store_error(self.name, f"{self._path} is another file than before", _GONE, name)
        if len(data) <= PIECE_BYTES:
            return database.execute(_INSERT, (self.context.job, name, 0, data)).rowcount == 1
        return self._transact(self._create_large, database, name, memoryview(data))

    def _create_large(self, database: sqlite3.Connection, name: str, data: memoryview) -> bool:
        job = self.context.job
        for piece, start in enumerate(range(0, len(data), PIECE_BYTES)):
            row = (job, name, piece, data[start : start + PIECE_BYTES])
            if database.execute(_INSERT, row).rowcount != 1:
                return False  # the first piece is there, and so are all
        return True

    def _read(self, name: str) -> bytes | None:
        assert self._database is not None, "open() has returned"
        pieces = [row[0] for row in self._database.execute(_READ, (self.context.job, name))]
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)) if pieces else None

    def _names(self, prefix: str) -> list[str]:
        assert self._database is not None, "open() has returned"
        # Names are ASCII, so all with this prefix come before the prefix with DEL behind it.
        return [row[0] for row in self._database.execute(_NAMES, (self.context.job, prefix, f"{prefix}\x7f"))]

    def _delete(self, names: tuple[str, ...]) -> None:
        assert self._database is not None, "open() has returned"
        self._transact(self._delete_rows, self._database, names)

    def _delete_rows(self, database: sqlite3.Connection, names: tuple[str, ...]) -> None:
        database.executemany(_DELETE, ((self.context.job, name) for name in names))

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _transact(self, body: Callable[..., T], database: sqlite3.Connection, *arguments: Any) -> T:
        """Run a function in one transaction; roll it back on any error."""
        database.execute("BEGIN IMMEDIATE")
        try:
            result = body(database, *arguments)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:  # SQLite rolls some of them back itself
                database.execute("ROLLBACK")
            raise
        return result

    def _failed(self, error: sqlite3.Error, blob: str = "") -> StoreError:
        code: str = getattr(error, "sqlite_errorname", "")
        if code in _FULL:
            hint = room(self._path.parent)
        else:
            found = (hint for name, hint in _HINTS.items() if code.startswith(name))
            writer = writing(self._path) if code.startswith(_BUSY) else None
            hint = next(found, "What is stored already is whole.").format(f" ({writer})" if writer else "")
        what = f"{self._path} cannot be used: {error}{f' ({code})' if code else ''}"
        return store_error(self.name, what, hint, blob)


@hookimpl
def flamestream_store() -> type[Store]:
    return Sqlite
