"""The main program of a node process: join a job, run what is assigned, end when told to or when the job is gone.

python -m flamecore.process BOOTSTRAP.json
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from flamecore import __version__, logs
from flamecore.codec import Codec
from flamecore.errors import FlameError, JobError, PeerGoneError, TransportError
from flamecore.incarnation import Home, Incarnation
from flamecore.job import collector_at_rest
from flamecore.messages import (
    Assignment,
    Begin,
    Halt,
    Halted,
    Join,
    Left,
    Load,
    NodeFailed,
    NodeReport,
    Opened,
    Ready,
    Refusal,
    Status,
    Stop,
)
from flamecore.options import options_of
from flamecore.post import CONTROL, Post
from flamecore.registry import Registry
from flamecore.runner import leave, run
from flamecore.scope import plain
from flamecore.transport import Transport, TransportContext

_REPORT_S: Final = 0.5
_SAME_REPORT_S: Final = 5.0
"""How often a node reports, and how often at least if it has nothing new to say."""
_ASSIGN_TIMEOUT_S: Final = 60.0
_LOOK_TIMEOUT_S: Final = 5.0
_SIGN_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1


class Process:
    """One node process.

    Args:
        bootstrap: How to join: transport and its options, job, epoch, token, names, and where the control is.

    Attributes:
        welcome: Whether the control has answered.
    """

    def __init__(self, bootstrap: Mapping[str, Any]) -> None:
        self.bootstrap = bootstrap
        self.name: str = bootstrap["node"]
        self.welcome = False
        self._locations: dict[str, str] = {CONTROL: bootstrap["control"]}
        self._over: asyncio.Future[None] | None = None
        self._incarnation: Incarnation | None = None
        self._failed: BaseException | None = None
        self._post: Post | None = None

    async def run(self) -> None:
        """Until told to end.

        Raises:
            FlameError: It cannot join, or a part failed and the job did not go on.
        """
        codec = Codec()
        async with self._joined(codec) as (transport, post, over):
            self._post = post
            spare = self.bootstrap.get("flow_folder")
            home = Home(transport, codec, self._part_failed, Path(spare) if spare else None)
            reports = asyncio.create_task(self._report(post))
            commands = asyncio.create_task(self._obey(home, post, over))
            for task in (reports, commands):
                task.add_done_callback(self._task_ended)
            try:
                await over
            except asyncio.CancelledError:
                with suppress(FlameError):  # the control may be gone, too
                    post.send(CONTROL, Left(self.name))
                raise
            finally:
                for task in (reports, commands):
                    task.cancel()
                await asyncio.wait((reports, commands))
                stats = self._incarnation.stats() if self._incarnation is not None else None
                await self._leave(orderly=self._failed is None)
                await home.aclose()
                if stats is not None:
                    with suppress(TransportError):  # whoever told this process to end may be gone already
                        post.send(CONTROL, NodeReport(self.name, stats))
            if self._failed is not None:
                raise self._failed

    async def look(self) -> dict[str, Any]:
        """Ask the control how the job is, and leave.

        Raises:
            FlameError: It cannot be reached, or does not answer.
        """
        async with self._joined(Codec()) as (_, post, over):
            return _facts(await self._heard(post, over, _LOOK_TIMEOUT_S))

    async def ask(self, request: Any, limit_s: float) -> dict[str, Any]:
        """Ask the control for something, wait until it is done, and leave.

        Args:
            request: A message of `flamecore.messages`.
            limit_s: How long it may take.

        Returns:
            What there is to say of it.

        Raises:
            JobError: It is refused, or takes too long.
            FlameError: The control cannot be reached.
        """
        async with self._joined(Codec()) as (_, post, over):
            post.send(CONTROL, request)
            return _facts(await self._heard(post, over, limit_s))

    @asynccontextmanager
    async def _joined(self, codec: Codec) -> AsyncIterator[tuple[Transport, Post, asyncio.Future[None]]]:
        """Listen, and tell the control where."""
        over = self._over = asyncio.get_running_loop().create_future()
        transport = self._make_transport(codec)
        try:
            location = await transport.start()
            # One of the same name may have been here before, and may still be.
            address = f"node/{self.name}.{secrets.token_hex(4)}"
            if self.bootstrap["role"] in ("observer", "operator"):
                address = f"client/{self.name}"
            post = Post(await transport.bind(address), self._end)
            try:
                attempt, site = self.bootstrap.get("attempt", 0), self.bootstrap.get("site", "")
                role = self.bootstrap["role"]
                post.send(CONTROL, Join(self.name, role, location, os.getpid(), __version__, attempt, site))
                yield transport, post, over
            finally:
                await post.aclose()
        finally:
            await transport.aclose()

    def _make_transport(self, codec: Codec) -> Transport:
        registry = Registry()
        driver = registry.get("transport", self.bootstrap["transport"])
        options = options_of(driver, self.bootstrap["options"], f"transport.{self.bootstrap['transport']}")
        made: Transport = driver(
            options,
            TransportContext(
                job=self.bootstrap["job"],
                epoch=self.bootstrap["epoch"],
                codec=codec,
                node=self.name,
                token=self.bootstrap["token"],
                folder=self.bootstrap["folder"],
                locate=self._locate,
                lost=self._lost,
            ),
        )
        return made

    def _locate(self, address: str) -> str:
        try:
            return self._locations[plain(address)]
        except KeyError:
            raise PeerGoneError(f"nobody has said where {address} is", address=self.name, peer=address) from None

    async def _heard(self, post: Post, over: asyncio.Future[None], limit_s: float) -> Any:
        """What the control says next.

        Raises:
            FlameError: This node has come to its end before that: the control cannot be reached, or is gone.
            JobError: It says nothing.
        """
        receiving = asyncio.create_task(post.endpoint.receive())
        until = time.monotonic() + limit_s
        try:
            while (left_s := until - time.monotonic()) > 0:
                pause_s = min(left_s, _SIGN_S)
                await asyncio.wait((receiving, over), timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    return receiving.result().message
                if over.done():
                    await over
                try:  # a control that has closed meanwhile is noticed only by who sends to it
                    post.send(CONTROL, NodeReport(self.name, {}))
                except PeerGoneError as error:
                    raise JobError(f"job {self.bootstrap['job']!r} is not there: {error.what}") from error
        finally:
            receiving.cancel()
            await asyncio.wait((receiving,))
        raise JobError(
            f"job {self.bootstrap['job']!r} has not answered {self.name} within {limit_s:g} s",
            hint="Does its supervisor run, and wait for nodes still?",
        )

    # -- what the control says -------------------------------------------------------------------------------------

    async def _obey(self, home: Home, post: Post, over: asyncio.Future[None]) -> None:
        limit: float | None = _ASSIGN_TIMEOUT_S
        while True:
            try:
                async with asyncio.timeout(limit):
                    message = (await post.endpoint.receive()).message
            except TimeoutError:
                raise self._failed or JobError(f"{self.name} was given nothing to do for {limit:g} s") from None
            limit = None
            self.welcome = True
            if isinstance(message, Refusal):
                raise JobError(message.text)
            if isinstance(message, Stop) and not message.drain:
                over.set_result(None)
                return
            try:
                await self._follow(message, home, post)
            except FlameError as error:
                self._part_failed(error)
            if self._failed is not None or isinstance(message, Halt):
                limit = _ASSIGN_TIMEOUT_S

    async def _follow(self, message: Any, home: Home, post: Post) -> None:
        incarnation = self._incarnation
        if isinstance(message, Halt):
            await self._leave(orderly=False)
            self._failed = None
            post.send(CONTROL, Halted(self.name))
        elif isinstance(message, Assignment):
            self._locations.update(message.locations)
            self._incarnation = await home.let(message)
            post.send(CONTROL, Opened(self.name, message.epoch))
        elif incarnation is None:
            raise JobError(f"{self.name} was sent a {type(message).__name__} before its assignment")
        elif isinstance(message, Load):
            await incarnation.load(message.resume)
            post.send(CONTROL, Ready(self.name, incarnation.assignment.epoch))
        elif isinstance(message, Begin):
            incarnation.node.begin()
        elif isinstance(message, Stop):
            incarnation.node.stop.set()
        else:
            raise JobError(f"{self.name} does not know what to do with a {type(message).__name__}")

    async def _leave(self, *, orderly: bool) -> None:
        incarnation, self._incarnation = self._incarnation, None
        if incarnation is not None:
            await incarnation.leave(orderly=orderly)

    async def _report(self, post: Post) -> None:
        told: dict[str, Any] = {}
        told_at = 0.0
        while True:
            await asyncio.sleep(_REPORT_S)
            stats = self._incarnation.stats() if self._incarnation is not None else {}
            same_s = min(_SAME_REPORT_S, self._incarnation.silence_s / 4) if self._incarnation is not None else 0.0
            now = time.monotonic()
            if {**stats, "at": 0} != told or now >= told_at + same_s:
                told, told_at = {**stats, "at": 0}, now
                post.send(CONTROL, NodeReport(self.name, stats))

    # -- what goes wrong -------------------------------------------------------------------------------------------

    def _part_failed(self, error: BaseException, lost: str = "") -> None:
        """Tell the control; it says whether the job goes on from a snapshot, or ends.

        Args:
            error: Why it cannot go on.
            lost: Location of the process that is gone, if that is why.
        """
        if self._failed is not None or self._over is None or self._over.done():
            return None
        self._failed = error
        if self._post is None or not isinstance(error, FlameError):
            return self._end(error)
        text, blob = str(error), getattr(error, "blob", "")
        try:
            self._post.send(CONTROL, NodeFailed(self.name, type(error).__name__, text, blob, lost))
        except FlameError as gone:
            self._end(gone)

    def _lost(self, location: str, error: Exception) -> None:
        if not location:
            return self._end(error)
        lost = JobError(f"{self.name} lost its connection to {location}: {error}")
        if location == self.bootstrap["control"]:
            return self._end(lost)
        parts = (place for address, place in self._locations.items() if not address.startswith("node/"))
        if self._incarnation is None or location not in parts:
            return None  # it has no part in what runs now
        self._part_failed(PeerGoneError(lost.what, address=self.name, peer=location), location)
        return None

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        if isinstance(error, PeerGoneError) and getattr(error, "peer", "") == CONTROL:
            any_more = " any more" if self.welcome else ""
            what = f"job {self.bootstrap['job']!r} has no supervisor{any_more}: {error.what}"
            error = PeerGoneError(what, hint=error.hint, address=self.name, peer=CONTROL)
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)


def _facts(answer: Any) -> dict[str, Any]:
    if isinstance(answer, Refusal):
        raise JobError(answer.text)
    if not isinstance(answer, Status):
        raise JobError(f"the job answered with a {type(answer).__name__}")
    return answer.facts


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its supervisor is gone, however it went (Linux).

    Args:
        parent: The supervisor, which may have gone before this was reached.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def main() -> int:
    """Run the node that a bootstrap file describes. Exit codes as of the command line."""
    path = Path(sys.argv[1])
    try:
        bootstrap = json.loads(path.read_text())
        path.unlink()
    except FileNotFoundError:
        print(f"{path} is gone: the supervisor has ended meanwhile", file=sys.stderr)
        return 1
    _end_with_parent(bootstrap["parent"])
    sys.path[:] = bootstrap.get("path", sys.path)  # from here on, modules are found as the supervisor finds them
    logs.to_stderr()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to hear
    try:
        with collector_at_rest():
            run(Process(bootstrap).run())
    except FlameError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    leave(code)
    sys.exit(code)
