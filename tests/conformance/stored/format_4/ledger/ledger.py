"""The flow whose state is stored here: entries of some accounts, in every kind of operation that keeps state.

As it was when the state was written, and to stay so: state is found by the names of operations and classes.
"""

import os
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import flamecore as fc
from flamecore.model.expansion import expand

PAUSE_S = float(os.environ.get("LEDGER_PAUSE_S", "0"))
"""How long each entry takes: whoever stores the state needs time to kill the job."""


class Kind(Enum):
    """A kind of entry: a key of stored state."""

    CREDIT = "credit"
    DEBIT = "debit"


class Entry(NamedTuple):
    """One line of the input."""

    account: str
    kind: Kind
    amount: int
    number: int


@dataclass(frozen=True)
class Extreme:
    """An amount and the entry that it is of: inside of another state."""

    amount: int
    number: int


class Balance(NamedTuple):
    """State of the fold."""

    total: int = 0
    largest: Extreme | None = None


class Running(NamedTuple):
    """A state on its way round the cycle that is drawn here."""

    account: str
    value: int


def read(entry: Entry) -> Entry:
    """Take the time that an entry takes."""
    time.sleep(PAUSE_S)
    return entry


def number_of(entry: Entry) -> int:
    """Tell which entry it is."""
    return entry.number


def checked(entry: Entry) -> Entry:
    """Fail on some entries."""
    if entry.amount % 13 == 0:
        raise ValueError(f"{entry.amount} brings bad luck")
    return entry


def account_of(entry: Entry) -> str:
    """Tell the account."""
    return entry.account


def kind_of(entry: Entry) -> Kind:
    """Tell the kind."""
    return entry.kind


def advanced(before: Balance, entry: Entry) -> Balance:
    """Fold an entry into a balance; fails on some, and the balance stays as it was."""
    if entry.amount % 11 == 0:
        raise ValueError(f"{entry.amount} is refused")
    largest = before.largest
    if largest is None or entry.amount > largest.amount:
        largest = Extreme(entry.amount, entry.number)
    return Balance(before.total + entry.amount * (1 if entry.kind is Kind.CREDIT else -1), largest)


def summary(window: tuple[Entry, ...]) -> tuple[str, list[int]]:
    """Tell which entries are in a window."""
    return window[-1].account, [entry.number for entry in window]


def moment(entry: Entry) -> fc.GlobalTime:
    """Make a payload of a class that is the engine's own, and public."""
    return fc.GlobalTime(entry.number, entry.amount)


def parity(moment: fc.GlobalTime) -> int:
    """Give moments two keys."""
    return moment.time % 2


def apart(window: tuple[fc.GlobalTime, ...]) -> int:
    """Tell how far the moments of a window are from each other."""
    return window[-1].time - window[0].time


def running(window: tuple[Entry | Running, ...]) -> list[Running]:
    """Make the next state where an entry meets the one that its predecessor left, or is the first."""
    entry, before = window[-1], window[0]
    if isinstance(entry, Running):
        return []
    if len(window) == 1:
        return [Running(entry.account, entry.amount)]
    return [Running(entry.account, before.value + entry.amount)] if isinstance(before, Running) else []


def round_again(inside: fc.Stream[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    """Draw the cycle."""
    sums = inside.key_by(account_of).group(2, name="pairs").flat_map(running, name="running")
    return sums, sums


def tell(flow: fc.Flow, count: str = "count") -> fc.Flow:
    """Draw the flow; its count is of that name."""
    entries = flow.source("entries", Entry).map(read, name="read")
    entries.map(number_of, name="number").sink("seen")
    good = entries.map(checked, name="checked")
    good.key_by(account_of).fold(Balance(), advanced, name="balance").sink("balances")
    good.key_by(account_of).group(3, name="last").map(summary, name="summary").sink("windows")
    entries.map(moment, name="moment").key_by(parity).group(2, name="nearest").map(apart, name="apart").sink("moments")
    good.loop(round_again, name="round").sink("totals")
    good.key_by(kind_of).count(name=count).sink("counts")
    return flow


class Drawn(fc.Flow):
    """A flow each of whose states is drawn as the cycle that it means: what goes round is of the engine's own class."""

    def graph(self, *, barrier: bool = True) -> fc.Graph:
        """Draw the cycles."""
        return expand(super().graph(barrier=barrier))


flow = tell(fc.Flow("ledger"))
drawn = tell(Drawn("ledger"))
recounted = tell(fc.Flow("ledger"), "recount")
