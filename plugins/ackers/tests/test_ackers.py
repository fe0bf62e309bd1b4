"""Every acker of this plugin, and combinations, by the public kit; and as plugins."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import msgspec
import pytest

from flamecore.abc.acker import API, Acker, AckerPlan
from flamecore.testing.checks.ackers import AckerTests, check_acker

Build = Callable[..., Callable[[AckerPlan], Acker]]

COMBINATIONS: dict[str, tuple[str, dict[str, object]]] = {
    "centralized": ("centralized", {}),
    "local": ("local", {}),
    "local that hardly waits": ("local", {"flush_interval_ms": 0.5, "flush_count": 2}),
    "one shard": ("sharded", {"shards": 1}),
    "two shards": ("sharded", {"shards": 2}),
    "four shards": ("sharded", {"shards": 4}),
    "local over three shards": ("local", {"inner": "sharded", "inner_options": {"shards": 3}, "flush_interval_ms": 2}),
    "local over local": ("local", {"inner": "local", "inner_options": {"flush_interval_ms": 1}}),
}


class TestEveryCombination(AckerTests):
    runs = 500

    @pytest.fixture(autouse=True, params=COMBINATIONS.values(), ids=list(COMBINATIONS))
    def _builder(self, acker: Build, request: pytest.FixtureRequest) -> None:
        name, options = request.param
        self.build = acker(name, **options)

    def make(self, plan: AckerPlan) -> Acker:
        return self.build(plan)


def test_the_check_runs_without_a_test_runner(acker: Build) -> None:
    check_acker(acker("centralized"), runs=20)


@pytest.mark.parametrize("name", ["centralized", "local", "sharded"])
def test_each_module_is_a_plugin(name: str) -> None:
    driver = import_module(f"flamestream_ackers.{name}").flamestream_acker()
    assert issubclass(driver, Acker)
    assert (driver.name, driver.api) == (name, API)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("sharded", {"shards": 0}),
        ("local", {"flush_count": 0}),
        ("local", {"flush_interval_ms": -1}),
        ("local", {"x": 1}),
    ],
)
def test_options_are_strict(name: str, table: dict[str, object]) -> None:
    driver = import_module(f"flamestream_ackers.{name}").flamestream_acker()
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, driver.Options)
