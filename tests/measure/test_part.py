"""The rows of a part in the token store: each that is taken, in order, measured or skipped."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import DEMO_PROCESSOR

from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.ingest.lines import Part
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.labels import AS_USUAL
from neatpack.pipeline.measure import part as module
from neatpack.pipeline.measure.part import PartJob, measure_part
from neatpack.storage.tables import open_arrow


def said(text: str) -> str:
    return json.dumps({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]})


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """The job for a file of these lines."""

    def make(*lines: str, is_taken: list[bool] | None = None) -> PartJob:
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(line + "\n" for line in lines))
        return PartJob(
            dataset=Dataset(name="tiny", files=(str(file),)),
            part=Part(file=str(file), start=0, end=file.stat().st_size, first_row=0, num_rows=len(lines), first_line=1),
            is_taken=np.array(is_taken or [True] * len(lines)),
            max_row_bytes=1 << 20,
            lenient=False,
            train_on=AS_USUAL,
            processor=ProcessorKey(processor=str(DEMO_PROCESSOR)),
            path=tmp_path / "store" / "000000.arrow",
        )

    return make


def stored(job: PartJob) -> list[tuple[int, str]]:
    measure_part(job)
    return [(line["row"], line["reason"]) for line in open_arrow(job.path).select(["row", "reason"]).to_pylist()]


def test_good_and_bad_rows_keep_their_order(job: Any) -> None:
    assert stored(job(said("a"), "{broken", said("b"), '{"messages": []}')) == [
        (0, ""), (1, "bad_row"), (2, ""), (3, "bad_row"),
    ]  # fmt: skip


def test_rows_that_are_sampled_out_are_not_read(job: Any) -> None:
    assert stored(job(said("a"), "{broken", said("b"), is_taken=[False, False, True])) == [(2, "")]
    assert stored(job("{broken", is_taken=[False])) == []


def test_batches_change_nothing(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(*(said("word " * number) for number in range(7)), "{broken")
    measure_part(made)
    expected = open_arrow(made.path).to_pylist()
    for size in (1, 3, 8):
        monkeypatch.setattr(module, "BATCH", size)
        measure_part(made)
        assert open_arrow(made.path).to_pylist() == expected


def test_a_row_that_crashed_twice_is_skipped_with_a_warning(job: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = job(said("a"), said("b"))
    folder = made.path.parent / "000000.journal"
    folder.mkdir(parents=True)
    (folder / "crashes").write_text("1\n1\n0\n")
    assert stored(made) == [(0, ""), (1, "bad_media")]
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.WARNING, "tiny row 1: reading its media crashed the process twice; skipped as bad_media")
    ]
    assert not folder.exists()
