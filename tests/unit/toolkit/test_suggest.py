"""Suggestions: the command that installs what is missing, from where the user has the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flamecore.suggest import install_command

FOLDER: dict[str, Any] = {"url": "file://{folder}/a%20checkout", "dir_info": {}}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'thing[grpc,nats]'"),
        (FOLDER, "pip install '{folder}/a checkout[grpc,nats]'"),
        (FOLDER | {"dir_info": {"editable": True}}, "pip install -e '{folder}/a checkout[grpc,nats]'"),
        (
            {"url": "file://{folder}/thing-1.0.whl", "archive_info": {}},
            "pip install '{folder}/thing-1.0.whl[grpc,nats]'",
        ),
        ({"url": "file://{folder}/gone-1.0.whl", "archive_info": {}}, "pip install 'thing[grpc,nats]'"),
        (
            {"url": "https://host/thing.whl", "archive_info": {}},
            "pip install 'thing[grpc,nats] @ https://host/thing.whl'",
        ),
        (
            {"url": "https://host/thing", "vcs_info": {"vcs": "git"}},
            "pip install 'thing[grpc,nats] @ git+https://host/thing'",
        ),
        ("no JSON", "pip install 'thing[grpc,nats]'"),
    ],
)
def test_extras_come_from_where_the_distribution_comes_from(
    origin: Any, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a checkout").mkdir()
    (tmp_path / "thing-1.0.whl").touch()
    about = tmp_path / "thing-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    if origin is not None:
        text = origin if isinstance(origin, str) else json.dumps(origin)
        (about / "direct_url.json").write_text(text.replace("{folder}", str(tmp_path)))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert install_command("thing", "grpc", "nats") == command.replace("{folder}", str(tmp_path))
