"""The search of a job that goes on behind its end: whether there is any new record.

A run that finds none must change nothing. But what a front says at its end has a time of its own, by a clock that
counts, and timers that wait at the end may be due then. So no front says it before a front of the job has found a
record behind the end. Until then those that have nothing more to read wait for what the others find.

If the ends of fronts are marks, each run moves time on: to say them is what it is started for. By the wall clock, time
moves on by itself.

Plain state of the control, driven by messages like every part.
"""

from __future__ import annotations

from flamecore.model.messages import Found, FoundNothing, FrontEnded, Resume, Searched
from flamecore.model.ordered import Marking
from flamecore.model.plan import Plan


def must_search(plan: Plan, resume: Resume) -> bool:
    """Return whether the fronts of a job wait for a first record behind its end."""
    closing = any(isinstance(vertex, Marking) and vertex.closes for vertex in plan.graph.vertices)
    return bool(resume.behind_end) and not closing


class Search:
    """The decision whether a job has found a record behind its end.

    Args:
        plan: The job's plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._open = set(range(1, len(plan.fronts) + 1))
        self._over = False
        self._stopped = False

    def receive(self, message: Found | FoundNothing | FrontEnded) -> Searched | None:
        """Process a message of a front or a worker; return what to tell all workers, once."""
        found = isinstance(message, Found)
        if not isinstance(message, Found):
            self._open.discard(message.front)
        # A front that was stopped may have found something in the next run: those that wait are stopped, too, and look
        # again.
        if isinstance(message, FrontEnded) and message.stopped:
            self._stopped = True
        if self._over or (not found and (self._open or self._stopped)):
            return None
        self._over = True
        return Searched(found)
