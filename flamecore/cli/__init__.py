"""The command line, `flamestream`. Data goes to stdout; progress, logs and errors go to stderr."""

from __future__ import annotations

from flamecore.cli.exits import EPILOG
from flamecore.cli.group import FlameGroup

main = FlameGroup(
    name="flamestream",
    help="Deterministic, exactly-once, low-latency stream processing, with cycles.",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
"""The entry point."""

__all__ = ["main"]
