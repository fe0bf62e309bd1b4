"""The folders of the interpreters that are here, as of a PATH; then options of tox, one a line.

These are for the newest Python, and for a release of Spark that FLAMESTREAM_DRAW draws.

Usage: pythons.py PYPROJECT

The versions are those that the classifiers of PYPROJECT promise. The search goes through the folder of the Python that
runs this, the PATH, and the versions of pyenv, which are not on the PATH unless they are chosen. Says on stderr which
interpreters there are.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")
PROBE = """
import sys, sysconfig
threads = sysconfig.get_config_var("Py_GIL_DISABLED") and "without GIL"
print(sys.implementation.name, "%d.%d" % sys.version_info[:2], threads or "with GIL", sys.executable, sep=chr(10))
"""
PROBE_SECONDS = 60
SPARKS = ("spark-more", "spark-on41-more", "spark-on40-more")
"""Smokes of Spark, the newest release and older ones; on those that are not here, some of the tests fail."""


def promised(pyproject: Path) -> list[str]:
    """Return the versions that the classifiers name, such as "3.11", in their order."""
    classifiers = tomllib.loads(pyproject.read_text("utf-8"))["project"]["classifiers"]
    return [matched[1] for line in classifiers if (matched := CLASSIFIER.fullmatch(line))]


def candidates(version: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that may be this version of Python, the best first."""
    folders = [Path(sys.base_prefix, "bin")]
    folders += [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    if pyenv := environ.get("PYENV_ROOT") or (environ.get("HOME") and str(Path(environ["HOME"], ".pyenv"))):
        folders += sorted(Path(pyenv, "versions").glob("*/bin"), key=_numbers, reverse=True)
    for folder in dict.fromkeys(folders):
        if os.access(path := folder / f"python{version}", os.X_OK):
            yield path


def interpreter(version: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of a CPython of this version; None if there is none, telling stderr of files that are not it."""
    for path in candidates(version, environ):
        try:
            command = [path, "-I", "-c", PROBE]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS)
        except OSError as error:
            problem = str(error)
        except subprocess.TimeoutExpired:
            problem = f"it has not answered within {PROBE_SECONDS} s"
        else:
            if done.returncode:  # such as a shim of pyenv for a version that is not chosen
                problem = f"it ends with code {done.returncode}"
            else:
                *kind, executable = done.stdout.splitlines()
                if kind == ["cpython", version, "with GIL"]:
                    return executable
                problem = f"it is {' '.join(kind)}"
        print(f"{path} is not used: {problem}", file=sys.stderr)
    return None


def main(pyproject: str) -> str | None:
    """Print the options; or say that there is nothing to test on."""
    found = {version: interpreter(version, os.environ) for version in promised(Path(pyproject))}
    for version, executable in found.items():
        print(f"Python {version}: {executable or 'not here'}", file=sys.stderr)
    if not any(found.values()):
        return f"none of the versions that {pyproject} promises is here: {', '.join(found) or 'it names none'}"
    here = {version: executable for version, executable in found.items() if executable}
    newest = max(here, key=lambda version: int(version.partition(".")[2])).replace(".", "")
    # By the PATH, which pip and uv both search. What is here is decided above: then tox must not skip what it misses.
    print(os.pathsep.join(dict.fromkeys(str(Path(executable).parent) for executable in here.values())))
    # Of its own: the cases of a test take turns by the same number, and each is to meet all releases.
    smoke = random.Random(f"spark {os.environ.get('FLAMESTREAM_DRAW') or 0}").choice(SPARKS)
    print("\n".join(["--skip-missing-interpreters", "false", "-e", f"py{newest}-clients-more,{smoke}"]))
    return None


def _numbers(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", folder.parent.name)]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
