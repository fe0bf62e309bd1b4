"""Trials of mutants: a copy of the sources, an interpreter that imports them, and runs of tests that are limited.

Processes that a run has left are found as Linux lists them.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from laws import packages

from flamecore.testing.draws import DRAW, TIER
from flamecore.testing.progress import LEAST, cpu_s, worked_s

OUTCOMES: Final = ("killed by own tests", "killed by the tier", "survived own tests", "survived", "equivalent")

PATIENCE: Final = 20
"""A run that takes so many times the time of the unchanged one has no end."""

LEAST_S: Final = 30.0
"""Time below which no run is said to have no end: starting Python takes some of it."""

STANDS_STILL_S: Final = 45.0
"""Time after which a run that does nothing has no end, either. Its tests themselves would wait for longer."""

LOOK_S: Final = 3.0

MOST_BYTES: Final = 8 * 2**30
"""Memory of a process; a loop without end may take it all before its time is over."""

LIKELY: Final = ("tests/conformance", "tests/unit", "plugins/windows", "tests/kit", "plugins/ackers")
"""Folders of the tier that detect most; the others follow in tox's order."""

MARK: Final = "FLAMESTREAM_MUTANT"
"""Variable that all processes of a run have, also those that have left its process group."""

PROGRAM: Final = """#!{python}
import sys
from flamecore.cli import main
sys.exit(main())
"""


class Run(NamedTuple):
    """A run of tests.

    Attributes:
        verdict: `passed`, `failed`, or `endless`.
        cpu_s: Time of the processors, in seconds, of the run and of what it has waited for.
        wall_s: Time that passed.
        reason: The first failure, or the end of the output.
    """

    verdict: str
    cpu_s: float
    wall_s: float
    reason: str


