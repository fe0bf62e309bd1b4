"""Cases as data, played on the engine: what each says comes out, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from flamestream_windows.testing.cases import CaseError, replay


def _outcome(case: dict[str, Any], bundles: bool) -> str | None:
    try:
        replay(case, bundles=bundles)
    except CaseError as error:
        if "must_fail_with" not in case:
            raise
        return error.kind
    return None


@pytest.mark.parametrize("bundles", [False, True], ids=["elements", "bundles"])
def test_a_shared_case_holds(shared_case: dict[str, Any], bundles: bool) -> None:
    assert _outcome(shared_case, bundles) == shared_case.get("must_fail_with")


@pytest.mark.parametrize("bundles", [False, True], ids=["elements", "bundles"])
def test_a_case_of_the_plugin_holds(own_case: dict[str, Any], bundles: bool) -> None:
    assert _outcome(own_case, bundles) == own_case.get("must_fail_with")
