"""The example of a topic of Kafka, with a server and the connector of Spark where these are given.

FLAMESTREAM_KAFKA is the server ("localhost:9092"); Spark fetches the jar that the example names, or takes those of
FLAMESTREAM_KAFKA_JARS, paths with commas between them.
"""

from __future__ import annotations

import os
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
PACKAGES = "spark.jars.packages"

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.skipif(not (EXAMPLES / "spark").is_dir(), reason="the examples are not in the wheel"),
]

WRITE = """
import sys

from flamestream_spark.session.session import session

server, topic, config, value = sys.argv[1:5]
key, _, told = config.partition("=")
with session("local[1]", {key: told}) as spark:
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


def test_words_of_a_topic_are_counted(tmp_path: Path) -> None:
    server, jars = os.environ.get("FLAMESTREAM_KAFKA"), os.environ.get("FLAMESTREAM_KAFKA_JARS")
    if not server:
        pytest.skip("no Kafka: set FLAMESTREAM_KAFKA to a server")
    connector = f"spark.jars={jars}" if jars else f"{PACKAGES}=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
    topic, texts = f"flamestream-{token_hex(6)}", ["to be or", "not to be", "to"]
    command = [sys.executable, "-c", WRITE, server, topic, connector, "/".join(texts)]
    subprocess.run(command, cwd=tmp_path, check=True)
    key, _, value = connector.partition("=")
    running = subprocess.Popen(job(tmp_path, f'{{ "{key}" = "{value}" }}', server, topic), cwd=tmp_path)
    wanted = Counter(word for text in texts for word in text.split())
    try:
        limit = Patience(150)
        while counted(tmp_path / "topic-counts") != wanted:
            assert running.poll() is None
            assert not limit.passed()
            time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()


@pytest.mark.parametrize("place", ["here", "spark"])
def test_a_connector_that_is_missing_is_named_before_anything_starts(tmp_path: Path, place: str) -> None:
    command = [*job(tmp_path, '{ "spark.ui.enabled" = "false" }'), "--on", place]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    # Spark 4.3 has a code for it.
    assert re.search("source 'lines': Spark cannot read it: .*kafka", done.stderr, re.IGNORECASE)
    assert "spark.jars.packages" in done.stderr
    assert not [*(tmp_path / "topic-counts").glob("part-*")]


def counted(folder: Path) -> Counter[str]:
    """Return the last count of each word."""
    found: Counter[str] = Counter()
    files = [str(file) for file in folder.glob("part-*")]
    for row in ds.dataset(files).to_table().to_pylist() if files else ():
        found[row["word"]] = max(found[row["word"]], row["number"])
    return found
