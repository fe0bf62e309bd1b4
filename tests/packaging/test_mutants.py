"""The measure of the tests by mutants: what it finds, what it changes, and what it calls killed."""

from __future__ import annotations

import ast
import subprocess
from itertools import islice
from pathlib import Path

import pytest
from laws import LAWS, Law, again, definitions, drawn, equivalents, modules_of, own_tests
from mutate import places
from trials import OUTCOMES, Trials

from flamecore.testing.draws import seeds

ROOT = Path(__file__).resolve().parents[2]

TINY = '''"""A module."""

LIMIT = 3


class Counter:
    """A counter."""

    def __init__(self) -> None:
        self.count: int = 0

    def add(self, number: int, most: int | None = None) -> bool:
        """Add 1."""
        assert number > 0
        if number > 7 and most is None:
            raise ValueError(f"{number + 1} is more than 7")
        self.count += number
        return self.count < LIMIT

    def __repr__(self) -> str:
        return f"{self.count}" + "!" * 2
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a checkout of a tiny project, one of whose methods is tested."""
    folder = tmp_path / "checkout"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tests" / "own").mkdir(parents=True)
    (folder / "tiny" / "__init__.py").touch()
    (folder / "tiny" / "counter.py").write_text(TINY)
    (folder / "tests" / "own" / "test_add.py").write_text(
        "from tiny.counter import Counter\n\ndef test_it() -> None:\n    assert Counter().add(1)\n"
    )
    (folder / "pyproject.toml").write_text('[tool.hatch.build.targets.wheel]\npackages = ["tiny"]\n')
    (folder / "tox.ini").write_text("[tests]\nfolders = tests/own\n")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("law", LAWS)
def test_a_law_has_modules_and_tests(law: str, defined: dict[str, list[Path]]) -> None:
    modules = modules_of(law, defined, LAWS)
    assert sum(len(places(module.read_bytes())) for module in modules) >= 100
    assert own_tests(law, ROOT, LAWS)


@pytest.fixture(scope="module")
def defined() -> dict[str, list[Path]]:
    """Return where the classes of the project are defined."""
    return definitions(ROOT)


def test_a_law_that_is_not_found_is_named(checkout: Path) -> None:
    laws = {"counting": Law(("Counter", "Gone"), ("own/test_add.py", "own/test_gone.py"))}
    with pytest.raises(LookupError, match="'counting' is carried by Gone, which no module defines"):
        modules_of("counting", definitions(checkout), laws)
    with pytest.raises(LookupError, match=r"'counting' has tests 'own/test_gone.py', of which there are 0"):
        own_tests("counting", checkout, laws)


def test_each_change_compiles_and_changes_one_line() -> None:
    source = TINY.encode()
    changes = [place.mutation(source) for place in places(source)]
    for change in changes:
        assert ast.dump(ast.parse(change.source)) != ast.dump(ast.parse(source))
        pairs = zip(source.splitlines(), change.source.splitlines(), strict=True)
        assert [number for number, (one, other) in enumerate(pairs, 1) if one != other] == [change.line]
    shown = {(change.function, change.original, change.mutated) for change in changes}
    condition = "if number > 7 and most is None:"
    assert shown == {
        ("Counter.__init__", "self.count: int = 0", "self.count: int = 1"),
        *(
            ("Counter.add", condition, f"if {other}:")
            for other in (
                "(number > 7 or most is None)",
                "(number > 7)",
                "(most is None)",
                "(not (number > 7 and most is None))",
                "(number >= 7) and most is None",
                "number > 8 and most is None",
                "number > 6 and most is None",
                "number > 7 and (most is not None)",
            )
        ),
        ("Counter.add", "self.count += number", "self.count -= number"),
        ("Counter.add", "self.count += number", "pass"),
        ("Counter.add", "return self.count < LIMIT", "return (self.count <= LIMIT)"),
        ("Counter.add", "return self.count < LIMIT", "return None"),
    }


def test_texts_of_several_bytes_and_lines_are_replaced_as_a_whole() -> None:
    source = 'def f(x):\n    é = "é"; x[é] = max(\n        x, 2)\n'.encode()
    changed = {place.mutation(source).source.decode() for place in places(source)}
    assert 'def f(x):\n    é = "é"; pass\n' in changed
    assert 'def f(x):\n    é = "é"; x[é] = min(\n        x, 2)\n' in changed


def test_a_seed_repeats_its_mutants_and_has_all_laws_in_turn() -> None:
    some = list(islice(drawn(7, ROOT, LAWS), 2 * len(LAWS)))
    assert [mutant.law for mutant in some] == [*LAWS, *LAWS]
    assert some == list(islice(drawn(7, ROOT, LAWS), 2 * len(LAWS)))
    assert some != list(islice(drawn(8, ROOT, LAWS), 2 * len(LAWS)))


def test_mutants_of_a_journal_are_found_again_in_a_tree_that_has_changed(checkout: Path) -> None:
    laws = {"counting": Law(("Counter",), ("own/test_add.py",))}
    mutants = list(drawn(7, checkout, laws))
    names = ("function", "original", "mutated")
    lines = [
        {"law": "counting", "number": number, **dict(zip(names, mutant.mutation.key, strict=True))}
        for number, mutant in enumerate(mutants)
    ]
    (checkout / "tiny" / "counter.py").rename(checkout / "tiny" / "moved.py")
    (checkout / "tiny" / "moved.py").write_text(TINY.replace("7", "9"))
    found = list(again(lines, checkout, laws))
    assert {number for number, _ in found} == {
        number for number, mutant in enumerate(mutants) if "7" not in mutant.mutation.original
    }
    assert all(mutant.mutation.key == mutants[number].mutation.key for number, mutant in found)


def test_a_mutant_is_killed_if_a_test_fails_or_has_no_end(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trials.LEAST_S", 1.0)
    monkeypatch.setattr("trials.PATIENCE", 4)
    trials = Trials(checkout, draw=1)
    try:
        module = trials.root / "tiny" / "counter.py"
        trials.check_origin(module)

        def outcome(original: str, mutated: str, *, only_own: bool = False) -> tuple[object, object]:
            source = TINY.replace(original, mutated).encode()
            found = trials.tried(module, source, [trials.root / "tests" / "own"], only_own=only_own)
            return found["outcome"], found.get("endless")

        assert outcome("self.count < LIMIT", "None") == (OUTCOMES[0], False)
        assert outcome("7", "8", only_own=True) == (OUTCOMES[2], None)
        assert outcome("7", "8") == (OUTCOMES[3], None)
        assert outcome("self.count += number", "while True: pass") == (OUTCOMES[0], True)
        monkeypatch.setattr("trials.STANDS_STILL_S", 3.0)
        monkeypatch.setattr("trials.LOOK_S", 0.2)
        assert outcome("self.count += number", "__import__('time').sleep(1000)") == (OUTCOMES[0], True)
        assert module.read_text() == TINY
    finally:
        trials.close()
    assert not trials.root.exists()


def test_every_equivalent_mutant_can_be_made_and_few_are_drawn(defined: dict[str, list[Path]]) -> None:
    made = set()
    for law in {law for law, *_ in equivalents()}:
        for source in (module.read_bytes() for module in modules_of(law, defined, LAWS)):
            made |= {(law, *place.mutation(source).key) for place in places(source)}
    assert equivalents().keys() - made == set()
    known, count = equivalents().keys(), 25 * len(LAWS)
    (seed,) = seeds(1)
    mutants = islice(drawn(seed, ROOT, LAWS), count)
    assert sum((law, *mutation.key) in known for law, _, mutation in mutants) <= 0.05 * count, seed
