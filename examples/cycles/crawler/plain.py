"""The same without flamestream, in one loop.

Run it as `python examples/cycles/crawler/plain.py`.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from zlib import crc32

DEPTH = 4
HOSTS = ("ash.example", "birch.example", "cedar.example", "elm.example")


def links_of(url: str) -> tuple[str, ...]:
    """Ask the made-up web for the links of a page."""
    host = url.partition("/")[0]
    dice = [crc32(f"{url} {number}".encode()) for number in range(4)]
    return f"{host}/{dice[0] % 9}", f"{HOSTS[dice[1] % 4]}/{dice[2] % 9}", f"{host}/{dice[3] % 9}"


def run(seeds: Iterable[str], turns: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Yield each page that is fetched or comes nearer, and its distance.

    The distance is the number of links from the seeds.
    """
    depths: dict[str, int] = {}
    links: dict[str, tuple[str, ...]] = {}
    frontiers: defaultdict[str, list[str]] = defaultdict(list)
    left: defaultdict[str, int] = defaultdict(int)

    def taken(host: str) -> list[tuple[str, int | None]]:
        """Take what a host may be asked for now from its frontier, the first page last."""
        now, frontiers[host] = frontiers[host][: left[host]], frontiers[host][left[host] :]
        left[host] -= len(now)
        return [(url, None) for url in reversed(now)]

    for event in chain.from_iterable(zip_longest(seeds, turns)):
        steps: list[tuple[str, int | None]] = []
        if isinstance(event, str):
            steps = [(event, 0)]
        elif event is not None:
            left[event[0]] = event[1]
            steps = taken(event[0])
        while steps:
            url, depth = steps.pop()
            if depth is None:
                links[url] = links_of(url)
            elif url not in depths:
                depths[url], host = depth, url.partition("/")[0]
                frontiers[host].append(url)
                steps += taken(host)
            elif depth < depths[url]:
                depths[url] = depth
            else:
                continue
            if url in links:
                yield url, depths[url]
                steps += [(link, depths[url] + 1) for link in reversed(links[url]) if depths[url] < DEPTH]


if __name__ == "__main__":
    folder = Path(__file__).parent
    seeds = (folder / "seeds.txt").read_text("utf-8").splitlines()
    turns = (folder / "turns.jsonl").read_text("utf-8").splitlines()
    for url, depth in run(seeds, (tuple(json.loads(line).values()) for line in turns)):
        print(json.dumps({"url": url, "depth": depth}, separators=(",", ":")))
