"""Rounds one after another, until so many processes have been killed: a journal of them, and the tally."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

KILLS_A_ROUND: Final = 12

_TOLD: Final = ("victims", "troubles", "moments")


class Result(NamedTuple):
    """The result of a round.

    Attributes:
        victims: How many processes of each kind were killed.
        troubles: What happened besides, how often.
        moments: When they were killed.
        took_s: From the start to the end.
        recovered_ms: From when the job noticed a fault to its next output, for each recovery within a run.
    """

    victims: Counter[str]
    troubles: Counter[str]
    moments: Counter[str]
    took_s: float
    recovered_ms: list[float]

    @property
    def killed(self) -> int:
        """Return how many processes were killed."""
        return self.victims.total()


class WrongJournalError(Exception):
    """The journal is of other settings."""


Play = Callable[[int, int, Path], Result]
"""Play a round in a folder, by its seed and its number of kills. Raises AssertionError if a law is broken."""


class Campaign:
    """A series of rounds, whose seeds are drawn from one seed.

    Args:
        settings: Everything that the rounds depend on besides their seeds.
        seed: Seed of the seeds; None: that of the journal, else a random one.
        journal: File with a line for each round, where a later campaign goes on; None: nowhere.
        keep: Where the folder of a round that fails is left; None: where it was.

    Raises:
        WrongJournalError: The journal has another seed or other settings.
    """

    def __init__(
        self, settings: dict[str, Any], seed: int | None = None, journal: Path | None = None, keep: Path | None = None
    ) -> None:
        self._journal, self._keep = journal, keep
        text = journal.read_text("utf-8") if journal is not None and journal.exists() else ""
        self._lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        of = self._lines[0]["of"] if self._lines else {}
        if seed is None:
            seed = of.get("seed", random.randrange(2**32))
        self._of = {"seed": seed, **settings}
        if self._lines and of != self._of:
            raise WrongJournalError(f"{journal} is of {of}, and not of {self._of}; a journal has one series of rounds")
        print(f"seed {seed}", flush=True)
        if self._lines:
            print(f"goes on after {self.tally()}", flush=True)

    def go_on(self, kills: int, play: Play) -> None:
        """Play rounds until so many processes have been killed in all, or one fails.

        Args:
            kills: The number, with those of the journal.
            play: Plays a round.
        """
        for seed in islice(self._seeds(), len(self._lines), None):
            missing = kills - self.killed
            if missing <= 0 or not self.play(seed, min(KILLS_A_ROUND, missing), play):
                return

    def play(self, seed: int, kills: int, play: Play) -> bool:
        """Play one round, and return whether it keeps the laws.

        Args:
            seed: Seed of the round.
            kills: Number of kills.
            play: Plays a round.
        """
        folder = Path(tempfile.mkdtemp(prefix="soak-"))
        line: dict[str, Any] = {"number": len(self._lines), "round": seed, "of": self._of, "kills": kills}
        try:
            result = play(seed, kills, folder)
        except AssertionError as error:
            kept = shutil.move(folder, self._keep) if self._keep is not None else folder
            print(f"FAILED: {error}\nround {seed}; its folder: {kept}", file=sys.stderr)
            self._add(line | {"failed": str(error).partition("\n")[0], "folder": str(kept)})
            return False
        except BaseException:  # somebody ends it, or its own fault: there is nothing to look at
            shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)
        self._add(line | result._asdict())
        besides = f", {dict(result.troubles)}" if result.troubles else ""
        hit = f"{result.killed} killed ({self.killed} in all) in {result.took_s:.1f} s"
        print(f"  {hit}; {dict(+result.victims)}{besides}", flush=True)
        return True

    def _seeds(self) -> Iterator[int]:
        seeds = random.Random(self._of["seed"])
        while True:
            yield seeds.randrange(2**32)

    def _add(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        if self._journal is not None:
            with self._journal.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(line) + "\n")

    @property
    def killed(self) -> int:
        """Return how many processes were killed in rounds that keep the laws."""
        return self._counts("victims").total()

    @property
    def failed(self) -> int:
        """Return how many rounds broke a law."""
        return sum("failed" in line for line in self._lines)

    def _counts(self, of: str) -> Counter[str]:
        return sum((Counter(line.get(of, {})) for line in self._lines), Counter())

    def tally(self) -> str:
        """Return the range of rounds, what was killed, and how they ended."""
        victims, troubles, moments = map(self._counts, _TOLD)
        said = f"rounds 0 to {len(self._lines) - 1}: killed {victims.total()}: {dict(victims)}"
        said += f", at {dict(moments)}" if moments else ""
        said += f"; besides: {dict(troubles)}" if troubles else ""
        if self.failed:
            return f"{said}; {self.failed} rounds FAILED: {[line['round'] for line in self._lines if 'failed' in line]}"
        return f"{said}; lost 0, twice 0"

    def recoveries(self) -> str:
        """Return how many recoveries there were within runs, and how long they took."""
        took = sorted(ms for line in self._lines for ms in line.get("recovered_ms", ()))
        middle, most = (took[len(took) // 2], took[-1]) if took else (0.0, 0.0)
        return f"{len(took)} recoveries within a run: half within {middle:.0f} ms, all within {most:.0f} ms"
