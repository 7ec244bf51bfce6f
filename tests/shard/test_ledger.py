"""The ledger by hand: one line per row and repetition, where it is or why it is nowhere."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from helpers import corpus_of, plan_of

from neatpack.pipeline.ingest.corpus import Corpus
from neatpack.pipeline.plan.assign import Plan
from neatpack.pipeline.shard.ledger import fitted_counts, make_ledger, reason_counts


def packed(pack: int, dataset: int, row: int, repeat: int = 0, detail: str = "") -> dict[str, Any]:
    return {"pack": pack, "dataset": dataset, "row": row, "repeat": repeat, "tokens": 5, "detail": detail}


@pytest.fixture
def plan() -> Plan:
    """Two corpora, a and b, in two packs; row 1 of a is bad, row 0 of b is there twice."""
    return plan_of(
        packed(0, 0, 2),
        packed(0, 1, 0, 1, "truncated from 9 to 5 tokens"),
        packed(1, 1, 0, 0),
        packed(1, 0, 0),
        {"pack": -1, "dataset": 0, "row": 1, "reason": "bad_row", "detail": "line 2: broken JSON"},
    )


CORPORA = [corpus_of("a", [1, 1, 1, 0]), corpus_of("b", [2])]


def ledgers(plan: Plan, corpora: Sequence[Corpus] = CORPORA, folders: Sequence[str] = ()) -> list[pa.Table]:
    names, left_out = [corpus.name for corpus in corpora], [corpus.left_out() for corpus in corpora]
    return [pa.concat_tables(pieces) for pieces in make_ledger(plan, names, [folders] * len(names), left_out)]


def lines(ledger: Any, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(line[column] for column in columns) for line in ledger.to_pylist()]


def test_a_table_per_corpus_by_row_and_repetition(plan: Plan) -> None:
    a, b = ledgers(plan)
    assert lines(a, "dataset", "row", "repeat", "status", "reason", "pack", "position", "tokens") == [
        ("a", 0, 0, "packed", "", 1, 1, 5),
        ("a", 1, 0, "skipped", "bad_row", -1, -1, 0),
        ("a", 2, 0, "packed", "", 0, 0, 5),
        ("a", 3, 0, "skipped", "sampled_out", -1, -1, 0),
    ]
    assert lines(b, "dataset", "row", "repeat", "status", "pack", "position") == [
        ("b", 0, 0, "packed", 1, 0),
        ("b", 0, 1, "packed", 0, 1),
    ]


def test_counts(plan: Plan) -> None:
    a, b = ledgers(plan)
    assert (reason_counts(a), reason_counts(b)) == ({"bad_row": 1, "sampled_out": 1}, {})
    assert (fitted_counts(a), fitted_counts(b)) == ({}, {"truncated": 1})


def test_nothing_planned() -> None:
    (ledger,) = ledgers(plan_of(), [corpus_of("empty", [])])
    assert len(ledger) == 0
