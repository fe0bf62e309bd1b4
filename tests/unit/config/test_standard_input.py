"""The standard input, which one source of a job may read."""

from __future__ import annotations

import pytest

import flamecore as fc
from flamecore.errors import ConfigError
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve


def two() -> fc.Flow:
    flow = fc.Flow("two")
    flow.source("a", str).merge(flow.source("b", str)).sink("out")
    return flow


def test_several_sources_of_standard_input_are_refused() -> None:
    spec = resolve(make_config(from_program({"source.a.use": "stdin", "source.b.use": "stdin"})), two())
    with pytest.raises(ConfigError, match="'a' and 'b' would share the standard input") as caught:
        spec.problems.raise_first()
    assert caught.value.path == "source.b"


def test_one_source_of_standard_input_is_right() -> None:
    settings = {"source.a.use": "stdin", "source.b.use": "lines", "source.b.path": "lines.txt"}
    spec = resolve(make_config(from_program(settings)), two())
    assert "standard input" not in " ".join(map(str, spec.problems))