class Trials:
    """A copy of the sources for mutants to be tried in.

    Args:
        root: The checkout.
        draw: The draw of all runs.
    """

    def __init__(self, root: Path, draw: int) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="mut-"))
        self.root = self._home / "tree"
        self.python = self._home / "venv" / "bin" / "python"
        self._draw = draw
        self._whole: dict[str, Run] = {}
        self._copy(root)
        self._make_python()

    def close(self) -> None:
        """Delete the copy."""
        shutil.rmtree(self._home, ignore_errors=True)

    def _copy(self, root: Path) -> None:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            if (root / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.root / name)

    # Not PYTHONPATH: some tests replace it, or take it away. What .pth files add comes after the environment's own
    # packages and in this order, so the copy hides the packages that are installed, the wheel as well as a checkout.
    def _make_python(self) -> None:
        venv.EnvBuilder(symlinks=True).create(self._home / "venv")
        own = sysconfig.get_path("purelib", vars={"base": str(self._home / "venv")})
        parents = dict.fromkeys(package.parent for package in packages(self.root))
        installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        Path(own, "mutants.pth").write_text("\n".join(map(str, [*parents, *dict.fromkeys(installed)])) + "\n")
        program = self.python.with_name("flamestream")
        program.write_text(PROGRAM.format(python=self.python))
        program.chmod(0o755)

    def check_origin(self, module: Path) -> None:
        """Check that tests, and processes that they start, import a module from the copy.

        Raises:
            RuntimeError: They import another one.
        """
        (package,) = (package for package in packages(self.root) if module.is_relative_to(package))
        name = ".".join(module.relative_to(package.parent).with_suffix("").parts)
        look = f"import inspect, {name}; print(inspect.getsourcefile({name}))"
        environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [str(self.python), "-P", "-c", look]
        done = subprocess.run(command, cwd=self._home, env=environ, capture_output=True, text=True, check=True)
        if Path(done.stdout.strip()) != module:
            raise RuntimeError(f"{name} is imported from {done.stdout.strip()}, not from {module}")

    def tried(self, module: Path, source: bytes, tests: Sequence[Path], *, only_own: bool = False) -> dict[str, object]:
        """Try a mutant; return the outcome, and what it was killed by.

        Args:
            module: Path of the module in the copy.
            source: Its text.
            tests: Paths of its law's own tests.
            only_own: Whether to leave out the tier.
        """
        taken_s = 0.0
        own = [str(path.relative_to(self.root)) for path in tests]
        for number, part in enumerate([*own, *(() if only_own else self.parts())]):
            whole = self._reference(part)
            limit_s = max(LEAST_S, PATIENCE * whole.cpu_s)
            original = module.read_bytes()
            try:
                _write(module, source)
                # The second limit is for what does a little for ever; on a busy machine it must not end what works.
                run = self._run(part, limit_s, max(4 * limit_s, PATIENCE * whole.wall_s))
            finally:
                _write(module, original)
            taken_s += run.cpu_s
            if run.verdict != "passed":
                by = {"by": part, "endless": run.verdict == "endless", "reason": run.reason}
                return {"outcome": OUTCOMES[number >= len(own)], "cpu_s": round(taken_s, 1), **by}
        return {"outcome": OUTCOMES[2 if only_own else 3], "cpu_s": round(taken_s, 1)}

    def parts(self) -> list[str]:
        """Return the folders of tests that the environment `quick` runs, those that detect most first."""
        tox = configparser.ConfigParser(interpolation=None)
        tox.read(self.root / "tox.ini")
        folders = tox["tests"]["folders"].split()
        return sorted(folders, key=lambda name: LIKELY.index(name) if name in LIKELY else len(LIKELY))

    def _reference(self, tests: str) -> Run:
        """Return the run of some tests without a mutant, the first time by running them.

        Raises:
            RuntimeError: It fails.
        """
        if tests not in self._whole:
            run = self._whole[tests] = self._run(tests, 24 * 3600.0, 24 * 3600.0)
            if run.verdict != "passed":
                raise RuntimeError(f"{tests} fail without a mutant: {run.reason}")
        return self._whole[tests]

    def _run(self, tests: str, most_cpu_s: float, wall_s: float) -> Run:
        temporary = self._home / "tmp"
        temporary.mkdir()
        # Examples that another mutant has failed on would be tried first.
        shutil.rmtree(self._home / "hypothesis" / "examples", ignore_errors=True)
        search = [str(self.python.parent), sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
        environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TOX_ENV_NAME")}
        environ |= {
            TIER: "quick",
            DRAW: str(self._draw),
            MARK: str(self._home),
            "PATH": os.pathsep.join(search),
            "TMPDIR": str(temporary),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._home / "hypothesis"),
        }

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(most_cpu_s), int(most_cpu_s) + 5))
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
            # A shell starts what is in the background with it ignored, and some tests send it.
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        command = [str(self.python), "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", tests]
        began, before = time.monotonic(), _children_s()
        with (self._home / "output").open("w+b") as output:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=limit,
            )
            try:
                is_over = not _ends(process, self._home, began + wall_s)
            finally:
                _kill(process, self._home)
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()
        shutil.rmtree(temporary, ignore_errors=True)
        code = process.returncode
        is_endless = is_over or code in (-signal.SIGXCPU, -signal.SIGKILL)
        reasons = [line for line in lines if line.startswith(("FAILED", "ERROR"))] or lines[-3:]
        verdict = "endless" if is_endless else "failed" if code else "passed"
        return Run(verdict, _children_s() - before, time.monotonic() - began, " | ".join(reasons)[:300])


def _write(module: Path, source: bytes) -> None:
    """Write a module, without the bytecode of another one of the same second and size."""
    module.write_bytes(source)
    for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
        compiled.unlink()


def _ends(process: subprocess.Popen[bytes], home: Path, deadline: float) -> bool:
    """Wait for the end of a run; return whether it has ended before the deadline, and did not stand still."""
    renewed, used_s = time.monotonic(), cpu_s()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
            return True
        # On a busy machine a run may get no time at all: then it waits for some.
        if _has_work(home) or worked_s(used_s, cpu_s()) >= LEAST * STANDS_STILL_S:
            renewed, used_s = time.monotonic(), cpu_s()
        if time.monotonic() > min(deadline, renewed + STANDS_STILL_S):
            return False


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _processes(home: Path) -> Iterator[Path]:
    """Yield the folders in /proc of the processes of a run, also of those that have left its group."""
    mark = f"{MARK}={home}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        # It may have ended, or be another user's.
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield folder


def _has_work(home: Path) -> bool:
    """Return whether a process of a run uses a processor or a disk, or waits for them."""
    for folder in _processes(home):
        with contextlib.suppress(OSError):
            if (folder / "stat").read_bytes().rpartition(b") ")[2][:1] in b"RD":
                return True
    return False


def _kill(process: subprocess.Popen[bytes], home: Path) -> None:
    """End the process group of a run, and the processes that have left it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for folder in _processes(home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(folder.name), signal.SIGKILL)
