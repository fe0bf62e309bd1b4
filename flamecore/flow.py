"""The flow as users write it: the graph of a flow, and `run`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamecore.model.failure import shown_at_caller
from flamecore.model.flow import FlowGraph

if TYPE_CHECKING:
    from flamecore.runtime.launch import Outputs


class Flow(FlowGraph):
    """A named dataflow. Describe it once; where it runs is said elsewhere.

    Args:
        name: Shows in errors, logs and pictures.
        ordering: Refused: there is one ordering, and docs/explanation/why-tombstones.md says why.

    Example:
        >>> flow = Flow("word-count")
        >>> words = flow.source("lines", str).flat_map(str.split)
        >>> words.key_by(lambda word: word).count().sink("counts")
        >>> flow.run({"lines": ["to be or", "not to be"]})["counts"]
        [('to', 1), ('be', 1), ('or', 1), ('not', 1), ('to', 2), ('be', 2)]
    """

    @shown_at_caller
    def run(
        self,
        inputs: Mapping[str, Iterable[Any]] | None = None,
        *,
        workers: int = 1,
        acker: str | None = None,
        transport: str | None = None,
        state: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Outputs:
        """Run the flow in this process, to the end of its inputs, and return its outputs.

        It stays in this process wherever its data is at home; a job file runs elsewhere.

        Args:
            inputs: For each source, its records. Sources that are not named here need a driver in `settings`.
            workers: Number of workers. The outputs do not depend on it.
            acker: Name of the acker driver; None: the default one.
            transport: Name of the transport driver; None: the default one, which stays in this process.
            state: A folder for snapshots of the flow's state; None: none are taken. A run with the state of an earlier
                one goes on where that stopped.
            settings: More configuration, as dotted keys: `{"source.pages.use": "jsonl", "source.pages.path":
                "pages.jsonl"}`.

        Under pytest the functions of the flow are checked on every record, as `job.check_types` and
        `job.check_mutation` say.

        Returns:
            For each sink, the list of its outputs in order. Its attribute `dead_letters` has the records that were left
            out, where `job.on_error` or that of a source is "dead_letter".

        Raises:
            GraphError, ConfigError: The flow or the settings cannot work.
            OperationError: A function of the flow failed; the text shows the record, `cause` is what it raised.
            KeyboardInterrupt: Ctrl-C. It has, as every error that ends a run which has begun, the attribute `outputs`:
                what the sinks had taken by then, as `Outputs`.
        """
        from flamecore.runtime.launch import run_embedded  # late: a program that only describes a flow starts no engine

        return run_embedded(
            self,
            {} if inputs is None else inputs,
            workers=workers,
            acker=acker,
            transport=transport,
            state=state,
            settings=settings or {},
        )
