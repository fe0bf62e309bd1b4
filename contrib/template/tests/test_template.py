"""The source through the public kit, and in a job that finds it by its entry point."""

from __future__ import annotations

from pathlib import Path

from flamestream_template import Options, TemplateSource

import flamecore as fc
from flamecore.abc.source import EdgeContext, Source
from flamecore.testing.checks.edges import SourceTests


class TestTemplate(SourceTests):
    expected = tuple("abcdefghij")

    def make(self, folder: Path) -> Source:
        return TemplateSource(Options(values=self.expected), EdgeContext("letters", str))


def test_a_job_finds_the_driver() -> None:
    flow = fc.Flow("letters")
    flow.source("letters", str).map(str.upper).sink("capitals")
    settings = {"source.letters.use": "template", "source.letters.values": ["a", "b"]}
    assert flow.run(settings=settings)["capitals"] == ["A", "B"]
