"""A copy of a flow's source: it can be imported where its own files are not, and is the same flow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flamecore.model.vertices import user_functions
from flamecore.runtime.config.flow_loader import code_of, copy_of, importable, load_flow, locate

FLOW = """
import flamecore as fc
from {splitting} import split

flow = fc.Flow("words")
flow.source("lines", str).flat_map(split).sink("words")
"""
SPLIT = "def split(line: str) -> list[str]:\n    return line.split()\n"
ELSEWHERE = """
import json, sys
from pathlib import Path
from flamecore.model.graph import user_functions
from flamecore.runtime.config.flow_loader import locate, code_of
from flamecore.runtime.config.flow_loader import load_flow
reference, folder = locate(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
flow = load_flow(reference, folder)
functions = [function for vertex in flow.graph().vertices for function in user_functions(vertex)]
print(json.dumps([code_of(flow, functions), flow.run({"lines": ["a b"]})["words"]]))
"""


@pytest.mark.parametrize(
    ("files", "reference"),
    [
        ({"copied_flow.py": "copied_splitting", "copied_splitting.py": ""}, "copied_flow.py:flow"),
        ({"json.py": "copied_splitting_too", "copied_splitting_too.py": ""}, "json.py:flow"),
        (
            {
                "copied_package/__init__.py": None,
                "copied_package/flows/__init__.py": None,
                "copied_package/flows/words.py": "copied_package.text",
                "copied_package/text.py": "",
            },
            "copied_package.flows.words:flow",
        ),
    ],
    ids=["file", "name of the standard library", "package"],
)
def test_a_copy_is_the_same_flow_elsewhere(tmp_path: Path, files: dict[str, str | None], reference: str) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for path, splitting in files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text("" if splitting is None else FLOW.format(splitting=splitting) if splitting else SPLIT)
    flow = load_flow(reference, home)
    functions = [function for vertex in flow.graph().vertices for function in user_functions(vertex)]
    copy = copy_of(flow, functions)
    assert set(copy) == set(files)
    for path, content in copy.items():
        (elsewhere / path).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / path).write_bytes(content)
    told, folder = importable(flow)
    code = code_of(flow, functions)
    home.rename(tmp_path / "gone")
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, told, folder, str(elsewhere)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [code, ["a", "b"]]


def test_an_existing_module_comes_before_the_copy(tmp_path: Path) -> None:
    (tmp_path / "there.py").write_text("")
    spare = tmp_path / "spare"
    assert locate("there.py:flow", tmp_path, spare) == ("there.py:flow", tmp_path)
    assert sys.path[-1] == str(spare)
    sys.path.pop()
