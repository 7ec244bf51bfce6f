"""Real rows to measure by: those of a meta JSON, or of the demo, as examples and as measured."""

from collections.abc import Iterator
from pathlib import Path

from jobs.demo.make_data import make_demo
from neatpack.pipeline.families.base import Family
from neatpack.pipeline.ingest.convert import convert, first_rows, parse_row, resolved
from neatpack.pipeline.ingest.imported import lines_of, num_files
from neatpack.pipeline.ingest.lines import joined, part_ranges, rows as rows_of, scan, source_of
from neatpack.pipeline.ingest.meta import Dataset, read_meta
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.records import Example, Measured, MediaError
from neatpack.pipeline.render.sample import expanded

from .side_by_side import Options


def meta_of(options: Options) -> Path:
    """The meta JSON to measure by; the demo's, drawn once, where none is given."""
    if options.meta is not None:
        return options.meta
    folder = options.folder / "demo"
    return folder / "meta.json" if folder.exists() else make_demo(folder)


def good_rows(meta: Path, family: Family, folder: Path) -> list[tuple[Example, Measured]]:
    """The rows of all data sets that can be packed. `folder`: for files that are rewritten as lines."""
    examples = [example for dataset in read_meta(meta) for example in _examples(dataset, folder)]
    measured = measure(examples, family)
    return [(example, m) for example, m in zip(examples, measured, strict=True) if isinstance(m, Measured)]


def _examples(dataset: Dataset, folder: Path) -> Iterator[Example]:
    files = [lines_of(dataset, folder / "imported", number) for number in range(num_files(dataset))]
    ranges = [part_ranges(lines) for lines in files]
    sources = [source_of(lines, own, scan(lines, own)) for lines, own in zip(files, ranges, strict=True)]
    parts = joined(sources).parts
    dataset = resolved(dataset, first_rows(parts))
    for part in parts:
        for _, number, _, line in rows_of(part):
            row = parse_row(line, number)
            example = convert(row, dataset) if isinstance(row, dict) else row
            if isinstance(example, Example):
                yield example


def renderable(samples: list[Measured], family: Family) -> list[Measured]:
    """Without those whose media fail on decode: the bare side would stop at them."""
    kept = []
    for sample in samples:
        try:
            expanded(sample, family, "torch")
        except MediaError:
            continue
        kept.append(sample)
    return kept
