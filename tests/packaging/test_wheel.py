"""The wheel in a fresh environment: how heavy it is, what importing it does, whether it works alone."""

from __future__ import annotations

import json
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

MOST_PACKAGES = 14
MOST_BYTES = 30_000_000


def test_the_wheel_holds_core_and_plugins_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    plugins = {folder.name for folder in (ROOT / "plugins").glob("*/flamestream_*") if any(folder.glob("*.py"))}
    assert plugins | {"flamecore"} <= tops
    # Spark finds data sources in modules whose names begin with `pyspark_`.
    others = {top for top in tops if not top.startswith(("flamestream_", "flamestream-"))}
    assert others == {"flamecore", "pyspark_flamestream"}
    assert "flamecore/py.typed" in names
    assert not [name for name in names if "/tests/" in name or name.endswith((".pyc", "conftest.py"))]


def test_the_wheel_is_pure_python(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


def test_the_wheel_has_its_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_installation_has_few_packages(installed: Any) -> None:
    listed = json.loads(installed.run("python", "-m", "pip", "list", "--format=json").stdout)
    names = {package["name"] for package in listed} - {"pip", "setuptools"}
    assert "flamestream" in names
    assert len(names) <= MOST_PACKAGES, sorted(names)


def test_the_installation_is_small(installed: Any) -> None:
    folder = Path(installed.evaluate("import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))"))
    tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).parts[0].split("-")[0].startswith(tools)
    ]
    assert len(files) > 100
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


def test_importing_it_imports_no_plugin_and_no_client(installed: Any) -> None:
    modules = installed.evaluate("import flamecore, json, sys; print(json.dumps(sorted(sys.modules)))")
    unwanted = ("flamestream_", "pyspark", "grpc", "nats", "click", "rich", "pluggy", "structlog", "asyncio")
    assert [module for module in modules if module.startswith(unwanted)] == []


def test_every_entry_point_loads(installed: Any) -> None:
    shown = json.loads(installed.run("flamestream", "plugins", "--check", "--json", check=False).stdout)
    broken = [plugin for plugin in shown["plugins"] if not plugin["ok"]]
    # A driver that lacks its client says which extra brings it; that is all it may say.
    assert [plugin for plugin in broken if plugin["error"]["type"] != "MissingDependencyError"] == []
    assert {plugin["kind"] for plugin in shown["plugins"]} >= {"transport", "acker", "source", "sink", "command"}


def test_the_version_is_that_of_the_wheel(installed: Any, wheel: Path) -> None:
    said = installed.run("flamestream", "version").stdout
    assert said.startswith(f"flamestream {wheel.name.split('-')[1]}, Python 3.")


def test_a_flow_runs(installed: Any) -> None:
    program = (
        "import flamecore as fc, json\n"
        "flow = fc.Flow()\n"
        "flow.source('lines', str).flat_map(str.split).key_by(lambda word: word).count().sink('counts')\n"
        "print(json.dumps(flow.run({'lines': ['to be or', 'not to be']}, workers=2)['counts']))\n"
    )
    assert installed.evaluate(program) == [["to", 1], ["be", 1], ["or", 1], ["not", 1], ["to", 2], ["be", 2]]


def test_a_flow_runs_on_several_processes(installed: Any, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import flamecore as fc\n"
        "flow = fc.Flow('words')\n"
        "lines = flow.source('lines', str).rebalance()\n"
        "lines.flat_map(str.split).key_by(len).count().sink('counts')\n"
    )
    (tmp_path / "lines").write_text("to be or\nnot to be\n")
    edges = ("--source", "lines=lines", "--set", f"source.lines.path={tmp_path / 'lines'}")
    done = installed.run("flamestream", "run", str(app), "-w", "2", "--on", "processes", *edges, "-q")
    assert done.stdout == "2 1\n2 2\n2 3\n3 1\n2 4\n2 5\n"


def test_the_demo_runs(installed: Any) -> None:
    assert "pages" in installed.run("flamestream", "demo").stdout
