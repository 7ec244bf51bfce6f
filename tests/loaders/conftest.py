"""An output that tests may damage."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import Store, serving
from support.packed import many_packs


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished output, for all: nobody writes to it."""
    out = many_packs(tmp_path_factory.mktemp("sound"))
    shutil.rmtree(out / "work")
    return out


@pytest.fixture
def out(sound: Path, tmp_path: Path) -> Path:
    """A copy of it. Many a test file has an `out` of its own."""
    shutil.copytree(sound, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `store` serves, with an output."""
    folder = tmp_path_factory.mktemp("bucket")
    many_packs(folder)
    return folder


@pytest.fixture
def store(bucket: Path) -> Iterator[Store]:
    with serving(bucket) as store:
        yield store
