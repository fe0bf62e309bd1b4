"""Fixtures of all tests: the folder of real data, and installed distributions."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import dedent

import pytest


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder with real texts.

    It is $FLAMESTREAM_DATA, or shared/data beside the checkout.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FLAMESTREAM_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set FLAMESTREAM_DATA to the folder that holds wikipedia/")
    return folder


@pytest.fixture(scope="session")
def installed() -> None:
    """For tests of the command line and of names: the project's own entry points must be there."""
    try:
        importlib.metadata.distribution("flamestream")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("flamestream is not installed, so its plugins have no names: pip install .")


class Distributions:
    """Installs small distributions into a folder on `sys.path`, as pip would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        name: str,
        version: str = "1.0",
        *,
        modules: Mapping[str, str] | None = None,
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        extras: Sequence[str] = (),
    ) -> None:
        """Install a distribution.

        Args:
            name: Its name.
            version: Its version.
            modules: Source of each module, by name.
            entry_points: For each group, what is provided under which name.
            extras: Names of its extras.
        """
        for module, source in (modules or {}).items():
            (self.folder / f"{module}.py").write_text(dedent(source), "utf-8")
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        metadata += [f"Provides-Extra: {extra}" for extra in extras]
        (info / "METADATA").write_text("\n".join(metadata) + "\n", "utf-8")
        lines = []
        for group, points in (entry_points or {}).items():
            lines += [f"[{group}]", *(f"{point} = {target}" for point, target in points.items()), ""]
        (info / "entry_points.txt").write_text("\n".join(lines), "utf-8")
        importlib.invalidate_caches()

    @property
    def imported(self) -> set[str]:
        """Names of the modules of these distributions that have been imported."""
        return {path.stem for path in self.folder.glob("*.py") if path.stem in sys.modules}


@pytest.fixture
def distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Distributions]:
    """Yield a place to install distributions for one test."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    made = Distributions(folder)
    yield made
    for module in made.imported:
        del sys.modules[module]
