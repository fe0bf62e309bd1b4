"""The example of a topic of Kafka, with a real server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from secrets import token_hex

import pyarrow.dataset as ds
import pytest

from flamecore.testing.progress import Patience

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.skipif(not (EXAMPLES / "spark").is_dir(), reason="the examples are not in the wheel"),
]

WRITE = """
import sys

from flamestream_spark.session.session import session

server, topic, jars, value = sys.argv[1:5]
with session("local[1]", {"spark.jars": jars}) as spark:
    rows = spark.createDataFrame([(line,) for line in value.split("/")], "value string").coalesce(1)
    rows.write.format("kafka").option("kafka.bootstrap.servers", server).option("topic", topic).save()
"""


def job(folder: Path, config: str, server: str = "localhost:9092", topic: str = "lines") -> list[str]:
    """Make the job of the example, with another configuration of Spark, and return the command that runs it."""
    told = (EXAMPLES / "spark" / "kafka.toml").read_text("utf-8")
    told, changed = re.subn(r"(?m)^config = .*$", lambda _: f"config = {config}", told)
    assert changed == 1
    told = told.replace('"localhost:9092"', f'"{server}"').replace('subscribe = "lines"', f'subscribe = "{topic}"')
    (folder / "kafka.toml").write_text(told)
    (folder / "topic.py").symlink_to(EXAMPLES / "spark" / "topic.py")
    return [sys.executable, "-m", "flamecore", "run", "kafka.toml", "-q"]


def test_words_of_a_topic_are_counted(kafka: str, kafka_jars: str, tmp_path: Path) -> None:
    topic, texts = f"flamestream-{token_hex(6)}", ["to be or", "not to be", "to"]
    subprocess.run([sys.executable, "-c", WRITE, kafka, topic, kafka_jars, "/".join(texts)], cwd=tmp_path, check=True)
    command = job(tmp_path, f'{{ "spark.jars" = "{kafka_jars}" }}', kafka, topic)
    wanted = Counter(word for text in texts for word in text.split())
    # Killed when all has been counted, and started again: it counts nothing twice.
    for number in range(2):
        running = subprocess.Popen(command, cwd=tmp_path)
        try:
            limit = Patience(150)
            while counted(tmp_path / "topic-counts") != wanted:
                assert running.poll() is None
                assert not limit.passed()
                time.sleep(0.5)
            if number:
                running.send_signal(signal.SIGINT)
                assert running.wait(60) == 0
        finally:
            running.kill()
            running.wait()
        if not number:
            more = "be not/or"
            subprocess.run([sys.executable, "-c", WRITE, kafka, topic, kafka_jars, more], cwd=tmp_path, check=True)
            wanted.update(more.replace("/", " ").split())
    rows = rows_of(tmp_path / "topic-counts")
    assert sorted(rows) == sorted((word, number + 1) for word, count in wanted.items() for number in range(count))


@pytest.mark.parametrize("place", ["here", "spark"])
def test_a_connector_that_is_missing_is_named_before_anything_starts(tmp_path: Path, place: str) -> None:
    command = [*job(tmp_path, '{ "spark.ui.enabled" = "false" }'), "--on", place]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    # Spark 4.3 has a code for it.
    assert re.search("source 'lines': Spark cannot read it: .*kafka", done.stderr, re.IGNORECASE)
    assert "spark.jars.packages" in done.stderr
    assert not [*(tmp_path / "topic-counts").glob("part-*")]


def rows_of(folder: Path) -> list[tuple[str, int]]:
    """Return the counts that were put out."""
    files = [str(file) for file in folder.glob("part-*")]
    return [(row["word"], row["number"]) for row in (ds.dataset(files).to_table().to_pylist() if files else ())]


def counted(folder: Path) -> Counter[str]:
    """Return the last count of each word."""
    found: Counter[str] = Counter()
    for word, number in rows_of(folder):
        found[word] = max(found[word], number)
    return found
