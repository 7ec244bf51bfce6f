"""The ledger: one line per input row and repetition, packed (where) or skipped (why). It must add up."""

import os
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..ingest.corpus import Corpus
from ..plan.assign import Plan
from ..runtime.storage import place
from ..runtime.tables import column_sum, value_counts
from ..uris import is_stored, without_secrets

SCHEMA = pa.schema(
    [
        ("dataset", pa.string()),
        ("row", pa.int64()),
        ("repeat", pa.int32()),
        ("id", pa.string()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("pack", pa.int32()),
        ("position", pa.int32()),
        ("tokens", pa.int32()),
        ("visual_tokens", pa.int32()),
    ]
)


def make_ledger(plan: Plan, corpora: Sequence[Corpus]) -> list[pa.Table]:
    """A table per corpus, by row and repetition."""
    table = plan.table
    pack, dataset = table["pack"].to_numpy(), table["dataset"].to_numpy()
    row, repeat = table["row"].to_numpy(), table["repeat"].to_numpy()
    reason = np.array(table["reason"].to_pylist(), dtype=object)
    detail = np.array(table["detail"].to_pylist(), dtype=object)
    is_packed = pack >= 0
    columns = {
        "row": row,
        "repeat": repeat,
        "id": np.array(table["id"].to_pylist(), dtype=object),
        "status": np.where(is_packed, "packed", "skipped"),
        "reason": reason,
        "detail": detail,
        "pack": pack,
        "position": table["position"].to_numpy(),
        "tokens": np.where(is_packed, table["tokens"].to_numpy(), 0),
        "visual_tokens": np.where(is_packed, table["visual_tokens"].to_numpy(), 0),
    }
    tables = []
    for index, corpus in enumerate(corpora):
        mine = np.flatnonzero(dataset == index)
        own = {key: values[mine] for key, values in columns.items()}
        folders = folders_of(corpus)
        own["detail"] = np.array([without_folders(words, folders) for words in own["detail"]], dtype=object)
        lines = _table(corpus.name, own)
        both = pa.concat_tables([lines, *_left_out(corpus)])
        tables.append(both.sort_by([("row", "ascending"), ("repeat", "ascending")]))
    return tables


def folders_of(corpus: Corpus) -> list[str]:
    """Where a corpus lies on this machine, the innermost folders first."""
    names = {name for part in corpus.source.parts for name in (part.file, part.origin)}
    files = [place(name) for name in names if os.path.isabs(name) or is_stored(name)]
    folders = {*map(without_secrets, corpus.dataset.media_dirs), *(str(file.parent) for file in files)}
    return sorted((folder for folder in folders if len(folder) > 1), key=len, reverse=True)


def without_folders(detail: str, folders: Sequence[str]) -> str:
    """What happened, without where on this machine: the same rows give the same ledger wherever they lie.

    "/data/coco/a/7.jpg: No such file" in media_dir /data/coco -> "a/7.jpg: No such file".
    """
    for folder in folders:
        detail = detail.replace(f"{folder.rstrip('/')}/", "")
    return detail


def reason_counts(ledger: pa.Table) -> dict[str, int]:
    skipped = ledger.filter(pc.equal(ledger["status"], "skipped"))
    return value_counts(skipped["reason"])


def fitted_counts(ledger: pa.Table) -> dict[str, int]:
    """How many samples were truncated or shrunk to fit; their details begin with that word."""
    packed = ledger.filter(pc.equal(ledger["status"], "packed"))
    counts = {word: column_sum(pc.starts_with(packed["detail"], word)) for word in ("truncated", "shrunk")}
    return {word: count for word, count in counts.items() if count}


def _left_out(corpus: Corpus) -> Iterator[pa.Table]:
    """Lines of rows that the plan never saw: one each, whatever the repetitions."""
    for reason, rows in corpus.left_out().items():
        fixed = {"repeat": 0, "id": "", "status": "skipped", "reason": reason, "detail": "", "pack": -1, "position": -1,
                 "tokens": 0, "visual_tokens": 0}  # fmt: skip
        yield _table(corpus.name, {"row": rows} | {key: np.full(len(rows), value) for key, value in fixed.items()})


def _table(name: str, columns: dict[str, np.ndarray]) -> pa.Table:
    values = {"dataset": np.full(len(columns["row"]), name, dtype=object), **columns}
    return pa.table([pa.array(values[field.name].tolist(), field.type) for field in SCHEMA], schema=SCHEMA)
