"""The public test kit: checks of drivers, and tools for the tests of flows.

The checks need no test runner; they exist as classes for pytest, too. Modules here may import every room but the
command line; no room imports them.

For flows: `assert_deterministic` and `assert_exactly_once`; the reference interpreter `interpret`; `Simulation`, a job
under a seeded scheduler, and `Crashes`, a job that keeps state and dies again and again. For studies of the meta:
`Machine`, which runs a graph by the rules of `Tombstones` or of `LocalTimes`. For plugins:
`check_transport`, `check_acker`, `check_barrier`, `check_source`, `check_sink`, `check_store`, `check_registry`, and
the pytest classes of the same kinds; `check_flows` runs whole jobs over a transport; `Faulty` and `Proxy` cause faults
for transports. A module is imported when one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flamecore.testing.checks.ackers import AckerTests, check_acker
    from flamecore.testing.checks.barriers import BarrierTests, check_barrier
    from flamecore.testing.checks.edges import SinkTests, SourceTests
    from flamecore.testing.checks.registries import RegistryTests, check_registry
    from flamecore.testing.checks.sink_state import check_sink
    from flamecore.testing.checks.sources import check_live, check_source
    from flamecore.testing.checks.stores import StoreTests, check_store
    from flamecore.testing.checks.transports import FaultyTransportTests, TransportTests, check_transport
    from flamecore.testing.faults import Faulty, Proxy
    from flamecore.testing.flows.deterministic import acker_named, assert_deterministic
    from flamecore.testing.flows.exactly_once import assert_exactly_once
    from flamecore.testing.flows.over_transport import TransportFlowTests, check_flows
    from flamecore.testing.flows.reference import Failed, interpret
    from flamecore.testing.models.local_times import LocalTimes
    from flamecore.testing.models.machine import Machine
    from flamecore.testing.models.tombstones import Tombstones
    from flamecore.testing.plugins import override
    from flamecore.testing.simulation.crashes import Crashes
    from flamecore.testing.simulation.simulation import Simulation, SimulationStuckError
    from flamecore.testing.simulation.trouble import Trouble

_WHERE: Final = {
    "AckerTests": "checks.ackers",
    "check_acker": "checks.ackers",
    "BarrierTests": "checks.barriers",
    "check_barrier": "checks.barriers",
    "SinkTests": "checks.edges",
    "SourceTests": "checks.edges",
    "check_live": "checks.sources",
    "check_sink": "checks.sink_state",
    "check_source": "checks.sources",
    "Crashes": "simulation.crashes",
    "Trouble": "simulation.trouble",
    "assert_exactly_once": "flows.exactly_once",
    "Faulty": "faults",
    "Proxy": "faults",
    "acker_named": "flows.deterministic",
    "assert_deterministic": "flows.deterministic",
    "Failed": "flows.reference",
    "interpret": "flows.reference",
    "RegistryTests": "checks.registries",
    "check_registry": "checks.registries",
    "LocalTimes": "models.local_times",
    "Machine": "models.machine",
    "override": "plugins",
    "Simulation": "simulation.simulation",
    "SimulationStuckError": "simulation.simulation",
    "StoreTests": "checks.stores",
    "check_store": "checks.stores",
    "TransportFlowTests": "flows.over_transport",
    "check_flows": "flows.over_transport",
    "Tombstones": "models.tombstones",
    "FaultyTransportTests": "checks.transports",
    "TransportTests": "checks.transports",
    "check_transport": "checks.transports",
}

__all__ = [
    "AckerTests",
    "BarrierTests",
    "Crashes",
    "Failed",
    "Faulty",
    "FaultyTransportTests",
    "LocalTimes",
    "Machine",
    "Proxy",
    "RegistryTests",
    "Simulation",
    "SimulationStuckError",
    "SinkTests",
    "SourceTests",
    "StoreTests",
    "Tombstones",
    "TransportFlowTests",
    "TransportTests",
    "Trouble",
    "acker_named",
    "assert_deterministic",
    "assert_exactly_once",
    "check_acker",
    "check_barrier",
    "check_flows",
    "check_live",
    "check_registry",
    "check_sink",
    "check_source",
    "check_store",
    "check_transport",
    "interpret",
    "override",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
