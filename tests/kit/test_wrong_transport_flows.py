"""Deployments over transports that are wrong: the flows of the kit do not come out as they should, or not at all."""

from __future__ import annotations

from typing import Any
from unittest import SkipTest

import pytest

from flamecore.abc.transport import Delivery, TransportCapabilities
from flamecore.errors import FlameError
from flamecore.testing.flows.over_transport import (
    Cell,
    TransportFlowTests,
    all_cells,
    check_cell,
    check_flows,
    chosen_cells,
)
from flamecore.testing.laws import LawBroken
from flamestream_inproc import InprocEndpoint, InprocTransport

CELL = Cell("centralized", 4)


class Wrong(InprocTransport):
    """The good transport, with endpoints that do some hand-overs by `fault`.

    Attributes:
        every: One of so many.
    """

    every = 20
    count = 0

    class endpoint(InprocEndpoint):
        _transport: Wrong

        def _take(self, delivery: Delivery) -> None:
            self._transport.count += 1
            if self._transport.count % self._transport.every == 0:
                self._transport.fault(self, delivery)
            else:
                self.good(delivery)

        def good(self, delivery: Delivery) -> None:
            super()._take(delivery)

    async def bind(self, address: str) -> InprocEndpoint:
        await super().bind(address)
        endpoint = self.endpoints[address] = self.endpoint(address, self)
        return endpoint

    def fault(self, endpoint: Any, delivery: Delivery) -> None:
        raise NotImplementedError


class Drops(Wrong):
    def fault(self, endpoint: Any, delivery: Delivery) -> None:
        pass


class Duplicates(Wrong):
    def fault(self, endpoint: Any, delivery: Delivery) -> None:
        endpoint.good(delivery)
        endpoint.good(delivery)


class Reorders(Wrong):
    """Each second message comes before all that wait: of items alone the sequence hardly counts, as they are sorted."""

    every = 2

    def fault(self, endpoint: Any, delivery: Delivery) -> None:
        endpoint.good(delivery)
        endpoint._queue.rotate(1)


@pytest.mark.parametrize("wrong", [Drops, Duplicates, Reorders])
def test_a_transport_that_breaks_the_laws_of_channels_is_caught(wrong: type[Wrong]) -> None:
    with pytest.raises((LawBroken, FlameError)):
        check_cell(wrong, CELL, limit_s=2)


class Changes(InprocTransport):
    """A transport that changes messages: tuples become lists."""

    def copy(self, message: Any) -> Any:
        if type(message).__name__ != "Released":
            return message
        changed = [[*payload] if isinstance(payload, tuple) else payload for payload in message.payloads]
        return message._replace(payloads=changed)


def test_a_transport_that_changes_payloads_is_caught_with_the_difference() -> None:
    with pytest.raises(LawBroken) as caught:
        check_cell(Changes, CELL)
    assert caught.value.law == "flows"
    for words in ("transport='inproc'", "centralized-4", "got [[", "wanted [("):
        assert words in str(caught.value)


def test_the_right_transport_passes() -> None:
    ran = check_flows(InprocTransport)
    assert [each.cell for each in ran] == all_cells(InprocTransport)
    assert sum(each.replays for each in ran), "there was something to repair"


class SeveralProcesses(InprocTransport):
    """Says so; never run here."""

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)


def test_the_sample_has_every_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLAMESTREAM_TIER", raising=False)
    cells = all_cells(SeveralProcesses)
    chosen = chosen_cells(cells)
    assert (len(cells), len(chosen)) == (27, 9)
    for pair in (
        lambda cell: (cell.acker, cell.place),
        lambda cell: (cell.acker, cell.workers),
        lambda cell: (cell.place, cell.workers),
    ):
        assert {pair(cell) for cell in cells} == {pair(cell) for cell in chosen}  # type: ignore[no-untyped-call]
    assert chosen_cells(cells, [cells[0]]) == [cells[0]]
    monkeypatch.setenv("FLAMESTREAM_TIER", "whole")
    assert chosen_cells(cells, [cells[0]]) == cells


def test_deployments_left_out_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLAMESTREAM_TIER", raising=False)

    class Sampled(TransportFlowTests):
        driver = InprocTransport
        sample = (CELL,)

    sampled = Sampled()
    sampled.test_flows(CELL)
    with pytest.raises(SkipTest, match=r"1 of 9 deployments run.* 8 left out"):
        sampled.test_deployments_left_out_are_reported()
