"""A flow is found by module or by file, and what stands in the way is told with the user's own lines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flamecore.errors import ConfigError, GraphError
from flamecore.model.vertices import user_functions
from flamecore.runtime.config.flow_loader import code_of, copy_of, importable, load_flow

FLOW = """
import flamecore as fc
{name} = fc.Flow("{title}")
{name}.source("lines", str).sink("out")
"""


@pytest.fixture(autouse=True)
def _clean_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def flow(name: str = "flow", title: str = "t") -> str:
    return FLOW.format(name=name, title=title)


def test_file_and_module_are_the_same_flow() -> None:
    write("some_app.py", flow(title="mine"))
    found = load_flow("some_app.py")
    assert found.name == "mine"
    assert found.module == "some_app"
    assert load_flow("some_app.py:flow") is found
    assert load_flow("some_app:flow") is found
    assert load_flow("some_app") is found


def test_a_flow_is_loaded_from_a_folder_with_the_modules_beside_it(tmp_path: Path) -> None:
    write("jobs/some_app.py", "import beside_it\n" + flow(title="in folder"))
    write("jobs/beside_it.py", "")
    write("some_app.py", flow(title="here"))
    assert load_flow("some_app.py", tmp_path / "jobs").name == "in folder"
    assert load_flow(str(tmp_path / "jobs" / "some_app.py")).name == "in folder"


def test_a_fresh_process_loads_a_flow_anew(tmp_path: Path) -> None:
    """The first look at the entry points imports modules, while those of the flow are searched for among all."""
    (tmp_path / "app.py").write_text("import flamecore as fc\nflow = fc.Flow('f')\nflow.source('n', int).sink('out')\n")
    program = (
        "from pathlib import Path\n"
        "from flamecore.runtime.config.flow_loader import load_flow_anew\n"
        "flow, undo = load_flow_anew('app.py:flow', Path('.'))\n"
        "undo()\n"
        "print(flow.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("f\n", "")


def test_a_module_in_a_package_is_loaded() -> None:
    write("some_package/__init__.py", "")
    write("some_package/jobs.py", flow("words"))
    assert load_flow("some_package.jobs:words").module == "some_package.jobs"


@pytest.mark.parametrize("name", ["csv.py", "my-flow.py", "2nd.py"])
def test_a_file_may_have_a_taken_name_or_none_of_a_module(name: str) -> None:
    import csv

    write(name, flow())
    assert load_flow(name).module == "flamestream_app_" + name.removesuffix(".py").replace("-", "_")
    assert sys.modules["csv"] is csv


def test_several_flows_need_a_name() -> None:
    write("some_app.py", flow("a") + flow("b"))
    with pytest.raises(ConfigError, match=r"some_app\.py:a, some_app\.py:b"):
        load_flow("some_app.py")
    assert load_flow("some_app.py:b") is not load_flow("some_app.py:a")


def test_two_names_of_one_flow_and_flows_of_others_do_not_count() -> None:
    write("other_app.py", flow("theirs"))
    write("some_app.py", "from other_app import theirs\n" + flow("a") + "b = a")
    assert load_flow("some_app.py").module == "some_app"
    write("only_others.py", "from other_app import theirs")
    assert load_flow("only_others.py").module == "other_app"


def test_a_module_without_flow_is_refused() -> None:
    write("some_app.py", "x = 1")
    with pytest.raises(ConfigError, match="has no flow"):
        load_flow("some_app.py")


def test_an_unknown_name_of_a_flow_is_refused() -> None:
    write("some_app.py", flow("flow") + "flower = 3")
    with pytest.raises(ConfigError, match="Did you mean 'flow'"):
        load_flow("some_app.py:flwo")
    with pytest.raises(ConfigError, match="but a int"):
        load_flow("some_app.py:flower")


def test_a_file_of_another_name_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "word_count.py").touch()
    with pytest.raises(ConfigError, match=r"no file .*wordcount\.py") as caught:
        load_flow("wordcount.py", tmp_path)
    assert caught.value.hint == "Did you mean word_count.py?"
    with pytest.raises(ConfigError) as caught:
        load_flow("gone/wordcount.py", tmp_path)
    assert caught.value.hint == ""


def test_a_missing_file_or_module_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no file .*gone\.py"):
        load_flow("gone.py")
    with pytest.raises(ConfigError, match="no module 'gone_app'"):
        load_flow("gone_app:flow")
    with pytest.raises(ConfigError, match=r"no module 'gone_package\.jobs'"):
        load_flow("gone_package.jobs:flow")
    write("some_app.py", flow())
    with pytest.raises(ConfigError, match="empty"):
        load_flow("")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1 / 0", ZeroDivisionError),
        ("import no_such_module_here", ModuleNotFoundError),
        ("x = (", SyntaxError),
        ("raise SystemExit(3)", SystemExit),
    ],
)
def test_a_failure_while_loading_is_reported_with_its_line(text: str, error: type[BaseException]) -> None:
    write("some_app.py", f"y = 1\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_flow("some_app.py")
    assert isinstance(caught.value.__cause__, error)
    assert f"some_app.py cannot be loaded: {error.__name__}" in str(caught.value)
    assert "some_app.py:2" in str(caught.value)
    assert "importlib" not in str(caught.value), "where Python imports is of no interest"
    assert len(str(caught.value).splitlines()) < 8


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("fc.Flow('words').source('lines', str).flatmap(str.split)", "flat_map"),
        ("fc.Flow('words').source('lines', str).key_by(str).folded(str)", "fold"),
        ("fc.Flow('words').sourc('lines', str)", "source"),
        ("fc.Flo('words')", "Flow"),
    ],
)
def test_the_name_that_a_wrong_one_may_stand_for_is_told(line: str, meant: str) -> None:
    write("some_app.py", f"import flamecore as fc\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load_flow("some_app.py")
    assert caught.value.hint == f"Did you mean {meant!r}?"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python does not say which name an import lacks")
def test_the_name_that_a_wrong_import_may_stand_for_is_told() -> None:
    write("some_app.py", "from flamecore import Flw\n")
    with pytest.raises(ConfigError, match="Did you mean 'Flow'"):
        load_flow("some_app.py")


def test_errors_of_the_graph_keep_their_type_and_name_the_line() -> None:
    write("some_app.py", flow() + 'flow.source("lines", str)\n')
    with pytest.raises(GraphError) as caught:
        load_flow("some_app.py")
    assert any("some_app.py:5" in note for note in caught.value.__notes__)


def test_a_failed_import_is_tried_again() -> None:
    path = write("my-app.py", "1 / 0")
    with pytest.raises(ConfigError):
        load_flow("my-app.py")
    path.write_text(flow(title="mended"), "utf-8")
    assert load_flow("my-app.py").name == "mended"


FACTORY = """
import flamecore as fc
import helpers

