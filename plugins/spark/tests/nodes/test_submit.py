"""Jobs that spark-submit starts: it says where they run and what goes along, and ends as they do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from flamestream_spark.session.java import find_java

pytestmark = pytest.mark.jvm

FLOW = """
import flamecore as fc
from pyspark import TaskContext

from shouting import shout
from spelling import spelt

flow = fc.Flow("words")
flow.source("lines", str).flat_map(str.split).rebalance().map(shout).map(spelt).key_by(lambda word: word).count().sink(
    "counts"
)
"""

SPELLING = """
import json
from pathlib import Path

from pyspark import SparkFiles


def spelt(word: str) -> str:
    alphabet = json.loads(Path(SparkFiles.get("names/alphabet.json")).read_text())
    return alphabet[word] + Path(SparkFiles.get("mark.txt")).read_text()
"""

SHOUTING = """
import os

def shout(word: str) -> str:
    assert os.environ.get("FLAMESTREAM_BELOW_TASK"), "workers are below tasks of Spark"
    if word == "bad":
        raise ValueError("a bad word")
    return word.upper()
"""

JOB = """
schema = 1

[job]
flow = "words.py"
workers = 2

[deploy]
on = "spark"

[spark]
master = "spark://192.0.2.1:7077"       # spark-submit says otherwise

[source.lines]
use = "spark"
format = "text"
path = "in"

[sink.counts]
use = "jsonl"
path = "out.jsonl"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a job whose flow needs a module from elsewhere."""
    files = {"words.py": FLOW, "spelling.py": SPELLING, "job.toml": JOB, "lib/shouting.py": SHOUTING}
    for name, text in (files | {"in/a.txt": "a b a\n", "lib/mark.txt": "!"}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with zipfile.ZipFile(tmp_path / "lib" / "names.zip", "w") as archive:
        archive.writestr("alphabet.json", json.dumps({"A": "alpha", "B": "beta"}))
    return tmp_path


def submit(folder: Path, master: str, *script: str, conf: str = "") -> subprocess.CompletedProcess[str]:
    """Submit a program, with a module, a file and an archive."""
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master, "--name", "mine"]
    command += ["--py-files", str(folder / "lib" / "shouting.py"), "--conf", "spark.ui.enabled=false"]
    command += ["--files", str(folder / "lib" / "mark.txt"), "--archives", f"{folder / 'lib' / 'names.zip'}#names"]
    command += ["--conf", "spark.executor.memory=500m", *(["--conf", conf] if conf else [])]
    home = find_java()
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {} if home is None else {"JAVA_HOME": str(home)}
    return subprocess.run([*command, *script], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("master", ["local[3]", "local-cluster[2,2,1024]"])
def test_a_job_file_runs_where_spark_submit_says(folder: Path, master: str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "flamestream_spark.submit"], capture_output=True, text=True, check=True
    )
    script = shutil.copy(said.stdout.strip(), str(folder / "copied.py"))
    done = submit(folder, master, script, "job.toml")
    assert done.returncode == 0, done.stderr[-4000:]
    assert [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()] == [
        ["alpha!", 1],
        ["beta!", 1],
        ["alpha!", 2],
    ]
    assert f"where.master={master} where.workers=2" in done.stdout, "spark-submit has one stream for both of a program"
    assert "Submitted application: mine" in done.stderr, "its own log and name stay"


def test_the_exit_code_is_that_of_the_command(folder: Path) -> None:
    from flamestream_spark.submit import SCRIPT

    done = submit(folder, "local[3]", str(SCRIPT), "missing.toml")
    assert done.returncode == 2, done.stderr[-4000:]
    (folder / "in" / "a.txt").write_text("a bad word\n")
    done = submit(folder, "local[3]", str(SCRIPT), "job.toml")
    assert done.returncode == 1, done.stderr[-4000:]
    assert "a bad word" in done.stdout
