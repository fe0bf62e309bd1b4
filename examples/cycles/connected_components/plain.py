"""The same without flamestream, in one loop.

Run it as `python examples/cycles/connected_components/plain.py`.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path


def run(cables: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Tell each computer whose component changes, and the component."""
    components: dict[int, int] = {}
    neighbours = defaultdict(list)
    for one, other in cables:
        for computer, neighbour in ((one, other), (other, one)):
            neighbours[computer].append(neighbour)
            if computer not in components:
                components[computer] = computer
                yield computer, computer
                waiting = [(neighbour, computer) for neighbour in neighbours[computer]]
            else:
                waiting = [(neighbour, components[computer])]
            waiting.reverse()
            while waiting:
                at, component = waiting.pop()
                if at in components and components[at] <= component:
                    continue
                components[at] = min(at, component)
                yield at, components[at]
                waiting += [(neighbour, components[at]) for neighbour in reversed(neighbours[at])]


if __name__ == "__main__":
    lines = Path(__file__).with_name("cables.jsonl").read_text("utf-8").splitlines()
    for computer, component in run(tuple(json.loads(line).values()) for line in lines):
        print(json.dumps({"computer": computer, "component": component}, separators=(",", ":")))