def make(times: int = 2):
    flow = fc.Flow("made")

    def repeat(line: str) -> list[str]:
        return [helpers.shout(line)] * times

    flow.source("lines", str).flat_map(repeat).sink("out")
    return flow

def needs(times):
    return make(times)

def wrong():
    return 7

def failing():
    return make(int("x"))
"""
HELPERS = "def shout(line: str) -> str: return line.upper()"


def made() -> None:
    write("factory.py", FACTORY)
    write("helpers.py", HELPERS)


@pytest.mark.parametrize("reference", ["factory.py:make", "factory:make"])
def test_a_flow_is_made_by_a_function(reference: str) -> None:
    made()
    found = load_flow(reference)
    assert found.reference == "factory:make"
    assert found.run({"lines": ["a"]})["out"] == ["A", "A"]


@pytest.mark.parametrize("reference", ["app.py", "app.py:flow", "app", "app:flow"])
def test_a_flow_that_a_function_of_another_module_made_is_found_where_it_is_kept(reference: str) -> None:
    made()
    write("app.py", "import factory\nflow = factory.make(3)\n")
    found = load_flow(reference)
    assert found.reference == "app:flow"
    assert found.graph().reference == "app:flow"
    place, folder = importable(found)
    assert load_flow(place, Path(folder)) is found


def test_flows_that_one_function_made_are_told_apart() -> None:
    made()
    write("app.py", "from factory import make\none = make(1)\nfour = make(4)\n")
    assert load_flow("app.py:four").run({"lines": ["a"]})["out"] == ["A"] * 4
    assert load_flow("app.py:one").reference == "app:one"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("needs", r"it needs arguments \(.*'times'\)"),
        ("wrong", "returns no flow, but a int"),
        ("failing", r"(?s)ValueError: invalid literal.*factory.py:\d+ in failing"),
        ("helpers", "no flow 'helpers', but a module"),
    ],
)
def test_a_function_that_makes_no_flow_is_refused(name: str, text: str) -> None:
    made()
    with pytest.raises(ConfigError, match=text):
        load_flow(f"factory:{name}")


def test_the_source_of_what_makes_a_flow_is_part_of_its_fingerprint(tmp_path: Path) -> None:
    made()
    write("app.py", "import factory\nflow = factory.make(3)\n")
    found = load_flow("app.py")
    functions = [function for vertex in found.graph().vertices for function in user_functions(vertex)]
    assert set(copy_of(found, functions)) == {"app.py", "factory.py", "helpers.py"}
    before = code_of(found, functions)
    for name in ("app.py", "factory.py", "helpers.py"):
        with (tmp_path / name).open("a") as file:
            file.write("\n# changed\n")
        assert code_of(found, functions) != before
        before = code_of(found, functions)


@pytest.mark.parametrize("folder", [".", "elsewhere"])
def test_a_file_of_a_package_may_import_relative_to_it(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write("parcel/__init__.py", "")
    write("parcel/inner/__init__.py", "")
    write("parcel/inner/deep.py", HELPERS)
    app = write("parcel/app.py", "from .inner.deep import shout\nimport flamecore as fc\n" + flow(title="of a package"))
    path = app.resolve()
    Path(folder).mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    found = load_flow(str(path))
    assert (found.name, found.reference) == ("of a package", "parcel.app:flow")
    assert importable(found) == ("parcel.app:flow", str(path.parents[1]))


def test_a_file_of_a_package_that_imports_what_lies_beside_it_is_a_script() -> None:
    write("parcel/__init__.py", "")
    write("parcel/beside_it.py", "")
    write("parcel/script_app.py", "import beside_it\n" + flow(title="script"))
    assert load_flow("parcel/script_app.py").reference == "script_app:flow"
