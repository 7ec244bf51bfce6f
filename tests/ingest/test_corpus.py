"""A data set as a run takes it."""

from pathlib import Path

from neatpack.pipeline.ingest.corpus import Corpus
from neatpack.pipeline.ingest.lines import Lines, Part, part_ranges, scan, source_of
from neatpack.pipeline.ingest.meta import Dataset


def corpus(file: Path, ratio: float) -> Corpus:
    lines = Lines(file=str(file))
    ranges = part_ranges(lines)
    dataset = Dataset(name="tiny", file=str(file), sample_ratio=ratio)
    return Corpus.of(dataset, source_of(lines, ranges, scan(lines, ranges)))


def test_copies_follow_the_sample_ratio(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n{}\n\n{}\n{}\n")
    half = corpus(tmp_path / "rows.jsonl", 0.5)
    assert (half.name, half.num_rows, half.copies.tolist(), half.num_sampled_out) == ("tiny", 4, [1, 0, 0, 1], 2)
    more = corpus(tmp_path / "rows.jsonl", 1.5)
    assert (more.copies.tolist(), more.num_sampled_out) == ([2, 1, 1, 2], 0)


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
