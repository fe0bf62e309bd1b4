"""Fetch jars by Maven, with all that they need: `python tests/servers/maven.py FOLDER GROUP:ARTIFACT:VERSION…`.

It prints the path of each. They stay in FOLDER, from where a later call has them without Maven. Exit code 3: there is
no mvn, or it does not give them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from hashlib import blake2s
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

MISSING: Final = 3
FETCH_S: Final = 100.0
"""Limit of one call of Maven, in s. Maven keeps what has arrived, so that a later call takes less time."""

_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")
_DEPENDENCY: Final = """<dependency>
<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
</dependency>"""
_PROJECT: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
{}
</dependencies>
</project>
"""


class NotFetchedError(Exception):
    """Jars that cannot be had here; the message says why, in one line."""


def fetch(cache: Path, coordinates: Sequence[str]) -> list[Path]:
    """Return the jars of some artifacts, and those that they need at runtime, by name.

    Args:
        cache: The folder that has those of earlier calls; made if it is not there.
        coordinates: The artifacts, as "GROUP:ARTIFACT:VERSION".

    Raises:
        NotFetchedError: There is no mvn, it does not end within `FETCH_S`, or it does not give one of them.
    """
    cache = cache.resolve()  # Maven's own folder is another one
    made = cache / blake2s(" ".join(coordinates).encode(), digest_size=8).hexdigest()
    if not made.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        new = Path(mkdtemp(prefix=".new-", dir=cache))
        try:
            _copy(new, coordinates)
            new.rename(made)
        except OSError:
            if not made.is_dir():  # otherwise another process was faster
                raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return sorted(made.glob("*.jar"))


def _copy(folder: Path, coordinates: Sequence[str]) -> None:
    """Have Maven copy the jars into a folder."""
    mvn = shutil.which("mvn")
    if mvn is None:
        raise NotFetchedError("there is no mvn on the PATH")
    wanted = "\n".join(_DEPENDENCY.format(*one.split(":")) for one in coordinates)
    (folder / "pom.xml").write_text(_PROJECT.format(wanted), "utf-8")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    command = [mvn, "-q", "-B", "-U", "-f", str(folder / "pom.xml"), *goal]
    # A session of its own, since mvn may be a script with Java below it.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as running:
        try:
            said, _ = running.communicate(timeout=FETCH_S)
        except subprocess.TimeoutExpired:
            raise NotFetchedError(f"Maven does not answer within {FETCH_S:g} s") from None
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
    if running.returncode:
        lines = _COLOURS.sub("", said.decode("utf-8", "replace")).splitlines()
        errors = [line.removeprefix("[ERROR]").strip() for line in lines if line.startswith("[ERROR]")]
        why = next(filter(None, errors), "it does not say why")
        raise NotFetchedError(f"Maven does not give {', '.join(coordinates)}: {why[:500]}")


def main() -> None:
    """Print the jars, one a line."""
    try:
        print(*fetch(Path(sys.argv[1]), sys.argv[2:]), sep="\n")
    except NotFetchedError as error:
        print(error)
        sys.exit(MISSING)


if __name__ == "__main__":
    main()
