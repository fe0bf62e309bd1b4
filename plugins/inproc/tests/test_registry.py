"""The registry in memory against its contract."""

from __future__ import annotations

import pytest

from flamecore.abc.registry import JobRegistry, RegistryContext
from flamecore.testing.checks.registries import RegistryTests
from flamestream_inproc.registry import Held, SupervisorRegistry, flamestream_registry


class TestRegistry(RegistryTests):
    @pytest.fixture(autouse=True)
    def _hold(self) -> None:
        self.held = Held()

    def make(self) -> JobRegistry:
        return SupervisorRegistry(None, RegistryContext(), self.held)


def test_the_module_provides_the_registry() -> None:
    assert flamestream_registry() is SupervisorRegistry
    assert not SupervisorRegistry(None, RegistryContext()).capabilities.shared
