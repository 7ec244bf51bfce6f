"""A picture and a tokenizer."""

from pathlib import Path
from typing import Any

import pytest
from places import DEMO_PROCESSOR
from support.data import picture
from transformers import AutoTokenizer


@pytest.fixture
def image(tmp_path: Path) -> str:
    return str(picture(tmp_path / "a.png", 60, 90))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The demo's."""
    return AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the tests ends in the user's own cache."""
    monkeypatch.setenv("NEATPACK_CACHE", str(tmp_path / "cache"))
