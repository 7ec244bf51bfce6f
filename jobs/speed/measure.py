"""Measuring, as the task of the stage does it, against the bare tokenizer and the headers of the media.

Both sides have the processor's tokenizer. Ours reads and parses rows, converts, templates, tokenizes, finds the targets
and writes the token store; the other encodes the finished texts in one batch and reads the headers. Text is the
project's own documents.
"""

import io
import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.ingest.convert import convert, first_rows, parse_row, resolved
from neatpack.pipeline.ingest.imported import lines_of
from neatpack.pipeline.ingest.lines import joined, part_ranges, rows as rows_of, scan, source_of
from neatpack.pipeline.ingest.meta import read_meta
from neatpack.pipeline.labels import AS_USUAL
from neatpack.pipeline.measure.part import PartJob, measure_part
from neatpack.pipeline.media.image import FORMATS
from neatpack.pipeline.records import Example
from neatpack.storage.location import Location

from .side_by_side import Options, Row, side_by_side

NUM_ROWS = 512
WANTED = {"rows with a picture": 0.5, "text rows of 1.5 KB": 0.4, "text rows of 0.2 KB": 0.8}


def rows(options: Options) -> Iterator[Row]:
    family = family_for(ProcessorKey(processor=options.processor))
    pictures = list(_pictures(options.folder / "pictures"))
    kinds: dict[str, list[dict[str, Any]]] = {
        "rows with a picture": [
            {"messages": _messages("<image>" + text), "images": [str(picture)]}
            for text, picture in zip(_texts(400), cycle(pictures), strict=False)
        ],
        "text rows of 1.5 KB": [{"messages": _messages(text)} for text in _texts(1500)],
        "text rows of 0.2 KB": [{"messages": _messages(text)} for text in _texts(200)],
    }
    for kind, data in kinds.items():
        jobs = _jobs(options, kind.replace(" ", "_"), data)
        texts, media = _texts_and_media(jobs, family)
        sides = {"measure": partial(_measured, jobs), "bare": partial(_bare, texts, media, family)}
        seconds = side_by_side(sides, options.repeats)
        ratio = seconds["measure"] / seconds["bare"]
        yield Row(what=f"measure / encode_batch + headers, {kind}", figure=ratio, wanted=WANTED[kind], of=seconds)


def _measured(jobs: Sequence[PartJob]) -> None:
    for job in jobs:
        measure_part(job)


def _bare(texts: Sequence[str], media: Sequence[str], family: Family) -> None:
    family.chat.tokenizer.backend_tokenizer.encode_batch(texts)
    for path in media:
        with Image.open(path, formats=FORMATS) as picture:
            assert picture.size


def _messages(text: str) -> list[dict[str, str]]:
    """A question of a third, an answer of the rest."""
    third = len(text) // 3
    return [{"role": "user", "content": text[:third]}, {"role": "assistant", "content": text[third:]}]


def _texts(size: int) -> Iterator[str]:
    """Stretches of the documents, each of about `size` characters, without what formats would take for media."""
    documents = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_root().glob("docs/*.md"))).replace(
        "<", ""
    )
    starts = np.linspace(0, len(documents) - size, NUM_ROWS).astype(int).tolist()
    return (documents[start : start + size] for start in starts)


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def _pictures(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(32):
        coarse = random.integers(0, 256, (15, 20, 3), dtype=np.uint8)
        content = io.BytesIO()
        Image.fromarray(coarse).resize((640, 480)).save(content, "jpeg")
        path = folder / f"{number}.jpg"
        path.write_bytes(content.getvalue())
        yield path


def _jobs(options: Options, name: str, data: Sequence[dict[str, Any]]) -> list[PartJob]:
    folder = options.folder / name
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    (folder / "meta.json").write_text(json.dumps({name: {"file_name": "rows.jsonl"}}))
    (dataset,) = read_meta(folder / "meta.json")
    lines = lines_of(dataset, Location.parse(folder / "imported"), 0)
    ranges = part_ranges(lines)
    parts = joined([source_of(lines, ranges, scan(lines, ranges))]).parts
    dataset = resolved(dataset, first_rows(parts))
    return [
        PartJob(
            dataset=dataset,
            part=part,
            is_taken=np.ones(part.num_rows, dtype=bool),
            max_row_bytes=1 << 24,
            lenient=False,
            train_on=AS_USUAL,
            processor=ProcessorKey(processor=options.processor),
            path=Location.parse(folder / f"part{number}.arrow"),
        )
        for number, part in enumerate(parts)
    ]


def _texts_and_media(jobs: Sequence[PartJob], family: Family) -> tuple[list[str], list[str]]:
    examples = []
    for job in jobs:
        for row in rows_of(job.part):
            parsed = parse_row(row.text, row.line)
            assert isinstance(parsed, dict)
            example = convert(parsed, job.dataset)
            assert isinstance(example, Example), example
            examples.append(example)
    paths = [ref.path for example in examples for ref in example.media]
    return [family.chat.template(example.turns) for example in examples], paths
