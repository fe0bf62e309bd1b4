"""The same without flamestream, in one loop.

Run it as `python examples/cycles/clusters/plain.py`.
"""

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

CENTRES = 3
READINGS = 30
TOLERANCE = 0.001


def run(readings: Iterable[tuple[str, float]]) -> Iterator[tuple[str, tuple[float, ...], int]]:
    """Yield after each reading its sensor, the centres, and the number of rounds."""
    values: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=READINGS))
    centres: defaultdict[str, list[float]] = defaultdict(list)
    for sensor, value in readings:
        values[sensor].append(value)
        before = centres[sensor]
        if len(before) < CENTRES and value not in before:
            before.append(value)
        rounds, furthest = 0, TOLERANCE + 1
        while furthest > TOLERANCE:
            near: list[list[float]] = [[] for _ in before]
            for one in values[sensor]:
                distances = [abs(centre - one) for centre in before]
                near[distances.index(min(distances))].append(one)
            after = [sum(group) / len(group) if group else centre for group, centre in zip(near, before, strict=True)]
            furthest = max(abs(one - other) for one, other in zip(before, after, strict=True))
            rounds, before = rounds + 1, after
        centres[sensor] = before
        yield sensor, tuple(before), rounds


if __name__ == "__main__":
    lines = Path(__file__).with_name("readings.jsonl").read_text("utf-8").splitlines()
    for sensor, centres, rounds in run(tuple(json.loads(line).values()) for line in lines):
        print(json.dumps({"sensor": sensor, "centres": centres, "rounds": rounds}, separators=(",", ":")))
