"""`flamestream demo kill`: a short real hunt, and its report of any fault."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from flamecore.errors import JobError
from flamestream_demo import cyclic_index
from flamestream_demo.follower import Follower
from flamestream_demo.pages import revised, topics
from flamestream_demo.testing import plain_index

LINES = [b"one\n", b"two\n", b"three\n", b"four\n"]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_cycle_puts_out_what_a_plain_loop_does(workers: int) -> None:
    pages = [revised(page, version) for version in (1, 2) for page in topics(8)]
    assert cyclic_index.flow.run({"pages": pages}, workers=workers)["index"] == list(plain_index(pages))


def figures(follower: Follower) -> tuple[int, int, int, int]:
    follower.look()
    return follower.delivered, follower.lost, follower.duplicated, follower.wrong


def test_an_output_is_followed_while_it_grows_and_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "out"
    follower = Follower(path, LINES)
    assert figures(follower) == (0, 0, 0, 0)
    path.write_bytes(b"one\ntwo\nthr")
    assert figures(follower) == (2, 0, 0, 0)
    path.write_bytes(b"one\n")  # a run that begins cuts off lines that do not count
    assert figures(follower) == (1, 0, 0, 0)
    path.write_bytes(b"one\ntwo\nthree\nfour\n")
    assert figures(follower) == (4, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"one\ntwo\none\n", (2, 0, 1, 0)),
        (b"one\nfour\n", (2, 2, 0, 0)),
        (b"two\none\n", (2, 0, 0, 0)),
        (b"one\nfive\n", (1, 0, 0, 1)),
    ],
)
def test_wrong_lines_are_counted(tmp_path: Path, text: bytes, wanted: tuple[int, int, int, int]) -> None:
    path = tmp_path / "out"
    path.write_bytes(text)
    assert figures(Follower(path, LINES)) == wanted


def test_all_roles_are_killed_soon() -> None:
    from flamestream_demo.shooting import order_of

    for seed in range(20):
        assert set(order_of(3, random.Random(seed))) == {"worker", "acker", "supervisor"}
    assert order_of(7, random.Random(1)) == order_of(7, random.Random(1))
    assert order_of(0, random.Random(1)) == []


@pytest.mark.skipif(not entry_points(group="flamestream.command", name="demo"), reason="flamestream is not installed")
@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_the_output_survives_three_kills() -> None:
    line = [sys.executable, "-m", "flamecore", "demo", "kill", "--kills", "3", "--for", "5", "--seed", "5", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert (facts["lost"], facts["duplicated"], facts["wrong"]) == (0, 0, 0)
    assert facts["same_as_undisturbed"]
    assert facts["outputs"] > 10_000
    assert facts["killed"] == 3
    assert len({shot["pid"] for shot in facts["shots"]}) == facts["killed"]


@pytest.mark.parametrize("whose", ["the undisturbed run", "the job"])
@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_a_run_that_puts_out_nothing_is_not_waited_for_without_end(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flamestream_demo import shooting

    monkeypatch.setattr(shooting, "_LIMIT_S", 0.1)
    sleeps, ends = [[sys.executable, "-c", text] for text in ("import time; time.sleep(600)", "")]
    with shooting.Target(tmp_path, 5.0) as target:
        (tmp_path / "undisturbed.jsonl").write_bytes(b"a line\n")
        other = subprocess.Popen(sleeps if whose == "the undisturbed run" else ends)
        if whose == "the job":
            other.wait()
        monkeypatch.setattr(target, "undisturbed", lambda: other)
        monkeypatch.setattr(target, "start", lambda: None)
        target._process = subprocess.Popen(sleeps, text=True)
        with pytest.raises(JobError, match=f"{whose} has put out nothing for 0.1 s"):
            list(shooting.Hunt(target, 0, 1).run())
        assert other.wait() is not None
