"""The choice of uv for the environments of tox, or of pip where that is told where packages come from.

uv does not read pip's configuration: where that names an index or constraints, uv would install other packages.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tox.plugin import impl

if TYPE_CHECKING:
    from tox.tox_env.register import ToxEnvRegister

DECIDING = ("index-url", "extra-index-url", "no-index", "constraint")
"""Settings of pip that say which packages are installed."""


def configured(lines: list[str]) -> list[str]:
    """Return the deciding settings among lines of `pip config list`."""
    names = [line.partition("=")[0].rpartition(".")[2] for line in lines]
    return sorted({name for name in names if name in DECIDING})


# After tox-uv's own, which makes uv the runner.
@impl(trylast=True)
def tox_register_tox_env(register: ToxEnvRegister) -> None:
    """Choose pip's runner where pip is configured."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if found := configured(done.stdout.splitlines()):
        print(f"environments are made by pip, whose configuration has {', '.join(found)}; uv does not read it")
        register.default_env_runner = "virtualenv"
