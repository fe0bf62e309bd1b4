"""The same without flamestream, in one loop.

Run it as `python examples/cycles/shortest_paths/plain.py`.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from pathlib import Path

DEPOT = "depot"


def run(roads: Iterable[tuple[str, str, int]]) -> Iterator[tuple[str, int]]:
    """Tell each town that comes nearer, and how far it is."""
    known = {DEPOT: 0}
    roads_from = defaultdict(list)
    for start, end, km in roads:
        roads_from[start].append((end, km))
        if start not in known:
            continue
        queue = [(known[start] + km, end)]
        while queue:
            nearest, town = heappop(queue)
            if town in known and known[town] <= nearest:
                continue
            known[town] = nearest
            yield town, nearest
            for neighbour, further in roads_from[town]:
                heappush(queue, (nearest + further, neighbour))


if __name__ == "__main__":
    lines = Path(__file__).with_name("roads.jsonl").read_text("utf-8").splitlines()
    for town, km in run(tuple(json.loads(line).values()) for line in lines):
        print(json.dumps({"town": town, "km": km}, separators=(",", ":")))
