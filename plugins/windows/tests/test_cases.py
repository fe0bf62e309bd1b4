"""Cases as data, played on the engine: what each says comes out, and nothing else."""

from __future__ import annotations

from typing import Any

from flamestream_windows.testing.cases import CaseError, replay


def _outcome(case: dict[str, Any]) -> str | None:
    try:
        replay(case)
    except CaseError as error:
        if "must_fail_with" not in case:
            raise
        return error.kind
    return None


def test_a_shared_case_holds(shared_case: dict[str, Any]) -> None:
    assert _outcome(shared_case) == shared_case.get("must_fail_with")


def test_a_case_of_the_plugin_holds(own_case: dict[str, Any]) -> None:
    assert _outcome(own_case) == own_case.get("must_fail_with")
