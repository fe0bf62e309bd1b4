"""The architecture page agrees with the code: its names, its picture, its laws and its words."""

from __future__ import annotations

import ast
import re
from configparser import ConfigParser
from importlib import import_module
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from flamecore.model.messages import CLIENT, NODE, OPERATOR
from flamecore.runtime.cluster.control_plane import ROLES

TAKEN_FROM = (CLIENT, OPERATOR, NODE)
"""Columns of the table of messages to the control."""
ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "flamecore"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
TEXT = PAGE.read_text("utf-8")
PICTURE = re.search(r"^```mermaid\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
GLOSSARY = ROOT / "docs" / "glossary.md"
REFERENCE = re.compile(r"\b(?:flamecore|flamestream_ackers)(?:\.\w+)+(?![\w./-])")

PAGES = sorted({*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "plugins").glob("*/README.md")})


def resolve(reference: str) -> Any:
    """Return what a dotted name leads to, by import and then by attribute."""
    module, rest = reference, []
    while True:
        try:
            found = import_module(module)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise  # the module is there, and needs another that is not
            module, _, name = module.rpartition(".")
            assert module, reference
            rest.insert(0, name)
        else:
            break
    for name in rest:
        found = getattr(found, name)
    return found


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_names_of_the_core_resolve(page: Path) -> None:
    references = set(REFERENCE.findall(page.read_text("utf-8")))
    assert page != PAGE or len(references) > 50
    broken = []
    for reference in sorted(references):
        try:
            resolve(reference)
        except AttributeError as error:
            broken.append(f"{reference}: {error}")
    assert not broken


@pytest.mark.parametrize("reference", ["flamecore.front", "flamecore.runtime.parts.worker.Worker.no_such_method"])
def test_a_name_that_is_gone_does_not_resolve(reference: str) -> None:
    with pytest.raises(AttributeError):
        resolve(reference)


def test_words_in_italics_are_in_the_glossary() -> None:
    known = {
        word.strip()
        for line in GLOSSARY.read_text("utf-8").splitlines()
        if line.startswith("| ")
        for word in line.split("|")[1].split(",")
    }
    words = {" ".join(word.split()) for word in re.findall(r"(?<![*\w])\*([^*`]+)\*(?!\*)", TEXT)} - {"italics"}
    assert "minimum time" in words
    singular = {word if word in known else word.removesuffix("s") for word in words}
    assert singular <= known


def test_exceptions_become_fewer() -> None:
    _, _, section = TEXT.partition("\n## Exceptions\n")
    assert len(re.findall(r"^- `", section, re.MULTILINE)) == 11, (
        "fewer: write the number here; more: see CONTRIBUTING.md"
    )


# -- rooms and laws ----------------------------------------------------------------------------------------------------


def law(room: Path) -> str:
    """Return the law of a room: the first two paragraphs of the docstring of its `__init__`, on one line."""
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8")))
    assert docstring is not None, room
    paragraphs = re.split(r"\n\s*\n", docstring)
    return " ".join(" ".join(paragraphs[:2]).split())


def test_every_room_is_told_with_its_law() -> None:
    rooms = {path.parent for path in CORE.rglob("__init__.py")} - {CORE}
    assert len(rooms) > 15
    laws = {".".join(room.relative_to(ROOT).parts): law(room) for room in rooms}
    told = dict(re.findall(r"^\| `(flamecore[\w.]+)` \| (.+) \|$", TEXT, re.MULTILINE))
    assert told == laws


def test_messages_to_the_control_are_told_with_their_roles() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| (yes|no) \| (yes|no) \|$", TEXT, re.MULTILINE)
    told = {
        kind: tuple(role for role, said in zip(TAKEN_FROM, row, strict=True) if said == "yes") for kind, *row in rows
    }
    assert told == {kind.__name__: roles for kind, roles in ROLES.items()}


# -- the picture -------------------------------------------------------------------------------------------------------


def contract(name: str) -> dict[str, str]:
    """Return a contract of the import linter."""
    parser = ConfigParser()
    assert parser.read(ROOT / ".importlinter")
    return dict(parser[f"importlinter:contract:{name}"])


def layers() -> list[list[str]]:
    """Return the modules of each layer, from the highest to the lowest."""
    return [re.findall(r"[\w.]+", line) for line in contract("rooms")["layers"].split("\n") if line]


def rows() -> list[list[str]]:
    """Return the layers by the names that the picture uses; the ground, the lowest, is one of them."""
    *above, _ = layers()
    return [*([module.rpartition(".")[2] for module in layer] for layer in above), ["ground"]]


def arrows(kind: str) -> set[tuple[str, str]]:
    """Return the arrows of a kind in the picture, such as `-->`: from, to."""
    assert PICTURE is not None
    found: set[tuple[str, str]] = set()
    for line in PICTURE[1].splitlines():
        stays = [re.findall(r"\w+", stay) for stay in line.split(f" {kind} ")]
        found.update(pair for some, others in pairwise(stays) for pair in product(some, others))
    return found


def labels() -> dict[str, str]:
    """Return the boxes of the picture, with what is written in each."""
    assert PICTURE is not None
    return dict(re.findall(r'^ +(\w+)\(?\["([^"]+)"\]\)?$', PICTURE[1], re.MULTILINE))


def test_arrows_are_the_layers_of_the_import_linter() -> None:
    assert arrows("-->") == {pair for above, below in pairwise(rows()) for pair in product(above, below)}


def test_arrows_of_drivers_lead_to_the_highest_rooms_they_may_import() -> None:
    forbidden = tuple(contract("drivers")["forbidden_modules"].split())
    allowed = [
        layer
        for layer in layers()
        if not any(f"{module}.".startswith(tuple(f"{name}." for name in forbidden)) for module in layer)
    ]
    assert arrows("-.->") == {("drivers", module.rpartition(".")[2]) for module in allowed[0]}


def test_boxes_are_the_layers() -> None:
    boxes = labels()
    assert boxes.keys() == {name for row in rows() for name in row} | {"drivers"}
    assert boxes["ground"].split(", ") == [module.rpartition(".")[2] for module in layers()[-1]]
    for name in boxes.keys() - {"ground", "drivers"}:
        assert boxes[name].startswith(f"{name}: ")


def test_rooms_of_the_runtime_are_in_its_frame() -> None:
    assert PICTURE is not None
    frame = re.search(r"^ +subgraph runtime\n(.*?)^ +end$", PICTURE[1], re.MULTILINE | re.DOTALL)
    assert frame is not None
    within = {module.rpartition(".")[2] for layer in layers() for module in layer if ".runtime." in module}
    assert set(re.findall(r"^ +(\w+)\[", frame[1], re.MULTILINE)) == within


def test_every_module_has_a_layer() -> None:
    named = {module for layer in layers() for module in layer}
    for folder in (CORE, CORE / "runtime"):
        there = {path.stem for path in folder.glob("*.py")} | {
            path.parent.name for path in folder.glob("*/__init__.py")
        }
        prefix = ".".join(folder.relative_to(ROOT).parts)
        assert {f"{prefix}.{name}" for name in there - {"__init__", "__main__", "runtime"}} <= named
