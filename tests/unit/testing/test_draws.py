"""Tiers and draws: which seeds and cases a run of tests has."""

from __future__ import annotations

import pytest

from flamecore.testing.draws import DRAW, TIER, chosen, seeds, tier


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIER, "quick")
    monkeypatch.setenv(DRAW, "5")


def test_a_tier_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIER, "quik")
    with pytest.raises(ValueError, match="'quik'; there are quick, more, whole"):
        tier()


@pytest.mark.parametrize(("name", "count"), [("quick", 20), ("more", 40), ("", 100), ("whole", 100)])
def test_a_tier_has_its_part_of_the_seeds(monkeypatch: pytest.MonkeyPatch, name: str, count: int) -> None:
    monkeypatch.setenv(TIER, name)
    assert len(seeds(100)) == count
    assert len(seeds(1)) == 1
    assert len(seeds(30, least=30)) == 30


def test_draws_and_parts_share_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for draw in range(20):
        monkeypatch.setenv(DRAW, str(draw))
        found += [seed for part in range(5) for seed in seeds(50, part)]
    assert len(set(found)) == len(found) == 20 * 5 * 10


def test_without_a_draw_seeds_begin_at_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DRAW)
    assert seeds(10)[0] == 0


def test_draws_in_a_row_take_other_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for draw in range(100, 110):
        monkeypatch.setenv(DRAW, str(draw))
        found += chosen(range(20), "test", 0.1)
    assert sorted(found) == list(range(20))


def test_tests_take_different_cases() -> None:
    assert len({tuple(chosen(range(20), f"test_{number}", 0.1)) for number in range(10)}) > 5
