"""What tests of ingest share."""

from pathlib import Path

import datasets
import pytest
from support.data import picture


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What load_dataset prepares stays with the test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path: Path) -> list[bytes]:
    """Three pictures as files: PNG, JPEG, PNG."""
    paths = [
        picture(tmp_path / "made" / name, 40 + 20 * n, 60, seed=n) for n, name in enumerate(("0.png", "1.jpg", "2.png"))
    ]
    return [path.read_bytes() for path in paths]
