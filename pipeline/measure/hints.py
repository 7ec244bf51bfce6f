"""Exact lengths written back beside the rows, for those who pack online: `neatpack plan --write-lengths`.

Every row of a data file, as it was, with `_text_tokens`, `_media_tokens` and `mm_inputs_meta` added where it was
measured: together the tokens that the online path renders, before the shift, to the token.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.compute as pc

from neatpack.storage.location import Location
from neatpack.storage.tables import open_arrow

from ..ingest.corpus import Corpus
from ..ingest.lines import rows
from ..ingest.written import write_data
from ..records import Measured
from .store import MeasuredPart, read_measured


def write_lengths(folder: Location, corpora: Sequence[Corpus], parts: Sequence[MeasuredPart]) -> dict[str, int]:
    """One JSONL per data set and a meta.json that names them; the number of rows with lengths, by data set."""
    counts = {corpus.name: 0 for corpus in corpora}

    def counted(number: int, name: str) -> Iterator[bytes]:
        for part in (part for part in parts if part.corpus == number):
            for row in _with_lengths(part):
                counts[name] += b'"_text_tokens"' in row
                yield row

    write_data(
        folder, ((corpus.dataset, corpus.source, counted(number, corpus.name)) for number, corpus in enumerate(corpora))
    )
    return counts


def hints(measured: Measured) -> dict[str, Any]:
    """Sizes as the online datasets have them: images [height, width]; videos [frames, height, width, fps, seconds]."""
    images = [[medium.height, medium.width] for medium in measured.media if medium.ref.kind == "image"]
    videos = [
        [medium.total_frames, medium.height, medium.width, medium.fps, medium.total_frames / medium.fps]
        for medium in measured.media
        if medium.ref.kind == "video"
    ]
    return {
        "_text_tokens": measured.tokens + 1 - measured.visual_tokens,
        "_media_tokens": measured.visual_tokens,
        "mm_inputs_meta": {"images_meta": images, "videos_meta": videos},
    }


def _with_lengths(part: MeasuredPart) -> Iterator[bytes]:
    """The rows of a part, without line breaks."""
    table = open_arrow(part.path)
    good = pc.equal(table["reason"], "").to_pylist()
    lines = {row: line for line, row in enumerate(table["row"].to_pylist()) if good[line]}
    for row, *_, text in rows(part.part):
        if row not in lines:
            yield text.strip()  # not measured, or of no use: as it was
            continue
        measured = read_measured(part.path, lines[row])
        assert measured is not None, "a good row"
        yield json.dumps(json.loads(text) | hints(measured), ensure_ascii=False).encode()
