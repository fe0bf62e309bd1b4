"""Flows that other processes cannot import: a host may pack them, and otherwise they are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import flamecore as fc
from flamecore.abc.host import PACKED, PackedFlow
from flamecore.errors import ConfigError
from flamecore.model.flow import FlowGraph
from flamecore.runtime.config.flow_loader import code_of, load_flow, locate
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.plugins import PluginRegistry, override
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.toolkit.local_processes import ProcessHost

MODULE = f"{PACKED}0123"


class PackingHost(ProcessHost):
    """A host that makes every flow anew."""

    name = "packing"

    @classmethod
    def pack(cls, flow: FlowGraph, beside: Mapping[str, bytes]) -> PackedFlow:
        source = f'import flamecore as fc\nflow = fc.Flow("{flow.name}")\nflow.source("lines").sink("out")\n'
        return PackedFlow(MODULE, {**beside, f"{MODULE}.py": source.encode()})


def local_flow() -> fc.Flow:
    flow = fc.Flow("local")
    flow.source("lines").sink("out")
    return flow


def spec_of(flow: FlowGraph, **settings: str) -> JobSpec:
    chosen = {"source.lines.use": "stdin", **{key.replace("__", "."): value for key, value in settings.items()}}
    return resolve(make_config(from_program(chosen)), flow, plugins=PluginRegistry())


def test_a_host_packs_a_flow_that_nobody_can_import(tmp_path: Path) -> None:
    with override("host", "packing", PackingHost):
        spec = spec_of(local_flow(), deploy__on="packing")
        reachable = spec.reachable()
        assert reachable.place[0] == f"{MODULE}:flow"
        assert reachable.code == MODULE
        files = reachable.copy()
    assert [path.rpartition("/")[2] for path in files] == ["test_packing.py", f"{MODULE}.py"], "modules beside go along"
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    found = load_flow(*locate(reachable.place[0], Path(reachable.place[1]), tmp_path))
    assert code_of(found, []) == MODULE, "a node takes no other version"


def test_without_that_such_a_flow_is_refused() -> None:
    spec = spec_of(local_flow()).reachable()
    with pytest.raises(ConfigError, match="cannot be imported by other processes"):
        _ = spec.place
