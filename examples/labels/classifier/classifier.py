"""Text classifier: documents with a topic train it; it gives the topic of others.

flamestream run examples/labels/classifier/job.toml

Each document is taken apart into its words. The worker that owns a word counts the documents that have it, and the
words that come back are joined to the document again: that is what the label is for. A word that few documents have
says more of a topic (tf-idf), and the model, FTRL-proximal, is the state of the last operation. So each document meets
exactly what the documents before it have taught.
"""

from collections import Counter
from collections.abc import Mapping
from math import exp, log, sqrt
from typing import NamedTuple

import flamecore as fc

ALPHA, BETA, L1, L2 = 132.0, 0.1, 0.0086, 0.095
"""The settings of FTRL-proximal: the two of the learning rate, and the two that keep weights small."""


class Document(NamedTuple):
    """A record; `topic` is empty if it is to be found."""

    name: str
    text: str
    topic: str = ""


class Word(NamedTuple):
    """A word of a document, and how often it is there."""

    word: str
    times: int


class Seen(NamedTuple):
    """A word of a document, and how many documents have had it so far."""

    word: str
    times: int
    documents: int


class Weighed(NamedTuple):
    """A document as the model takes it: the weight of each word."""

    document: Document
    weights: tuple[tuple[str, float], ...]


class Sums(NamedTuple):
    """The sums of FTRL-proximal for a topic and a word."""

    z: float = 0.0
    n: float = 0.0

    def weight(self) -> float:
        """Return the weight of the word for the topic."""
        if abs(self.z) <= L1:
            return 0.0
        return -(self.z - (L1 if self.z > 0 else -L1)) / ((BETA + sqrt(self.n)) / ALPHA + L2)

    def taught(self, slope: float) -> "Sums":
        """Return the sums after one more step down a slope."""
        n = self.n + slope * slope
        return Sums(self.z + slope - (sqrt(n) - sqrt(self.n)) / ALPHA * self.weight(), n)


class Model(NamedTuple):
    """State: the topics so far, and the sums for each of them and each word.

    It is never changed in place.
    """

    topics: tuple[str, ...] = ()
    sums: Mapping[tuple[str, str], Sums] = {}

    def scores(self, weights: tuple[tuple[str, float], ...]) -> list[float]:
        """Return how much the words say for each topic."""
        return [
            sum(self.sums.get((topic, word), Sums()).weight() * weight for word, weight in weights)
            for topic in self.topics
        ]


class Topic(NamedTuple):
    """An output: the likeliest topic of a document."""

    document: str
    topic: str
    probability: float


def words(document: Document) -> list[Word]:
    """Return the words of a document, the first first."""
    return [Word(*pair) for pair in Counter(document.text.lower().split()).items()]


def spread(documents: int, word: Word) -> tuple[int, list[Seen]]:
    """Count the documents that have a word."""
    return documents + 1, [Seen(*word, documents + 1)]


def weigh(documents: int, joined: fc.Gathered[Document, Seen]) -> tuple[int, list[Weighed]]:
    """Weigh the words of a document among all documents so far."""
    documents += 1
    plain = [(seen.word, seen.times * log(documents / seen.documents) + 1) for seen in joined.parts]
    length = sqrt(sum(weight * weight for _, weight in plain))
    return documents, [Weighed(joined.item, tuple((word, weight / length) for word, weight in plain))]


def teach(model: Model, weighed: Weighed) -> tuple[Model, list[Topic]]:
    """Teach the model the topic of a document, or ask it."""
    document, weights = weighed
    if not document.topic:
        chances = [1 / (1 + exp(-score)) for score in model.scores(weights)]
        best = max(range(len(chances)), key=chances.__getitem__, default=None)
        if best is None:
            return model, [Topic(document.name, "", 0.0)]
        return model, [Topic(document.name, model.topics[best], round(chances[best] / sum(chances), 3))]
    if document.topic not in model.topics:
        model = model._replace(topics=(*model.topics, document.topic))
    powers = [exp(score) for score in model.scores(weights)]
    sums = dict(model.sums)
    for topic, power in zip(model.topics, powers, strict=True):
        error = power / sum(powers) - (topic == document.topic)
        for word, weight in weights:
            sums[topic, word] = sums.get((topic, word), Sums()).taught(error * weight)
    return model._replace(sums=sums), []


classifier = fc.Flow("classifier")
documents = classifier.source("documents", Document).rebalance().label("document")
counted = documents.flat_map(words).key_by(lambda word: word.word).stateful_map(0, spread)
joined = counted.gather("document")
weighed = joined.key_by(lambda _: "all").stateful_map(0, weigh)
weighed.key_by(lambda _: "all").stateful_map(Model(), teach).sink("topics")
