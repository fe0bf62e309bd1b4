"""The public test kit: what a driver must do, as checks that need no test runner and as classes for pytest.

For flows: `assert_deterministic` and `assert_exactly_once`; the reference interpreter `interpret`; `Simulation`, a job
under a seeded scheduler, and `Crashes`, a job that keeps state and dies again and again. For plugins:
`check_transport`, `check_acker`, `check_barrier`, `check_source`, `check_sink`, `check_store`, `check_registry`, and
the pytest classes of the same kinds; `check_flows` runs whole jobs over a transport; `Faulty` and `Proxy` make trouble
for transports. Nothing is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flamecore.testing.ackers import AckerTests, check_acker
    from flamecore.testing.barriers import BarrierTests, check_barrier
    from flamecore.testing.crashes import Crashes
    from flamecore.testing.edges import SinkTests, SourceTests, check_live, check_sink, check_source
    from flamecore.testing.exactly_once import assert_exactly_once
    from flamecore.testing.faults import Faulty, Proxy
    from flamecore.testing.flows import acker_named, assert_deterministic
    from flamecore.testing.reference import Failed, interpret
    from flamecore.testing.registries import RegistryTests, check_registry
    from flamecore.testing.simulation import Simulation, SimulationStuckError
    from flamecore.testing.stores import StoreTests, check_store
    from flamecore.testing.transport_flows import TransportFlowTests, check_flows
    from flamecore.testing.transports import TransportTests, check_transport
    from flamecore.testing.trouble import Trouble

_WHERE: Final = {
    "AckerTests": "ackers",
    "check_acker": "ackers",
    "BarrierTests": "barriers",
    "check_barrier": "barriers",
    "SinkTests": "edges",
    "SourceTests": "edges",
    "check_live": "edges",
    "check_sink": "edges",
    "check_source": "edges",
    "Crashes": "crashes",
    "Trouble": "trouble",
    "assert_exactly_once": "exactly_once",
    "Faulty": "faults",
    "Proxy": "faults",
    "acker_named": "flows",
    "assert_deterministic": "flows",
    "Failed": "reference",
    "interpret": "reference",
    "RegistryTests": "registries",
    "check_registry": "registries",
    "Simulation": "simulation",
    "SimulationStuckError": "simulation",
    "StoreTests": "stores",
    "check_store": "stores",
    "TransportFlowTests": "transport_flows",
    "check_flows": "transport_flows",
    "TransportTests": "transports",
    "check_transport": "transports",
}

__all__ = [
    "AckerTests",
    "BarrierTests",
    "Crashes",
    "Failed",
    "Faulty",
    "Proxy",
    "RegistryTests",
    "Simulation",
    "SimulationStuckError",
    "SinkTests",
    "SourceTests",
    "StoreTests",
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
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
