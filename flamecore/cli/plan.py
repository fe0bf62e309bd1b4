"""flamestream plan"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flamecore.cli.app import Options, app_argument, config_options, load_app_flow, read_app
from flamecore.cli.exits import Exit
from flamecore.cli.output import json_option, print_json, verbose_option, wants_json
from flamecore.cli.stored import use_store
from flamecore.launch import lay_out

if TYPE_CHECKING:
    from flamecore.graph import Graph
    from flamecore.stateplan import StatePlan
    from flamecore.store import Store


@click.command("plan")
@app_argument
@config_options
@click.option("--accept", is_flag=True, help="Let the next run of this flow drop what is not kept.")
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, /, app: str, accept: bool, **options: Any) -> None:
    """Say what of the stored state a changed flow keeps, drops or cannot read, and what is new.

    APP is a job file (job.toml), a script (word_count.py or word_count.py:flow), or a module (package.module:flow).
    Every value is read. A job that runs meanwhile goes on undisturbed.

    The exit code is 1 if anything is not kept, unless it is accepted: that is written down beside the state, for the
    next run of the flow as it is now, and for no other.
    """
    from flamecore.found import look

    config = read_app(app, Options(**options))
    layout = lay_out(config, load_app_flow(app, config))
    layout.problems.raise_first()
    graph = layout.sound_graph

    async def act(store: Store) -> tuple[StatePlan | None, bool]:
        from flamecore.stateplan import plan_of

        if not (await look(store)).snapshots:
            return None, False
        plan = await plan_of(store, graph, layout.sources, layout.sink_names, layout.settings.phases)
        return plan, bool(accept and plan.loss and await _accept(store, plan, graph))

    plan, accepted = use_store(config, layout.name, act)
    if wants_json(ctx):
        told = {} if plan is None else plan.described()
        print_json({"job": layout.name, "keeps_all": True, "accepted": accepted, "snapshot": None, **told})
    elif plan is None:
        click.echo("there is no snapshot, so nothing can be lost")
    else:
        click.echo("\n".join([f"snapshot {plan.snapshot.number} of job {layout.name}", *plan.lines()]))
        if accepted:
            click.echo("accepted: the next run of this flow drops what is not kept", err=True)
        elif plan.loss:
            click.echo("not all is kept. To drop what is not: flamestream plan --accept", err=True)
    if plan is not None and plan.loss and not accepted:
        ctx.exit(Exit.FAILED)


async def _accept(store: Store, plan: StatePlan, graph: Graph) -> str:
    from flamecore.acceptance import accept

    return await accept(store, plan.snapshot.identity, graph, plan.loss)
