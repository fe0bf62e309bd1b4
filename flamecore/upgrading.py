"""Makes the version of a flow that a running job is asked to go on with, and finds whether it can."""

from __future__ import annotations

import asyncio

from flamecore.config import decode_config
from flamecore.errors import ConfigError, JobError
from flamecore.found import look
from flamecore.launch import lay_out
from flamecore.layout import Layout
from flamecore.messages import Upgrade
from flamecore.reference import importable, load_flow_anew
from flamecore.revision import Revision, check_unchanged, inherited
from flamecore.stateplan import StatePlan, plan_of


def revise(old: Layout, asked: Upgrade) -> Revision:
    """Import what is asked for, lay it out, and hold it against the job's state. Takes its time: call it in a thread.

    Raises:
        FlameError: It cannot be imported, cannot work, changes what cannot be changed, or would lose state and that is
            not accepted. Nothing has changed then.
    """
    config = inherited(old.config, decode_config(asked.config))
    if not config.job.flow:
        raise ConfigError("nothing says which flow to go on with", path="job.flow")
    flow, forget = load_flow_anew(config.job.flow, config.folder)
    try:
        new = lay_out(config, flow, registry=old.registry)
        new.problems.raise_first()
        check_unchanged(old, new)
        plan = asyncio.run(_plan(old, new, accepted=asked.accept))
        code, place = new.code, importable(new.flow)
    except BaseException:
        forget()
        raise
    return Revision(new, code, place, plan, lambda: lay_out(old.config, old.flow, registry=old.registry), forget)


async def _plan(old: Layout, new: Layout, *, accepted: bool) -> StatePlan | None:
    store = old.store()
    assert store is not None
    await store.open()
    try:
        if not (await look(store)).snapshots:
            return None
        plan = await plan_of(store, new.sound_graph, new.sources, new.sink_names, new.settings.phases)
        if plan.loss and not accepted:
            text = "\n    ".join(["part of the state would be lost:", *plan.lines()])
            raise JobError(text, hint="To accept that: flamestream upgrade --accept.")
        return plan
    finally:
        await store.aclose()
