"""The same in one loop: `python examples/labels/classifier/plain.py`."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from classifier import Document, Model, Seen, Topic, teach, weigh, words

import flamecore as fc


def run(documents: Iterable[Document]) -> Iterator[Topic]:
    """Tell the topic of each document that has none."""
    having: Counter[str] = Counter()
    model = Model()
    for number, document in enumerate(documents):
        parts = words(document)
        having.update(part.word for part in parts)
        joined = fc.Gathered(document, tuple(Seen(*part, having[part.word]) for part in parts))
        _, (weighed,) = weigh(number, joined)
        model, told = teach(model, weighed)
        yield from told


if __name__ == "__main__":
    lines = Path(__file__).with_name("documents.jsonl").read_text("utf-8").splitlines()
    for topic in run(Document(**json.loads(line)) for line in lines):
        print(json.dumps(topic._asdict(), separators=(",", ":")))
