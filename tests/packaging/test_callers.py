"""All that is shipped is called: by shipped code, an entry point, or a program or page that users read.

Names are compared, not objects: two functions of one name keep each other alive. So a finding is right, and a miss is
possible. The kit calls much that nothing else does; it is reached from there only if it is in the kit.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WORD = re.compile(r"[A-Za-z_]\w*")
OURS = re.compile(r"flamecore|flamestream_|pyspark_flamestream|\.")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
REGISTERING = {"hookimpl", "register", "command"}
"""Decorators that hand a function to somebody who calls it."""
CALLING_NOTHING = {
    "object",
    "ABC",
    "Protocol",
    "Generic",
    "NamedTuple",
    "TypedDict",
    "Struct",
    "msgspec.Struct",
    "Enum",
}
"""Bases that call no method of a class by a name that is not ours."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Part:
    """A function, a class, or a method, with the names in it."""

    place: str
    name: str
    names: set[str]
    bases: set[str] = field(default_factory=set)
    owner: Part | None = None
    is_foreign: bool = False
    """Whether a base of the class is not ours: its methods are called by others, too."""
    alive: bool = False


def names_in(*nodes: ast.AST) -> Iterator[str]:
    """Yield the names that these nodes use, those in texts too; not those that they import, and no docstring."""
    inside = [node for top in nodes for node in ast.walk(top)]
    docs = {id(node.body[0].value) for node in inside if isinstance(node, Definition) and _has_docstring(node)}
    for node in inside:
        match node:
            case ast.Name(name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str(text)) if id(node) not in docs:
                yield from WORD.findall(text)
            case ast.Constant(value=bytes(text)):
                yield from WORD.findall(text.decode("utf-8", "replace"))
            case ast.Call(func=ast.Name("getattr"), args=[_, ast.JoinedStr([ast.Constant(str(prefix)), *_]), *_]):
                yield f"{prefix}*"


def _has_docstring(node: ast.AST) -> bool:
    return ast.get_docstring(node, clean=False) is not None  # type: ignore[arg-type]


def parts_of(path: Path, place: str) -> tuple[list[Part], set[str]]:
    """Return the parts of a module, and the names that it uses when it is imported."""
    parts: list[Part] = []
    used: set[str] = set()
    tree = ast.parse(path.read_text("utf-8"))
    ours = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and OURS.match(node.module or ""):
            ours.update(alias.asname or alias.name for alias in node.names)
    for node in tree.body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Assign(targets=[ast.Name("__all__")]):
                pass
            case ast.ClassDef():
                methods = [child for child in node.body if isinstance(child, Definition)]
                rest = [child for child in node.body if child not in methods and not isinstance(child, ast.Expr)]
                around = [*node.decorator_list, *node.bases, *node.keywords]
                bases = {ast.unparse(base).partition("[")[0] for base in node.bases} - CALLING_NOTHING
                owner = Part(f"{place}: {node.name}", node.name, {*names_in(*around, *rest)}, bases)
                owner.is_foreign = bool(bases - ours)
                parts.append(owner)
                for child in methods:
                    name = f"{place}: {node.name}.{child.name}"
                    parts.append(Part(name, child.name, set(names_in(child)), owner=owner))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                parts.append(Part(f"{place}: {node.name}", node.name, set(names_in(node))))
                if REGISTERING & set(names_in(*node.decorator_list)):
                    used.add(node.name)
            case ast.Expr(ast.Constant()):
                pass
            case _:
                used.update(names_in(node))
    return parts, used


def never_called(modules: dict[str, Path], known: set[str]) -> list[str]:
    """Return the parts of modules that nobody reaches, in the order of the modules.

    Args:
        modules: The modules by their places, which say where a part is.
        known: Names that are used from outside.
    """
    parts: list[Part] = []
    used = set(known)
    for place, path in modules.items():
        found, names = parts_of(path, place)
        parts += found
        used |= names
    foreign = {part.name for part in parts if part.is_foreign}
    while reached := [part for part in parts if not part.alive and _is_reached(part, used, foreign)]:
        for part in reached:
            part.alive = True
            used |= part.names
        foreign |= {part.name for part in parts if part.bases & foreign}
    return [part.place for part in parts if not part.alive and (part.owner is None or part.owner.alive)]


def _is_reached(part: Part, used: set[str], foreign: set[str]) -> bool:
    if part.owner is not None:
        if not part.owner.alive:
            return False
        if part.name.startswith("__") or part.owner.name in foreign:
            return True
    return part.name in used or any(f"{part.name[:end]}*" in used for end in range(1, len(part.name)))


def read_by_users() -> set[str]:
    """Return the names in pages and examples, and those of entry points."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/README.md")]
    names = {name for page in pages for code in CODE.findall(page.read_text("utf-8")) for name in WORD.findall(code)}
    for program in ROOT.glob("examples/**/*.py"):
        names.update(names_in(ast.parse(program.read_text("utf-8"))))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    targets = [target for group in (project["scripts"], *project["entry-points"].values()) for target in group.values()]
    return names.union(*(WORD.findall(target.partition(":")[2]) for target in targets))


def shipped() -> dict[str, Path]:
    """Return the modules of the wheel, without those of the kit."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    found = [path for folder in folders["packages"] for path in sorted((ROOT / folder).rglob("*.py"))]
    places = {str(path.relative_to(ROOT)): path for path in found}
    return {place: path for place, path in places.items() if not re.search(r"/testing(/|\.py$)", place)}


def test_all_that_is_shipped_is_called() -> None:
    modules = shipped()
    assert len(modules) > 300
    assert never_called(modules, read_by_users()) == []


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("def f(): g()\ndef g(): pass\nf()", []),
        ("def f(): g()\ndef g(): pass", ["f", "g"]),
        ("def f(): f()", ["f"]),
        ("class A:\n    def __init__(self): self.m()\n    def m(self): pass\n    def n(self): pass\nA()", ["A.n"]),
        ("class A:\n    '''See f.'''\ndef f(): pass\nA()", ["f"]),
        ("class A: pass\nclass B(A): pass\nclass C(B): pass\nB()", ["C"]),
        ("import ast\nclass A(ast.NodeVisitor):\n    def visit_Name(self): pass\nA()", []),
        ("class A:\n    def on_x(self): pass\n    def at(self): pass\ngetattr(A(), f'on_{1}')", ["A.at"]),
        ("PROGRAM = 'import it; it.f()'\ndef f(): pass", []),
        ("__all__ = ['f']\ndef f(): pass", ["f"]),
        ("import atexit\n@atexit.register\ndef f(): pass", []),
        ("def named(): pass", []),
    ],
)  # fmt: skip
def test_parts_that_nobody_reaches_are_found(tmp_path: Path, source: str, missing: list[str]) -> None:
    (tmp_path / "it.py").write_text(source)
    assert never_called({"it": tmp_path / "it.py"}, {"named"}) == [f"it: {name}" for name in missing]
