"""The runs of a story that may be refused: those that have read damaged bytes."""

from __future__ import annotations

from random import Random

from flamecore.errors import CorruptError
from flamecore.testing.simulation.damages import Damages


def test_a_run_and_its_abandoned_predecessor_are_both_refused() -> None:
    disk = {"epoch/1": b"torn"}
    damages = Damages(disk, Random(0))
    error = CorruptError("its checksum is wrong", blob="epoch/1")
    damages.run_begins()
    assert not damages.accounts_for(error)
    damages.taken = {"epoch/1": b"whole"}
    assert not damages.accounts_for(CorruptError("another one", blob="epoch/0"))
    assert damages.accounts_for(error)
    assert disk == {"epoch/1": b"whole"}
    assert damages.accounts_for(error), "it had been read before"
    damages.run_begins()
    assert not damages.accounts_for(error)
