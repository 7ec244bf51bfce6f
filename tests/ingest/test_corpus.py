"""A data set as a run takes it."""

from pathlib import Path

import numpy as np

from neatpack.pipeline.ingest.corpus import Corpus, Split
from neatpack.pipeline.ingest.lines import Lines, Part, part_ranges, scan, source_of
from neatpack.pipeline.ingest.meta import Dataset


def corpus(file: Path, ratio: float, split: Split = "train", held: tuple[int, ...] = ()) -> Corpus:
    lines = Lines(file=str(file))
    ranges = part_ranges(lines)
    dataset = Dataset(name="tiny", files=(str(file),), sample_ratio=ratio)
    source = source_of(lines, ranges, scan(lines, ranges))
    return Corpus.of(dataset, source, split, np.isin(np.arange(source.num_rows), held))


def left_out(of: Corpus) -> dict[str, list[int]]:
    return {reason: rows.tolist() for reason, rows in of.left_out().items()}


def test_copies_follow_the_sample_ratio(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n{}\n\n{}\n{}\n")
    half = corpus(tmp_path / "rows.jsonl", 0.5)
    assert (half.name, half.num_rows, half.copies.tolist()) == ("tiny", 4, [1, 0, 0, 1])
    assert left_out(half) == {"sampled_out": [1, 2], "held_out": []}
    more = corpus(tmp_path / "rows.jsonl", 1.5)
    assert more.copies.tolist() == [2, 1, 1, 2]
    assert left_out(more) == {"sampled_out": [], "held_out": []}


def test_rows_that_are_held_out_come_once_and_the_others_as_if_they_were_all(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("{}\n" * 6)
    train, holdout = (corpus(file, 1.5, split, (0, 3)) for split in ("train", "holdout"))
    assert train.copies.tolist() == [0, 2, 1, 0, 1, 2]  # of four rows [2, 1, 1, 2]
    assert holdout.copies.tolist() == [1, 0, 0, 1, 0, 0]
    assert left_out(train) == {"sampled_out": [], "held_out": [0, 3]}
    assert left_out(holdout) == {"sampled_out": [], "not_held_out": [1, 2, 4, 5]}
    train, holdout = (corpus(file, 0.5, split, (0, 3)) for split in ("train", "holdout"))
    assert left_out(train) == {"sampled_out": [2, 4], "held_out": [0, 3]}
    for each in (train, holdout):
        assert each.is_measured.tolist() == [True, True, False, True, False, True], "by either"
    assert left_out(corpus(file, 0.0, "holdout", (0, 3))) == {"sampled_out": [0, 3], "not_held_out": [1, 2, 4, 5]}


def test_rows_of_a_part(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n" * 4)
    part = Part(file="", start=6, end=12, first_row=2, num_rows=2, first_line=3)
    assert corpus(tmp_path / "rows.jsonl", 0.5).is_taken(part).tolist() == [False, True]


def test_what_of_it_shapes_an_output(tmp_path: Path) -> None:
    """Not where it lies: the same rows in another folder are the same input."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.jsonl").write_text("{}\n")
    a, b = (corpus(tmp_path / folder / "rows.jsonl", 1.0).described() for folder in ("a", "b"))
    assert a == b
    assert (a["name"], a["rows"], a["sample_ratio"]) == ("tiny", 1, 1.0)
    (tmp_path / "b/rows.jsonl").write_text("{ }\n")
    assert corpus(tmp_path / "b/rows.jsonl", 1.0).described()["content"] != a["content"]
