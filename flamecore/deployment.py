"""A job on several processes: one node for each worker, the control and the rears with the supervisor.

It has the face of `flamecore.job.Job`. The life of a deployment: the nodes are started; each joins, is assigned its
part, opens what it reads and says that it is ready; when all are, the sinks are opened and the fronts begin. There is
no crash recovery yet: a node that dies ends the job, with an error that names it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flamecore import __version__
from flamecore.acker import AckerPlan
from flamecore.claim import Claim, Member
from flamecore.codec import Codec
from flamecore.control import Control
from flamecore.errors import ConfigError, FlameError, JobError, PeerGoneError, TransportError
from flamecore.hashing import owned_ranges
from flamecore.host import CONTROL, Post
from flamecore.job import check_importable, collector_at_rest, make_plan
from flamecore.jobregistry import RegistryContext
from flamecore.messages import Assignment, Begin, Join, NodeFailed, NodeReport, Ready, Status, Stop
from flamecore.node import Node
from flamecore.observe import Observers
from flamecore.placement import SUPERVISOR, TOKEN, node_options, placed
from flamecore.plan import DEAD_LETTERS, Plan
from flamecore.stats import JobReport, JobStats, NodeStats, summed
from flamecore.supervisor import Supervisor
from flamecore.transport import Transport, TransportContext

if TYPE_CHECKING:
    from flamecore.layout import Layout


class Deployment:
    """One run of a flow on several processes.

    Args:
        layout: Everything that is configured, checked.
    """

    def __init__(self, layout: Layout) -> None:
        assert layout.graph is not None
        self.layout = layout
        self.graph = layout.graph
        self.settings = layout.settings
        self.nodes: dict[str, Join] = {}
        joining = layout.config.deploy.start == "join"
        self.id = self.settings.name if joining else f"{self.settings.name}-{secrets.token_hex(4)}"
        self._observers = Observers(layout.observers)
        self._locations: dict[str, str] = {}
        self._lookers: set[str] = set()
        self._reports: dict[str, NodeStats] = {}
        self._ready: set[str] = set()
        self._hosts: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._draining = asyncio.Event()
        self._node: Node | None = None
        self._outcome: asyncio.Future[None] | None = None
        self._started: float | None = None
        self._ended: float | None = None
        self._leaving = False

    # -- the face of a job -----------------------------------------------------------------------------------------

    async def run(self) -> JobReport:
        """Run to the end of all sources, or until drained. Raises as `Job.run`, and `JobError` when a node dies."""
        if self._started is not None:
            raise JobError("a job runs once", hint="Make another one from the same flow.")
        self._started = time.monotonic()
        self._outcome = asyncio.get_running_loop().create_future()
        error: BaseException | None = None
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(collector_at_rest())
                await self._run(stack, self._outcome)
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._ended = time.monotonic()
            self._observers.job_ended(self.settings.name, error)
        return JobReport(self.stats(), drained=self._draining.is_set())

    def drain(self) -> None:
        """Read no more, finish what was admitted, and end. May be called from a signal handler of the event loop."""
        self._draining.set()
        self._changed.set()

    def stats(self) -> JobStats:
        """A look at the job: the nodes report twice a second."""
        elapsed = (self._ended or time.monotonic()) - (self._started or time.monotonic())
        own = [self._node.stats()] if self._node is not None else []
        return summed([*self._reports.values(), *own], elapsed)

    # -- its life ----------------------------------------------------------------------------------------------------

    async def _run(self, stack: AsyncExitStack, outcome: asyncio.Future[None]) -> None:
        layout, settings = self.layout, self.settings
        plan = make_plan(self.graph, layout.sources, settings)
        folder = tempfile.mkdtemp(prefix="flamestream-")  # only its owner can enter it
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        token = os.environ.get(TOKEN) or secrets.token_hex(32)
        claim = await self._claim(stack, token)
        transport = layout.transport(
            TransportContext(
                job=self.id,
                epoch=claim.epoch,
                codec=Codec.of(self.graph),
                node=SUPERVISOR,
                token=token,
                folder=folder,
                locate=self._locate,
                lost=self._lost,
            )
        )
        stack.push_async_callback(transport.aclose)
        check_importable(self.graph, transport)
        self._locations[CONTROL] = await transport.start()
        claim.publish(run=self.id, transport=layout.config.transport.use, control=self._locations[CONTROL])
        post = Post(await transport.bind(CONTROL), self._fail)
        control = Control(plan)
        listening = asyncio.create_task(self._listen(control, post, outcome))
        stack.push_async_callback(_cancelled, listening)
        supervisor = Supervisor(self._died)
        stack.push_async_callback(self._leave, supervisor, post, outcome)
        await self._start_nodes(plan, supervisor, Path(folder), token, claim.epoch)
        wanted = {"worker": plan.workers, "acker": self._own_ackers(plan)}
        await self._until(lambda: all(len(self._named(role)) >= n for role, n in wanted.items()), outcome, "joined")
        await self._assign(plan, post)
        self._publish(claim, plan)
        await self._until(lambda: len(self._ready) >= sum(wanted.values()), outcome, "ready")
        await self._open_rears(stack, plan, transport)
        self._observers.job_started(settings.name, plan.workers)
        for name in (*self._named("worker"), *self._named("acker")):
            post.send(f"node/{name}", Begin())
        if self._draining.is_set():
            self._tell_nodes(post, drain=True)
        else:
            draining = asyncio.create_task(self._tell_when_draining(post))
            stack.push_async_callback(_cancelled, draining)
        await outcome

    async def _claim(self, stack: AsyncExitStack, token: str) -> Claim:
        """Have the right to run this job, and give it back when everything else has ended."""
        registry = self.layout.job_registry(RegistryContext(node=SUPERVISOR))
        stack.push_async_callback(registry.aclose)
        await registry.open()
        lease_s = self.layout.config.registry.lease_s
        claim = await Claim.take(registry, self.settings.name, lease_s=lease_s, token=token, lost=self._fail)
        return await stack.enter_async_context(claim)

    def _publish(self, claim: Claim, plan: Plan) -> None:
        """Say in the registry who has which part."""
        claim.publish(
            members={
                name: Member(
                    role=node.role,
                    location=node.location,
                    pid=node.pid,
                    parts=tuple(sorted(address for address, host in self._hosts.items() if host == name)),
                    version=node.version,
                )
                for name, node in self.nodes.items()
            },
            key_groups=owned_ranges(plan.workers),
            fronts=tuple(
                (front.source, partition, f"worker/{plan.host_of(number)}")
                for number, (front, partition) in enumerate(zip(plan.fronts, plan.partitions, strict=True), 1)
            ),
        )

    async def _open_rears(self, stack: AsyncExitStack, plan: Plan, transport: Transport) -> None:
        """Open the sinks and listen: the sources are open, so nothing that is there is replaced in vain."""
        layout = self.layout
        node = self._node = Node(plan, transport, fail=self._fail, observers=self._observers)
        stack.push_async_callback(node.aclose)
        sinks = {**layout.sinks, **({DEAD_LETTERS: layout.dead_letter} if layout.dead_letter is not None else {})}
        held = await node.open_sinks({name: sinks[name] for name in plan.rears})
        for name in plan.rears:
            await node.add_rear(name, sinks[name], held[name])
        if layout.config.deploy.acker == "supervisor":
            acker = layout.acker(acker_plan(plan))
            for index in range(acker.trackers):
                await node.add_tracker(acker, index)
        node.listen()

    async def _start_nodes(self, plan: Plan, supervisor: Supervisor, folder: Path, token: str, epoch: int) -> None:
        """Start a process for each worker and for each acker of its own, unless others are to start them."""
        use = self.layout.config.transport.use
        options = node_options(self.layout.transport_table)
        common = {
            "transport": use,
            "options": options,
            "job": self.id,
            "epoch": epoch,
            "token": token,
            "folder": str(folder),
            "control": self._locations[CONTROL],
        }
        if self.layout.config.deploy.start == "join":
            return
        names = [("worker", index) for index in range(plan.workers)]
        names += [("acker", index) for index in range(self._own_ackers(plan))]
        for role, index in names:
            name = f"{role}-{index}"
            # The first worker reads what is piped in; nobody else touches the terminal.
            stdin = None if (role, index) == ("worker", 0) else False
            await supervisor.start(name, folder, {**common, "node": name, "role": role}, stdin=stdin)

    def _own_ackers(self, plan: Plan) -> int:
        """How many processes host trackers and nothing else."""
        return self.layout.acker(acker_plan(plan)).trackers if self.layout.config.deploy.acker == "own" else 0

    def _named(self, role: str) -> list[str]:
        """Names of the nodes of a role, in the order in which they get their parts."""
        names = [name for name, node in self.nodes.items() if node.role == role]
        return sorted(names, key=lambda name: (len(name), name))

    async def _assign(self, plan: Plan, post: Post) -> None:
        """Tell every node its part, and where everybody is."""
        workers, ackers = self._named("worker"), self._named("acker")
        trackers = self.layout.acker(acker_plan(plan)).trackers
        hosts = self._hosts = placed(self.layout.config, trackers, plan.rears, workers, ackers)
        locations = {SUPERVISOR: self._locations[CONTROL]} | {name: n.location for name, n in self.nodes.items()}
        self._locations.update({address: locations[name] for address, name in hosts.items()})
        fronts = tuple(
            (front.source, front.partition, partition)
            for front, partition in zip(plan.fronts, plan.partitions, strict=True)
        )
        for name in (*workers, *ackers):
            parts = [address.split("/") for address, host in hosts.items() if host == name]
            assignment = Assignment(
                config=encode_config(self.layout),
                flow=importable(self.layout),
                fronts=fronts,
                workers=tuple(int(index) for kind, index in parts if kind == "worker"),
                trackers=tuple(int(index) for kind, index in parts if kind == "acker"),
                locations=tuple(self._locations.items()),
            )
            post.send(f"node/{name}", assignment)

    def described(self) -> dict[str, Any]:
        """Who is in the job, what each hosts, and how far it is. Holds no secret."""
        stats = self.stats()
        nodes = {
            name: {
                "role": node.role,
                "location": node.location,
                "pid": node.pid,
                "parts": sorted(address for address, host in self._hosts.items() if host == name),
            }
            for name, node in self.nodes.items()
        }
        rate = stats.items_in / stats.elapsed_s if stats.elapsed_s else 0.0
        ranges = owned_ranges(self.settings.workers)
        return {"job": self.id, "nodes": nodes, "key_groups": ranges, "records_per_s": rate, **dict(stats.rows())}

    async def _until(self, condition: Callable[[], bool], outcome: asyncio.Future[None], what: str) -> None:
        """Wait for all nodes, or for the job to fail.

        Raises:
            JobError: It takes too long.
        """
        timeout_s = self.layout.config.deploy.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    changed = asyncio.ensure_future(self._changed.wait())
                    try:
                        await asyncio.wait((changed, outcome), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        changed.cancel()
                    if outcome.done():
                        await outcome
        except TimeoutError:
            known = ", ".join(sorted(self.nodes)) or "none"
            raise JobError(
                f"after {timeout_s:g} s not all workers have {what}; joined: {known}",
                hint="Look at the workers' log lines above; each must reach the supervisor and import the flow.",
            ) from None

    async def _listen(self, control: Control, post: Post, outcome: asyncio.Future[None]) -> None:
        """Hear of nodes, fronts and rears."""
        try:
            while True:
                delivery = await post.endpoint.receive()
                message = delivery.message
                if delivery.sender.startswith("client/"):
                    if isinstance(message, Join):
                        self._show(delivery.sender, message.location, post)
                    continue
                if isinstance(message, Join):
                    self._join(message)
                elif isinstance(message, Ready):
                    self._ready.add(message.node)
                elif isinstance(message, NodeReport):
                    self._reports[message.node] = NodeStats(**message.stats)
                elif isinstance(message, NodeFailed):
                    self._fail(JobError(f"{message.node} failed: {message.text}"))
                else:
                    control.receive(message)
                    if control.failing:
                        self.drain()
                    if (error := control.error) is not None:
                        self._fail(error)
                    elif control.done and not outcome.done():
                        outcome.set_result(None)
                self._changed.set()
        except FlameError as error:
            self._fail(error)

    def _join(self, node: Join) -> None:
        if node.version != __version__:
            raise ConfigError(
                f"{node.node} runs flamestream {node.version}, and the supervisor {__version__}",
                hint="Install one version everywhere.",
            )
        self.nodes[node.node] = node
        self._locations[f"node/{node.node}"] = node.location

    def _show(self, client: str, location: str, post: Post) -> None:
        """Answer one who looks at the job. Whatever becomes of it, the job goes on."""
        self._lookers.add(location)
        self._locations[client] = location
        with suppress(TransportError):
            Post(post.endpoint, lambda _: None).send(client, Status(self.described()))

    async def _tell_when_draining(self, post: Post) -> None:
        await self._draining.wait()
        self._tell_nodes(post, drain=True)

    def _tell_nodes(self, post: Post, *, drain: bool) -> None:
        for name in self._named("worker"):
            post.send(f"node/{name}", Stop(drain))

    async def _leave(self, supervisor: Supervisor, post: Post, outcome: asyncio.Future[None]) -> None:
        """End the nodes: first by asking, then by force."""
        self._leaving = True
        for name in (*self._named("worker"), *self._named("acker")):
            try:
                post.send(f"node/{name}", Stop(False))
            except FlameError:
                continue  # it is gone already
        await supervisor.stop(self.layout.config.deploy.stop_timeout_s)
        await post.aclose()

    # -- what goes wrong -------------------------------------------------------------------------------------------

    def _locate(self, address: str) -> str:
        try:
            return self._locations[address]
        except KeyError:
            raise PeerGoneError(f"nobody has said where {address} is", address=CONTROL, peer=address) from None

    def _died(self, name: str, what: str, lines: Sequence[str]) -> None:
        if self._leaving:
            return
        tail = "".join(f"\n    {line}" for line in lines[-8:])
        self._fail(
            JobError(
                f"{name} {what}" + (f"; its last lines:{tail}" if tail else ""),
                hint="The job has ended. Everything delivered so far is right; run it again.",
            )
        )

    def _lost(self, location: str, error: Exception) -> None:
        if location in self._lookers:
            return
        name = next((name for name, node in self.nodes.items() if node.location == location), location)
        if not self._leaving:
            # A process that died is told of with its last words; give that the chance to come first.
            asyncio.get_running_loop().call_later(
                0.5, self._fail, JobError(f"the connection to {name} is lost: {error}")
            )

    def _fail(self, error: BaseException) -> None:
        """End the job with the first error there is."""
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(error)
        self._changed.set()


def acker_plan(plan: Plan) -> AckerPlan:
    """What an acker strategy must know of a plan."""
    return AckerPlan(plan.workers, plan.graph.segments, tuple(range(1, len(plan.fronts) + 1)), plan.start)


def importable(layout: Layout) -> tuple[str, str]:
    """Where another process finds the flow: a reference, and the folder it is relative to.

    Raises:
        ConfigError: Nowhere: the flow is no module-level variable.
    """
    reference = layout.flow.reference
    if reference is None:
        raise ConfigError(
            f"flow {layout.flow.name!r} cannot be imported by other processes",
            hint="Make it a module-level variable of a file, and run that file: flamestream run FILE.py",
            path="job.flow",
        )
    module, _, name = reference.partition(":")
    file = getattr(sys.modules[module], "__file__", None)
    if "." not in module and file:
        return f"{Path(file).resolve()}:{name}", str(Path.cwd())
    return reference, str(Path.cwd())


def encode_config(layout: Layout) -> bytes:
    """The configuration, for a node."""
    return msgspec.json.encode(layout.config, enc_hook=str)


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,))
