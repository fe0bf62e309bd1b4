"""Names of everything that is logged: `noun.verb_past`.

The rest of a log line is keys and values. The library itself logs nothing and configures nothing; the command line logs
for it, on stderr.
"""

from __future__ import annotations

from typing import Final

JOB_STARTED: Final = "job.started"
"""A job is about to start; said with -v. Keys: `job`, what is configured for it, and the driver of each part."""

JOB_PLACED: Final = "job.placed"
"""A job runs on the host where its data is at home, as nothing else is said; said as text where the log is not JSON.
Keys: `job`, `on`, `transport`, and `because`, the sources and sinks with data there. Functions of a program that choose
the host themselves say it as their first line: `because` is then what has decided."""

JOB_AWAITED: Final = "job.awaited"
"""A job waits for its workers; said as text where the log is not JSON. Keys: `job`, `start_timeout_s`, and the
`commands` that start them."""

COMMAND_NOTED: Final = "command.noted"
"""A command has a note for people, besides the result that was asked for; said as text where the log is not JSON.
Keys: `text`."""

NODE_PRINTED: Final = "node.printed"
"""A process of a job has printed a line; said as text where the log is not JSON. Keys: `process`, and `text`."""

JOB_PROGRESSED: Final = "job.progressed"
"""The progress of a job, once per interval. Keys: `job` and those of `flamecore.runtime.parts.counters.JobStats`."""

JOB_DRAINED: Final = "job.drained"
"""A job was asked to stop, and has delivered all it had admitted. Keys: as for `job.progressed`."""

JOB_ENDED: Final = "job.ended"
"""A job has come to the end of its sources, and has delivered everything. Keys: as for `job.progressed`, and for each
sink `output.SINK`, as for `job.drained`."""

JOB_FAILED: Final = "job.failed"
"""A job has ended with an error, which is printed after this line. Keys: as for `job.progressed`, and `error`."""

COMMAND_FAILED: Final = "command.failed"
"""The error that a command ends with; printed as text where the log is not JSON. Keys: `error`, its `message` and
`hint`, its own facts, and `exit_code`."""

LIBRARY_LOGGED: Final = "library.logged"
"""A line of a library's own log, with -v, where the log is JSON. Keys: `logger`, `message`."""

JOB_DELAYED: Final = "job.delayed"
"""A job ends with an error, and that takes a while. A warning. Keys: `job`, `error`, what it `waits_for`, if that is
known, and `grace_s`, how long at most for each."""

EDGE_WAITED: Final = "edge.waited"
"""A source or sink has long been waited for. A warning. Keys: `job`, `edge`, `to` do what, `waited_s`, `limit_s`, and
what is `known` of its output."""

END_AWAITED: Final = "end.awaited"
"""A source has read all that is there, and others have yet to mark its end. A warning, once a run. Keys: `job`,
`source`, `waited_s`, and a `hint`."""

REST_WAITED: Final = "rest.waited"
"""All is over but for what drivers or functions of the user have left behind. A warning. Keys: what it `waits_for`,
`limit_s`, and `error`, if it has ended with one."""

TRANSPORT_EXPOSED: Final = "transport.exposed"
"""Other machines can reach this process unprotected, as `insecure = true` allows. Keys: `location`, `missing`."""

CERTIFICATES_REPLACED: Final = "certificates.replaced"
"""New files for TLS are there, and used for new connections. Keys: `certificate`, the file of the certificate."""

CERTIFICATES_REFUSED: Final = "certificates.refused"
"""New files for TLS cannot be used; the former stay. A warning, once for each change. Keys: `reason`."""

NODE_REFUSED: Final = "node.refused"
"""A process that wanted to join a job was turned away; the job goes on. A warning. Keys: `job`, `node`, `why`."""

CALL_LASTED: Final = "call.lasted"
"""A call of a user's function has lasted for some time, and all else in its process waits for it. A warning, once in so
many seconds. Keys: `function`, `at` which line it is, `lasted_s`, and `pid`."""

NODE_WAITED: Final = "node.waited"
"""Nothing has been heard of a process for some time, and the system says that it is there: a call of a user's function
keeps it, or it is stopped. The job waits for it. A warning, once in so many seconds. Keys: `job`, `node`, `state`
(`running` or `stopped`), `pid`, `silent_s`."""

NODE_UNWATCHED: Final = "node.unwatched"
"""The process beside this node, which says of it whether it is there, could not start or has ended: the job judges the
node by its own messages. A warning. Keys: `job`, `node`, `why`."""

NODE_ABANDONED: Final = "node.abandoned"
"""A process has not ended its parts in time after a fault, and the job goes on without it. One that was started
elsewhere comes back when it has. A warning. Keys: `job`, `node`, `limit_s`."""

NODES_AWAITED: Final = "nodes.awaited"
"""A job has long been waiting for its processes. A warning. Keys: `job`, `to` have done what, who has `joined`,
`waited_s`, `limit_s`."""

MESSAGE_REFUSED: Final = "message.refused"
"""A part of a job was sent something that it does not understand, and goes on without it. A warning, once for each
sender. Keys: `address` of the part, `sender`, `kind` of what came."""

PARTITION_REMOVED: Final = "partition.removed"
"""Partitions of a source that were read whole, such as files, are no longer there; said once. A warning. Keys: `job`,
`source`, how many `partitions`, and the `first` of them."""

PHASE_SKIPPED: Final = "phase.skipped"
"""A later phase of a source begins, and the state holds nothing of an earlier one. A warning. Keys: `job`, `source`,
`phase`, and a `hint`."""

CALLS_WASTED: Final = "calls.wasted"
"""More than half of the calls that stateful operations have made were in vain. A warning, once for each run. Keys:
`job`, the `operation` with most of them, its `calls` and `calls_in_vain`, and a `hint`."""

JOB_FAULTED: Final = "job.faulted"
"""A part of a job is gone, and the job goes on from its last snapshot. A warning. Keys: `job`, `what`, `faults`."""

JOB_RECOVERED: Final = "job.recovered"
"""A job goes on after a fault. Keys: `job`, `epoch`, `time` it goes on from, `took_ms` since the fault was noticed."""

JOB_TURNED: Final = "job.turned"
"""A job goes on in another shape, as was asked for. Keys: `job`, `epoch`, `workers`, `pause_ms`."""

ALL: Final = frozenset(
    {
        JOB_STARTED,
        JOB_PLACED,
        JOB_AWAITED,
        COMMAND_FAILED,
        COMMAND_NOTED,
        NODE_PRINTED,
        LIBRARY_LOGGED,
        JOB_PROGRESSED,
        JOB_DRAINED,
        JOB_ENDED,
        JOB_FAILED,
        NODE_REFUSED,
        MESSAGE_REFUSED,
        PHASE_SKIPPED,
        PARTITION_REMOVED,
        JOB_FAULTED,
        JOB_RECOVERED,
        JOB_TURNED,
        JOB_DELAYED,
        REST_WAITED,
        EDGE_WAITED,
        END_AWAITED,
        TRANSPORT_EXPOSED,
        CERTIFICATES_REPLACED,
        CALLS_WASTED,
        NODES_AWAITED,
        CALL_LASTED,
        NODE_WAITED,
        NODE_UNWATCHED,
        NODE_ABANDONED,
        CERTIFICATES_REFUSED,
    }
)
"""Every event there is."""
