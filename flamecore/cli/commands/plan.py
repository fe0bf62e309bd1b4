"""The command `flamestream plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flamecore.cli.app import Options, app_argument, config_options, load_app_flow, read_app
from flamecore.cli.exits import Exit
from flamecore.cli.output import json_option, print_json, say, verbose_option, wants_json
from flamecore.cli.stored import use_store
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.state.fronts import Phases

if TYPE_CHECKING:
    from flamecore.abc.store import Store
    from flamecore.model.graph import Graph
    from flamecore.runtime.state.migration import StatePlan


@click.command("plan")
@app_argument
@config_options
@click.option("--accept", is_flag=True, help="Allow the next run of this flow to drop the state that is not kept.")
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, /, app: str, accept: bool, **options: Any) -> None:
    """Compare the stored state with a changed flow.

    Say what the flow keeps, drops or cannot read, and what is new.

    APP is a job file (job.toml), a script (word_count.py or word_count.py:flow), or a module (package.module:flow).
    Every value is read. A job that runs meanwhile goes on undisturbed. If the last run was refused because a sink holds
    more than the state accounts for, that is said, too.

    The exit code is 1 if anything is not kept, unless it is accepted: that is written down beside the state, for the
    next run of the flow as it is now, and for no other.
    """
    config = read_app(app, Options(**options))
    spec = resolve(config, load_app_flow(app, config))
    spec.problems.raise_first()
    graph = spec.checked_graph

    async def act(store: Store) -> tuple[StatePlan, bool]:
        from flamecore.runtime.state.migration import plan_migration

        plan = await plan_migration(store, graph, spec.sources, spec.sink_names, Phases.of(spec.settings))
        return plan, bool(accept and plan.loss and await _accept(store, plan, graph))

    plan, accepted = use_store(config, spec.name, act)
    if wants_json(ctx):
        print_json({"job": spec.name, "accepted": accepted, **plan.described()})
    elif plan.snapshot is None and not plan.loss:
        say("there is no snapshot, so nothing can be lost")
    else:
        head = f"snapshot {plan.snapshot.number}" if plan.snapshot is not None else "no snapshot"
        say(f"{head} of job {spec.name}", *plan.lines())
        if accepted:
            say("accepted: the next run of this flow drops the state that is not kept", err=True)
        elif plan.loss:
            say("not all state is kept. To continue without the rest: flamestream plan --accept", err=True)
    if plan.loss and not accepted:
        ctx.exit(Exit.FAILED)


async def _accept(store: Store, plan: StatePlan, graph: Graph) -> str:
    from flamecore.runtime.state.accepted_loss import accept

    return await accept(store, plan.identity, graph, plan.loss)
