"""Pictures show every vertex, every edge, and which edges close a cycle."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest

import flamecore as fc
from flamecore.cli.render import dot, drawn, mermaid, rendered
from flamecore.errors import MissingDependencyError
from flamecore.model.expansion import expand
from flamecore.suggest import install_command


def word_count() -> fc.Graph:
    flow = fc.Flow("word-count")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    return flow.graph()


def with_cycle() -> fc.Graph:
    flow = fc.Flow("collatz")

    def body(numbers: fc.Stream[int]) -> tuple[fc.Stream[int], fc.Stream[int]]:
        stepped = numbers.map(lambda n: n // 2 if n % 2 == 0 else 3 * n + 1, name="step")
        done, again = stepped.branch(lambda n: n == 1)
        return again, done

    flow.source("numbers", int).rebalance().map(abs).loop(body).sink("ones")
    return flow.graph()


@pytest.mark.parametrize("graph", [word_count(), with_cycle(), expand(with_cycle()), expand(word_count())])
def test_every_vertex_and_edge_is_drawn(graph: fc.Graph) -> None:
    edges = [(start.index, end.index) for start, end in graph.edges]
    text = mermaid(graph)
    assert re.findall(r"^    v(\d+) -", text, re.MULTILINE) == [str(start) for start, _ in edges]
    assert [tuple(map(int, e)) for e in re.findall(r"v(\d+) -\.?->(?:\|.*?\|)? v(\d+)", text)] == edges
    text = dot(graph)
    assert [tuple(map(int, e)) for e in re.findall(r"v(\d+) -> v(\d+)", text)] == edges
    for text in (mermaid(graph), dot(graph)):
        for vertex in graph.vertices:
            assert re.search(rf"^    v{vertex.index}\W.*{re.escape(vertex.name)}", text, re.MULTILINE)
    assert text.count("{") == text.count("}")


def test_word_count_is_drawn_in_mermaid() -> None:
    assert mermaid(word_count()).splitlines() == [
        "flowchart LR",
        '    v0(["lines"])',
        '    v1["flat_map:split"]',
        '    v2{{"count"}}',
        '    v3[("counts")]',
        "    v0 --> v1",
        "    v1 -->|by key| v2",
        "    v2 --> v3",
    ]


def test_edges_that_close_a_cycle_are_dashed() -> None:
    graph = with_cycle()
    feedback = {(start.index, end.index) for start, end in graph.feedback()}
    assert feedback
    dashed = re.findall(r"v(\d+) -\.->(?:\|.*?\|)? v(\d+)", mermaid(graph))
    assert {tuple(map(int, edge)) for edge in dashed} == feedback
    assert dot(graph).count("style=dashed") == len(feedback)
    assert "by time" in mermaid(graph)


def test_names_are_quoted() -> None:
    flow = fc.Flow('say "hi"\\')
    flow.source('a "b" #1 <c>', str).map(str.upper, name="d\\e").sink("out")
    graph = flow.graph()
    assert 'v0(["a #quot;b#quot; #35;1 #lt;c>"])' in mermaid(graph)
    assert dot(graph).startswith('digraph "say \\"hi\\"\\\\" {')
    assert 'label="a \\"b\\" #1 <c>"' in dot(graph)
    assert 'label="d\\\\e"' in dot(graph)


def test_text_formats_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    graph = word_count()
    assert drawn(graph, "mermaid").decode() == mermaid(graph)
    assert drawn(graph, "dot").decode() == dot(graph)


def test_a_missing_python_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(MissingDependencyError) as caught:
        rendered(word_count(), "svg")
    assert (caught.value.module, caught.value.extra) == ("graphviz", "graphviz")
    assert install_command("flamestream", "graphviz") in str(caught.value)


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("graphviz")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="'dot'") as caught:
        rendered(word_count(), "png")
    assert caught.value.module == "dot"


def test_the_program_gets_the_graph(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("graphviz")
    program = tmp_path / "dot"
    program.write_text('#!/bin/sh\necho "$@"\ncat\n', "utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    arguments, _, text = rendered(word_count(), "svg").decode().partition("\n")
    assert "-Tsvg" in arguments.replace(" ", "")
    assert text.rstrip("\n") == dot(word_count()).rstrip("\n")


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot of Graphviz is not installed")
@pytest.mark.parametrize(("format", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_pictures_are_made(format: str, start: bytes) -> None:
    pytest.importorskip("graphviz")
    assert rendered(with_cycle(), format).startswith(start)  # type: ignore[arg-type]
