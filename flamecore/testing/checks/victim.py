"""The process that `check_sink_survives_kills` kills, which writes to a sink.

It prints the number of each batch that it has written.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

from flamecore.model.meta import MIN_TIME
from flamecore.testing.checks.sink_state import long_batches

_SYNC_EVERY = 5


def tests_of(facts: dict[str, Any]) -> Any:
    """Make the `SinkTests` described by the facts anew."""
    spec = importlib.util.spec_from_file_location("victim_tests", facts["file"])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["victim_tests"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kind: Any = module
    for name in facts["kind"].split("."):
        kind = getattr(kind, name)
    tests = kind()
    vars(tests).update(facts["with"])
    return tests


async def main(facts: dict[str, Any]) -> None:
    """Continue the sink's output, up to batch `until` or until killed."""
    tests = tests_of(facts)
    batches = long_batches(tests.payloads)
    sink = tests.make(Path(facts["folder"]), resume=False, fingerprint="kit")
    sink.continues("state-of-the-victim", continued=facts["continued"])
    print("opens 0", flush=True)
    held = await sink.open()
    first = 0 if held == MIN_TIME else held // 10
    print("held", first, flush=True)
    for number in count(first + 1):
        await sink.write(10 * number, batches(number))
        print("wrote", number, flush=True)
        if number % _SYNC_EVERY == 0:
            await sink.sync(10 * number)
        if facts["until"] is not None and number >= facts["until"]:
            break
    await sink.aclose()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
