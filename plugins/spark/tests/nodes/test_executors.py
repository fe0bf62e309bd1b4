"""Executors whose Python lacks what is needed: the user is told, at once, and nobody is left behind."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from flamecore.testing.progress import Patience
from flamestream_spark.session.messages import WHICH_PYTHON

pytestmark = pytest.mark.jvm

NEEDED = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "dateutil", "pytz", "six")
"""What Spark itself wants of the Python of an executor."""

FLOW = """
import flamecore as fc

flow = fc.Flow("lines")
flow.source("lines", str).sink("out")
"""


def bare_python(folder: Path) -> Path:
    """Make a Python that has what Spark needs, and nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in NEEDED:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        found = Path(spec.origin) if spec.submodule_search_locations is None else Path(spec.origin).parent
        libraries = found.with_name(f"{name}.libs")
        for path in (found, libraries) if libraries.is_dir() else (found,):
            (packages / path.name).symlink_to(path)
    return folder / "bin" / "python"


def marked(mark: str) -> list[str]:
    """Commands of the processes that have inherited a mark."""
    found = []
    for process in list(Path("/proc").iterdir()):
        if not process.name.isdigit():
            continue
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\\0", " ")[-200:])
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_executors_without_the_package_are_named_and_no_process_is_left(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare")
    assert subprocess.run([python, "-c", "import pyspark, pyarrow"], check=False).returncode == 0
    assert subprocess.run([python, "-c", "import flamecore"], check=False, capture_output=True).returncode
    (tmp_path / "lines.py").write_text(FLOW)
    (tmp_path / "in.txt").write_text("a\nb\n")
    settings = [
        "spark.master=local-cluster[2,1,1024]",
        f'spark.config={{"spark.executor.memory"="500m","spark.pyspark.python"="{python}"}}',
        "source.lines.path=in.txt",
        "sink.out.path=out.jsonl",
    ]
    options = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "flamecore", "run", "lines.py", "-q", "-w", "2", "--on", "spark", *options]
    mark = f"FLAMESTREAM_MARK={secrets.token_hex(8)}"
    name, _, value = mark.partition("=")
    done = subprocess.run(
        [*command, "--source", "lines=lines", "--sink", "out=jsonl"],
        cwd=tmp_path,
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    error = done.stderr[done.stderr.index("error: ") :].splitlines()
    assert re.match(r"error: worker-[01] has ended: the Python of executor 127.0.0.1, process \d+ ", error[0])
    assert error[0].endswith(f" has no module 'flamecore' ({python})")
    assert error[1:] == [f"  {WHICH_PYTHON}"]
    limit = Patience(20)
    while left := marked(mark):
        assert not limit.passed(), left
        time.sleep(0.1)
