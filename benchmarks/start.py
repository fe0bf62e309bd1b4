"""The time to the first output of a fresh process, and to import the engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.contenders import BYTEWAX, PLAIN
from benchmarks.processes import LIMIT_S, ROOT, RunError, say
from benchmarks.report import Spread, Table

FIRST: Final = ("to 1", "be 1", "or 1", "not 1")
"""First outputs that are right; only flamestream and the plain script promise `to 1`."""

FORBIDDEN: Final = ("flamestream_", "pyspark", "grpc", "nats")
"""Packages that an import of the engine must not load."""

_PLAIN: Final = """
counts = {}
for line in open("lines.txt"):
    for word in line.split():
        counts[word] = counts.get(word, 0) + 1
        print(word, counts[word])
"""

_FLOW: Final = """
import flamecore as fc

flow = fc.Flow("word-count")
flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
"""

_EMBEDDED: Final = (
    _FLOW
    + """
for word, count in flow.run({"lines": open("lines.txt")})["counts"]:
    print(word, count)
"""
)

_BYTEWAX: Final = """
import bytewax.operators as op
from bytewax.connectors.files import FileSource
from bytewax.connectors.stdio import StdOutSink
from bytewax.dataflow import Dataflow

flow = Dataflow("word_count")
words = op.flat_map("split", op.input("lines", flow, FileSource("lines.txt")), str.split)
keyed = op.key_on("key", words, lambda word: word)
counts = op.stateful_map("count", keyed, lambda seen, _: ((seen or 0) + 1, (seen or 0) + 1))
op.output("out", op.map("text", counts, lambda pair: f"{pair[0]} {pair[1]}"), StdOutSink())
"""

_SCRIPTS: Final = {"plain": _PLAIN, "flow": _FLOW, "embedded": _EMBEDDED, "peer": _BYTEWAX}


def _commands() -> dict[str, list[str]]:
    """Return the command that starts each contender.

    The current folder holds its script and lines.txt.
    """
    installed = shutil.which("flamestream", path=str(Path(sys.executable).parent))
    main = [installed] if installed else [sys.executable, "-c", "from flamecore.cli import main; main()"]
    lines = ["--source", "lines=lines", "--set", "source.lines.path=lines.txt"]
    commands = {
        PLAIN.name: [sys.executable, "plain.py"],
        "flamestream run": [*main, "run", "flow.py", *lines, "--sink", "counts=stdout", "--quiet"],
        "flow.run in a script": [sys.executable, "embedded.py"],
    }
    if find_spec("bytewax") is not None:
        commands[BYTEWAX.name] = [sys.executable, "-m", "bytewax.run", "peer:flow"]
    return commands


def _first_output(command: Sequence[str], folder: str) -> float:
    """Return the seconds from the start of the process to its first line of output."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    seconds = time.perf_counter() - start
    _, errors = process.communicate(timeout=LIMIT_S)
    if process.returncode or line.strip() not in FIRST:
        raise RunError(f"{' '.join(command)}: exit code {process.returncode}, first line {line!r}\n{errors[-3000:]}")
    return seconds


def compare(*, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure the first output of every contender, in turn, several rounds.

    One round before them fills the caches of files.
    """
    commands = _commands()
    runs: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "lines.txt").write_text("to be or not to be\n")
        for name, script in _SCRIPTS.items():
            Path(folder, f"{name}.py").write_text(script)
        for attempt in range(rounds + 1):
            for name, command in commands.items():
                say(f"start: {name}")
                seconds = _first_output(command, folder)
                if attempt:
                    runs[name].append(seconds)
    table = Table("First output after the process starts, in s", ("contender", "seconds", "x plain script"))
    for name, took in runs.items():
        slower = Spread.of([mine / plain for mine, plain in zip(took, runs[PLAIN.name], strict=True)])
        table.add(name, Spread.of(took), slower)
    reached = Spread.of(runs["flamestream run"])
    table.target("flamestream run", "seconds to the first output", reached, 0.5, at_most=True)
    return table, {"contenders": runs, "targets": table.targets}


def _import(module: str) -> dict[str, Any]:
    """Import a module in a fresh interpreter; return its time and the loaded modules."""
    code = (
        "import json, sys, time\n"
        "start, cpu = time.perf_counter(), time.process_time()\n"
        f"import {module}\n"
        "took = time.perf_counter() - start, time.process_time() - cpu\n"
        "print(json.dumps([*took, sorted(sys.modules)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise RunError(f"import {module}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    seconds, cpu_seconds, modules = json.loads(done.stdout)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "modules": modules}


def compare_imports(*, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Compare the import of flamecore with that of asyncio, in fresh interpreters."""
    modules = ("asyncio", "flamecore", *(["bytewax.dataflow"] if find_spec("bytewax") else []))
    runs: dict[str, list[dict[str, Any]]] = {module: [] for module in modules}
    for attempt in range(rounds + 1):
        for module in modules:
            say(f"import {module}")
            run = _import(module)
            if attempt:
                runs[module].append(run)
    table = Table("Import in a fresh interpreter", ("module", "ms", "x asyncio", "modules"))
    spreads = {}
    for module, found in runs.items():
        pairs = zip(found, runs["asyncio"], strict=True)
        spreads[module] = Spread.of([mine["seconds"] / base["seconds"] for mine, base in pairs])
        took = Spread.of([run["seconds"] * 1000 for run in found])
        table.add(module, took, spreads[module], len(found[0]["modules"]))
    table.target("flamecore", "times `import asyncio`", spreads["flamecore"], 3.0, at_most=True)
    intruders = [name for name in runs["flamecore"][0]["modules"] if name.startswith(FORBIDDEN)]
    count = Spread.of([len(intruders)])
    table.target("flamecore", f"modules of plugins or clients {intruders or ''}".strip(), count, 0, at_most=True)
    times = {module: [run["seconds"] for run in found] for module, found in runs.items()}
    return table, {"seconds": times, "modules": intruders, "targets": table.targets}
