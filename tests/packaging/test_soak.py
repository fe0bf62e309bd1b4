"""The series of rounds that the soak plays: it goes on where its journal ends, and a kill counts if it has hit."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from campaign import KILLS_A_ROUND, Campaign, Result, WrongJournalError
from processes import Node, born, kill

SETTINGS = {"on": "processes", "size": 10}


class Rounds:
    """Rounds that kill nothing, and remember what they were asked for; one of them may break a law or be interrupted.

    Args:
        breaks: Number of the round that breaks a law.
        ends: Number of the round that is interrupted.
    """

    def __init__(self, breaks: int = -1, ends: int = -1) -> None:
        self.asked: list[tuple[int, int]] = []
        self.folders: list[Path] = []
        self._breaks, self._ends = breaks, ends

    def __call__(self, seed: int, kills: int, folder: Path) -> Result:
        number = len(self.asked)
        self.asked.append((seed, kills))
        self.folders.append(folder)
        (folder / "log").write_text("said")
        if number == self._ends:
            sys.exit("terminated")
        assert number != self._breaks, "a record is lost"
        return Result(Counter(worker=kills - 1, executor=1), Counter(), Counter(), 1.0, [float(kills)])


def test_a_series_that_is_interrupted_goes_on_as_one_that_is_not(tmp_path: Path) -> None:
    whole = Rounds()
    there = Campaign(SETTINGS, 7)
    there.go_on(30, whole)
    assert [kills for _, kills in whole.asked] == [KILLS_A_ROUND, KILLS_A_ROUND, 30 - 2 * KILLS_A_ROUND]
    journal = tmp_path / "journal"
    first, second = Rounds(ends=1), Rounds()
    with pytest.raises(SystemExit):
        Campaign(SETTINGS, 7, journal).go_on(30, first)
    again = Campaign(SETTINGS, None, journal)
    assert again.killed == KILLS_A_ROUND
    again.go_on(30, second)
    assert first.asked[:1] + second.asked == whole.asked
    assert again.tally() == there.tally()
    assert again.tally().startswith("rounds 0 to 2: killed 30: ")
    assert again.tally().endswith("; lost 0, twice 0")
    assert again.recoveries() == there.recoveries()
    assert not [folder for folder in (*first.folders, *second.folders) if folder.exists()]
    Campaign(SETTINGS, 7, journal).go_on(30, first)
    assert len(first.asked) == 2, "there is nothing left to do"


@pytest.mark.parametrize(("settings", "seed"), [({"on": "spark", "size": 10}, 7), (SETTINGS, 8)])
def test_a_journal_of_another_series_is_refused(tmp_path: Path, settings: dict[str, object], seed: int) -> None:
    Campaign(SETTINGS, 7, tmp_path / "journal").go_on(1, Rounds())
    with pytest.raises(WrongJournalError, match="a journal has one series"):
        Campaign(settings, seed, tmp_path / "journal")


def test_a_round_that_breaks_a_law_ends_the_series_and_stays_in_its_tally(tmp_path: Path) -> None:
    rounds = Rounds(breaks=1)
    there = Campaign(SETTINGS, 7, tmp_path / "journal", tmp_path / "kept")
    there.go_on(100, rounds)
    assert (len(rounds.asked), there.failed, there.killed) == (2, 1, KILLS_A_ROUND)
    assert (tmp_path / "kept" / "log").read_text() == "said"
    again = Campaign(SETTINGS, 7, tmp_path / "journal")
    again.go_on(2 * KILLS_A_ROUND, Rounds())
    assert again.failed == 1
    assert "lost 0" not in again.tally()
    assert f"1 rounds FAILED: [{rounds.asked[1][0]}]" in again.tally()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_kill_counts_if_it_is_the_end_of_the_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        node = Node(process.pid, "worker", "worker", born(process.pid))
        assert kill(node)
        assert process.wait() == -9
        assert not kill(node), "it was gone"
    with subprocess.Popen([sys.executable, "-c", "print()"], stdout=subprocess.PIPE) as process:
        node = Node(process.pid, "worker", "worker", born(process.pid))
        assert process.stdout is not None
        process.stdout.read()
        while born(process.pid):
            pass
        assert not kill(node), "it had ended by itself, and was not waited for"
        assert process.wait() == 0
