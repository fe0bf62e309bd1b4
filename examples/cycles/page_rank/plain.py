"""The same without flamestream, in one loop.

Run it as `python examples/cycles/page_rank/plain.py`.
"""

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

DAMPING = 0.85
TOLERANCE = 0.001


def run(pages: Iterable[tuple[str, Sequence[str]]]) -> Iterator[tuple[str, float]]:
    """Tell each page that takes rank, and its rank."""
    ranks: defaultdict[str, float] = defaultdict(float)
    gained: defaultdict[str, float] = defaultdict(float)
    links: dict[str, Sequence[str]] = {}
    queue: deque[str] = deque()

    def gain(page: str, amount: float) -> None:
        gained[page] += amount
        if abs(gained[page]) > TOLERANCE and page in links and page not in queue:
            queue.append(page)

    def share(page: str, rank: float) -> None:
        for link in links[page]:
            gain(link, DAMPING * rank / len(links[page]))

    for page, new_links in pages:
        if page in links:
            share(page, -ranks[page])
            links[page] = new_links
            share(page, ranks[page])
        else:
            links[page] = new_links
            gain(page, 1 - DAMPING)
        while queue:
            first = queue.popleft()
            if abs(gained[first]) > TOLERANCE:
                passed, gained[first] = gained[first], 0.0
                ranks[first] += passed
                yield first, ranks[first]
                share(first, passed)


if __name__ == "__main__":
    lines = Path(__file__).with_name("pages.jsonl").read_text("utf-8").splitlines()
    for name, rank in run(tuple(json.loads(line).values()) for line in lines):
        print(json.dumps({"name": name, "rank": rank}, separators=(",", ":")))
