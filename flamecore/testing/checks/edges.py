"""The public kit for edges: checks as functions, and pytest classes.

They are `check_source`, `check_live`, `check_sink`, `class TestMine(SourceTests)` and `class TestMine(SinkTests)`.
Nothing here needs a test runner. A driver that breaks a law of its contract (`flamecore.abc.source`,
`flamecore.abc.sink`) raises `EdgeBroken`, whose `law` is one of

* sources: `complete`, `limit`, `positions`, `fresh`, `ends`, `described`, `reopens`, `replayable`, `refuses`,
  `fingerprint`, `cancelled`, `prompt`, `acknowledged`, `grown`, `changed`;
* sinks: `declares`, `fresh`, `keeps`, `delivers`, `visible`, `atomic`, `encodes`, `resumes`, `foreign`, `closes`,
  `continues`, `syncs`, `fenced`, `killed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flamecore.abc.sink import Sink
from flamecore.abc.source import Source
from flamecore.testing.checks.sink_state import (
    check_sink,
    check_sink_continues,
    check_sink_is_fenced,
    check_sink_survives_kills,
    check_sink_syncs,
)
from flamecore.testing.checks.sinks import (
    PAYLOADS,
    MakeSink,
    check_sink_delivers,
    check_sink_encodes,
    check_sink_is_atomic,
    check_sink_replaces,
    check_sink_resumes,
)
from flamecore.testing.checks.sources import (
    EdgeBroken,
    MakeSource,
    check_acknowledged,
    check_cancelled,
    check_changed,
    check_fingerprint,
    check_grown,
    check_live,
    check_reads_all,
    check_replays,
    check_source,
)

__all__ = [
    "PAYLOADS",
    "EdgeBroken",
    "MakeSink",
    "MakeSource",
    "SinkTests",
    "SourceTests",
    "check_acknowledged",
    "check_cancelled",
    "check_changed",
    "check_fingerprint",
    "check_grown",
    "check_live",
    "check_reads_all",
    "check_replays",
    "check_sink",
    "check_sink_continues",
    "check_sink_delivers",
    "check_sink_encodes",
    "check_sink_is_atomic",
    "check_sink_is_fenced",
    "check_sink_replaces",
    "check_sink_resumes",
    "check_sink_survives_kills",
    "check_sink_syncs",
    "check_source",
]


class SourceTests:
    r"""The checks as a class for pytest. Must be given: `make` and `expected`.

    Example:
        class TestMine(SourceTests):
            expected = ("a", "b")

            def make(self, folder: Path) -> Source:
                (folder / "input").write_text("a\nb\n")
                return Mine(Mine.Options(path=str(folder / "input")), EdgeContext("mine", str))
    """

    expected: Sequence[Any]
    rejected: int = 0

    def make(self, folder: Path) -> Source:
        """Make the source, over the same input every time; `folder` is the test's own."""
        raise NotImplementedError("give `make(self, folder)` in your class")

    def test_reads_all(self, tmp_path: Path) -> None:
        asyncio.run(check_reads_all(partial(self.make, tmp_path), self.expected, rejected=self.rejected))

    def test_replays(self, tmp_path: Path) -> None:
        asyncio.run(check_replays(partial(self.make, tmp_path), self.expected))

    def test_fingerprint(self, tmp_path: Path) -> None:
        asyncio.run(check_fingerprint(partial(self.make, tmp_path)))

    def test_acknowledged(self, tmp_path: Path) -> None:
        asyncio.run(check_acknowledged(partial(self.make, tmp_path), self.expected))

    def test_cancelled_reads_lose_nothing(self, tmp_path: Path) -> None:
        asyncio.run(check_cancelled(partial(self.make, tmp_path), self.expected))


class SinkTests:
    """The checks as a class for pytest. Must be given: `make` and `read_back`.

    The attribute `payloads` replaces the payloads that are written.
    """

    payloads: Sequence[Any] = PAYLOADS

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        """Make the sink, in the same place every time; `folder` is the test's own."""
        raise NotImplementedError("give `make(self, folder, *, resume, fingerprint)` in your class")

    def read_back(self, folder: Path) -> Sequence[Any]:
        """Read what was written, without the sink."""
        raise NotImplementedError("give `read_back(self, folder)` in your class")

    def test_delivers(self, tmp_path: Path) -> None:
        make, read_back = partial(self.make, tmp_path), partial(self.read_back, tmp_path)
        asyncio.run(check_sink_delivers(make, read_back, self.payloads))

    def test_is_atomic(self, tmp_path: Path) -> None:
        make, read_back = partial(self.make, tmp_path), partial(self.read_back, tmp_path)
        asyncio.run(check_sink_is_atomic(make, read_back, self.payloads))

    def test_replaces(self, tmp_path: Path) -> None:
        make, read_back = partial(self.make, tmp_path), partial(self.read_back, tmp_path)
        asyncio.run(check_sink_replaces(make, read_back, self.payloads))

    def test_encodes(self, tmp_path: Path) -> None:
        make, read_back = partial(self.make, tmp_path), partial(self.read_back, tmp_path)
        asyncio.run(check_sink_encodes(make, read_back, self.payloads))

    def test_resumes(self, tmp_path: Path) -> None:
        make, read_back = partial(self.make, tmp_path), partial(self.read_back, tmp_path)
        asyncio.run(check_sink_resumes(make, read_back, self.payloads))

    def test_continues(self, tmp_path: Path) -> None:
        make, read_back = partial(self.make, tmp_path), partial(self.read_back, tmp_path)
        asyncio.run(check_sink_continues(make, read_back, self.payloads))

    def test_syncs(self, tmp_path: Path) -> None:
        make, read_back = partial(self.make, tmp_path), partial(self.read_back, tmp_path)
        asyncio.run(check_sink_syncs(make, read_back, self.payloads))

    def test_is_fenced(self, tmp_path: Path) -> None:
        make, read_back = partial(self.make, tmp_path), partial(self.read_back, tmp_path)
        asyncio.run(check_sink_is_fenced(make, read_back, self.payloads))

    def test_survives_kills(self, tmp_path: Path) -> None:
        check_sink_survives_kills(self, tmp_path)
