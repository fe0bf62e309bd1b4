"""The compose file of docs/how-to/containers.md: the tests have no container engine, so its form is looked at."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from flamecore.cli import main

yaml = pytest.importorskip("yaml")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "containers.md"
SERVICE_KEYS = {"build", "command", "environment", "volumes", "restart", "stop_grace_period"}
RESTARTS = {"no", "always", "on-failure", "unless-stopped"}


@pytest.fixture
def services() -> dict[str, Any]:
    text = re.search(r"^```yaml\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert text is not None
    file = yaml.safe_load(text[1])
    assert set(file) == {"services"}
    found: dict[str, Any] = file["services"]
    return found


def test_services_have_the_form_of_the_compose_specification(services: dict[str, Any]) -> None:
    assert set(services) == {"node1", "node2", "node3", "acker"}
    for service in services.values():
        assert set(service) <= SERVICE_KEYS
        assert service["build"] == "."
        assert service.get("restart", "no") in RESTARTS
        assert re.fullmatch(r"\d+s", service.get("stop_grace_period", "10s"))
        assert all(re.fullmatch(r"\./[\w/]+:/srv/words/\w+(:ro)?", volume) for volume in service["volumes"])
        # Compose refuses to start when the variable is not set.
        assert re.fullmatch(r"\$\{FLAMESTREAM_TOKEN:\?[^}]+\}", service["environment"]["FLAMESTREAM_TOKEN"])


def test_each_service_runs_an_existing_command(services: dict[str, Any]) -> None:
    for service in services.values():
        program, name, *arguments = shlex.split(service["command"])
        assert program == "flamestream"
        with click.Context(main) as ctx:
            command = main.get_command(ctx, name)
        assert command is not None
        options = {flag for parameter in command.params for flag in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("-")} <= options


def test_only_the_supervisor_keeps_output(services: dict[str, Any]) -> None:
    writable = [name for name, service in services.items() if any(not v.endswith(":ro") for v in service["volumes"])]
    assert writable == ["node1"]


def test_the_image_holds_what_the_page_of_several_hosts_writes() -> None:
    copied = re.search(r"^COPY (.*) \./$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert copied is not None
    assert set(copied[1].split()) == {"word_count.py", "job.toml", "one.txt", "two.txt"}
