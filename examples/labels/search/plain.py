"""The same without flamestream, in one loop.

Run it as `python examples/labels/search/plain.py`.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def run(events: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Tell whom each request finds, and when it is done."""
    known = defaultdict(list)
    for event in events:
        if "knows" in event:
            known[event["person"]].append(event["knows"])
            continue
        most: dict[str, int] = {}
        steps = [(event["person"], event["hops"])]
        while steps:
            person, hops = steps.pop()
            if hops <= most.get(person, -1):
                continue
            if person not in most:
                yield {"request": event["request"], "person": person}
            most[person] = hops
            if hops:
                steps += [(other, hops - 1) for other in reversed(known[person])]
        yield {"request": event["request"], "answers": len(most)}


if __name__ == "__main__":
    lines = Path(__file__).with_name("events.jsonl").read_text("utf-8").splitlines()
    for line in run(map(json.loads, lines)):
        print(json.dumps(line, separators=(",", ":")))
