"""Flows of the main program go to executors by value, and what cannot go is named."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark import Accumulator, Broadcast, cloudpickle
from pyspark.accumulators import INT_ACCUMULATOR_PARAM

import flamecore as fc
from flamecore.errors import ConfigError, GraphError
from flamestream_spark.nodes.packing import packed, unpacked

PROGRAM = '''
"""A program with everything in it: types, keys, states, closures; its hints are texts."""

from __future__ import annotations

import enum
import re
import sys
from dataclasses import dataclass
from typing import NamedTuple

import flamecore as fc
from beside import LIMIT


class Kind(enum.Enum):
    LONG = "long"
    SHORT = "short"


@dataclass(frozen=True)
class Load:  # a name that the main module of a node has, too
    text: str
    kind: Kind


class Seen(NamedTuple):
    word: Load
    times: int


pattern = re.compile(r"\\w+")
marks = {"!": 2}


def words(line: str) -> list[Load]:
    return [Load(found, kind_of(found)) for found in pattern.findall(line)]


def kind_of(text: str) -> Kind:
    return Kind.LONG if len(text) > LIMIT else Kind.SHORT


def key(word: Load) -> Load:
    return word


def total(seen: Seen, word: Load) -> Seen:
    return Seen(word, seen.times + 1)


def show(found: tuple[Load, Seen]) -> tuple[str, str, int, str]:
    word, seen = found
    return word.text, seen.word.kind.value, seen.times, "!" * marks["!"]


def keep(least: int):
    return lambda shown: shown[2] >= least


flow = fc.Flow("by-value")
lines = flow.source("lines", str).rebalance()
found = lines.flat_map(words).key_by(key).fold(Seen(Load("", Kind.SHORT), 0), total)
found.map(show).filter(keep(1)).sink("counts")
'''

ON_SPARK = (
    PROGRAM
    + """
if __name__ == "__main__":
    import json

    from pyspark.sql import SparkSession

    import flamestream_spark

    spark = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
    spark = spark.config("spark.executor.memory", "500m").getOrCreate()
    frame = spark.read.text("in")
    counts = flamestream_spark.run(flow, lines=frame, on_spark=True, settings={"job.check_types": True})
    rows = [list(row)[:4] for row in counts.orderBy("_time", "_front", "_place").collect()]
    embedded = flow.run({"lines": [row.value for row in frame.collect()]})["counts"]
    print(json.dumps({"rows": rows, "embedded": embedded}))
    spark.stop()
"""
)


def program(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder that has a module and some text."""
    files = {"program.py": text, "beside.py": "LIMIT = 2\n", "in/a.txt": "to be or\nnot to be\nbe\n"}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "program.py", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.jvm
def test_a_flow_of_the_main_program_runs_on_executors(tmp_path: Path) -> None:
    done = program(tmp_path, ON_SPARK, "local-cluster[2,2,1024]")
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout)
    assert told["rows"] == told["embedded"]
    assert told["rows"][-1] == ["be", "short", 3, "!!"]


WRITE = (
    PROGRAM
    + """
from pathlib import Path

from flamestream_spark.nodes.packing import packed

made = packed(flow, {"beside.py": Path("beside.py").read_bytes()})
folder = Path("sent")
folder.mkdir()
for path, content in made.files.items():
    (folder / path).write_bytes(content)
print(made.module)
"""
)

READ = """
import json
import sys

class Load: ...


module, folder = sys.argv[1:]
sys.path.insert(0, folder)
from pathlib import Path

from flamecore.runtime.config.flow_loader import code_of, load_flow

flow = load_flow(f"{module}:flow", Path(folder))
outputs = flow.run({"lines": ["to be", "be"]}, settings={"job.check_types": True})["counts"]
print(json.dumps({"code": code_of(flow, []), "outputs": outputs}))
"""


def test_another_process_makes_the_same_flow_of_the_bytes(tmp_path: Path) -> None:
    written = program(tmp_path, WRITE)
    assert written.returncode == 0, written.stderr
    module = written.stdout.strip()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "read.py").write_text(READ)
    read = subprocess.run(
        [sys.executable, "read.py", module, str(tmp_path / "sent")],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout) == {
        "code": module,
        "outputs": [["to", "short", 1, "!!"], ["be", "short", 1, "!!"], ["be", "short", 2, "!!"]],
    }


def flow_with(function: Any) -> fc.Flow:
    """Return a flow of one function."""
    flow = fc.Flow("one")
    flow.source("lines", str).map(function, name="step").sink("out")
    return flow


def test_other_functions_or_modules_are_another_version() -> None:
    first, again = (packed(flow_with(lambda line: line + "a"), {"x.py": b"A = 1"}) for _ in range(2))
    assert first.module == again.module
    assert packed(flow_with(lambda line: line + "b"), {"x.py": b"A = 1"}).module != first.module
    assert packed(flow_with(lambda line: line + "a"), {"x.py": b"A = 2"}).module != first.module


def test_bytes_that_are_not_those_of_the_name_are_refused(tmp_path: Path) -> None:
    first, other = (packed(flow_with(lambda line, end=end: line + end), {}) for end in "ab")
    file = tmp_path / f"{first.module}.py"
    file.with_suffix(".pickle").write_bytes(other.files[f"{other.module}.pickle"])
    with pytest.raises(ConfigError, match="holds another flow than the driver has sent"):
        unpacked(str(file))


def test_a_variable_that_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()

    def guarded(line: str) -> str:
        with lock:
            return line

    with pytest.raises(GraphError) as caught:
        packed(flow_with(lambda line: guarded(line)), {})
    assert "'step'" in str(caught.value)
    assert "with lock (a lock), which cannot be sent to executors: TypeError: cannot pickle" in str(caught.value)
    assert "Make lock inside of the function" in caught.value.hint


def test_broadcast_variables_are_sent_with_their_values(tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_bytes(pickle.dumps({"a": "alpha"}))
    names: Broadcast[dict[str, str]] = Broadcast(path=str(file))
    made = packed(flow_with(lambda line: names.value[line]), {})
    flow, *_ = cloudpickle.loads(made.files[f"{made.module}.pickle"])
    assert flow.run({"lines": ["a"]})["out"] == ["alpha"]


def test_accumulators_are_refused() -> None:
    seen = Accumulator(0, 0, INT_ACCUMULATOR_PARAM)

    def noted(line: str) -> str:
        seen.add(1)
        return line

    with pytest.raises(
        GraphError, match=r"'step'> uses .*noted with seen \(a Accumulator\).*nobody would see"
    ) as caught:
        packed(flow_with(noted), {})
    assert "TypeError: workers are no tasks of Spark" in str(caught.value)
