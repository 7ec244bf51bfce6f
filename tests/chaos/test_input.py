"""Damaged meta JSON, rows and media: each run ends with a whole ledger, or a word to the user."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs.fuzz import fuzz
from jobs.fuzzing import input as inputs
from jobs.fuzzing.input import INPUT
from neatpack.pipeline.shard import ledger
from neatpack.pipeline.shard.ledger import make_ledger

pytestmark = pytest.mark.slow


def test_fuzz(tmp_path: Path) -> None:
    """A pass over all kinds of damage; `python jobs/fuzz.py --target input` has more."""
    sound = INPUT.make(tmp_path)
    assert inputs.examine(sound, sound, "") == {"pack": "harmless"}
    counts, failures = fuzz(INPUT, sound, tmp_path, 0, iter(range(len(INPUT.mutators))))
    assert not failures, failures[0]
    assert counts["PNG: remove", "pack", "found"] == counts["meta: truncate", "pack", "found"] == 1


def test_the_fuzzer_tells_of_a_row_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_less(*given: Any) -> list[list[pa.Table]]:
        return [[piece.slice(1) for piece in pieces] for pieces in make_ledger(*given)]

    monkeypatch.setattr(ledger, "make_ledger", one_less)
    _, failures = fuzz(INPUT.only("PNG: extend"), INPUT.make(tmp_path), tmp_path, 0, iter(range(1)))
    assert "DOES NOT VERIFY" in failures[0]
