"""Some documents of an output, chosen by seed: where they are, how long, what their rows say, and their pictures."""

import base64
import contextlib
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
from PIL import Image

from neatpack.errors import OutputError
from neatpack.format.layout import Layout
from neatpack.format.manifest import Manifest
from neatpack.format.members import Pack
from neatpack.format.output import OutputReader
from neatpack.storage.location import Location

from ...families.restore import load_renderer
from ...ingest.convert import parse_row, said_of
from ...ingest.meta import Columns, Dataset, Tags
from ...records import Skip
from ...shard.sources import SourceError, files_of
from ...shard.tables import ledger_names, read_ledger
from ...shard.words import clipped
from ..of_pack import pack_view

NUM_DOCUMENTS, SEED = 8, 0
MAX_BYTES = 256 << 20  # of a data file: its digest is compared before a row of it is shown
MAX_TURNS, MAX_WORDS = 6, 400  # turns of a document, and characters of a turn
MAX_PICTURES, SIDE = 3, 120  # of a document, and their longer side in pixels: 5 KB each


logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A document as the gallery shows it."""

    dataset: str
    row: int
    repeat: int
    id: str
    pack: int
    position: int
    tokens: int
    visual_tokens: int
    detail: str  # whether it was truncated or shrunk
    turns: Sequence[tuple[str, str]] = ()  # role and text; none: its row cannot be read here
    pictures: Sequence[str] = ()  # data: URIs of small ones, as the model sees them


def some_documents(out: Location, manifest: Manifest, *, follow: bool = False) -> list[Shown]:
    """A few of each data set, in the order of the run; the same ones each time."""
    columns = ["row", "repeat", "id", "detail", "pack", "position", "tokens", "visual_tokens", "status"]
    found: list[Shown] = []
    names = ledger_names(manifest)
    left = len(names)
    for dataset, files in names.items():
        most = -(-(NUM_DOCUMENTS - len(found)) // max(1, left))
        left -= 1
        if most <= 0:
            break
        ledger = read_ledger(out, manifest, files[:1], columns)  # of partitions the first: each is a fair sample
        packed = pc.indices_nonzero(pc.equal(ledger["status"], "packed")).to_numpy()
        # RandomState: its numbers stay the same in every version of numpy.
        chosen = np.sort(packed[np.random.RandomState(SEED).permutation(len(packed))[:most]])
        lines = ledger.take(chosen).drop_columns(["status"]).to_pylist() if len(chosen) else []
        numbers = [line["row"] for line in lines] if follow else []
        turns = turns_of_rows(out, manifest, dataset, numbers)
        found += (Shown(dataset=dataset, turns=turns.get(line["row"], ()), **line) for line in lines)
    pictures = _pictures(out, manifest, [each for each in found if each.visual_tokens])
    return [replace(each, pictures=pictures.get((each.pack, each.position), ())) for each in found]


def _pictures(out: Location, manifest: Manifest, shown: Sequence[Shown]) -> dict[tuple[int, int], list[str]]:
    """By pack and position: the first pictures of a document, and first frames, small.

    None where a shard is not there, or damaged: tables may be looked at alone, and `neatpack verify` says what is wrong
    with the shards.
    """
    positions: dict[int, list[int]] = {}
    for each in shown:
        positions.setdefault(each.pack, []).append(each.position)
    found: dict[tuple[int, int], list[str]] = {}
    if not positions:
        return found
    try:
        reader = OutputReader(out, load_renderer, check="read")
    except OutputError:
        return found
    for number, own in positions.items():
        with contextlib.suppress(OutputError):
            pack = reader.read_pack(number)
            found |= {(number, at): _pictures_of(pack, at, reader.layout, manifest.family) for at in own}
    return found


def _pictures_of(pack: Pack, position: int, layout: Layout, family: Mapping[str, Any]) -> list[str]:
    view = pack_view("", pack, layout, family, pack_size=0, decoder=None, known={}, only=position)
    media = [medium for document in view.documents for medium in document.media if medium.pictures]
    return [_small(medium.pictures[0].pixels) for medium in media[:MAX_PICTURES]]


def _small(pixels: np.ndarray) -> str:
    image, content = Image.fromarray(pixels), io.BytesIO()
    image.thumbnail((SIDE, SIDE))
    image.save(content, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def turns_of_rows(
    out: Location, manifest: Manifest, name: str, numbers: Sequence[int]
) -> Mapping[int, Sequence[tuple[str, str]]]:
    """What these rows say, as far as their files are where they were, unchanged, and not too large to look for that."""
    dataset = _dataset(name, manifest.identity.inputs[name])
    found: dict[int, Sequence[tuple[str, str]]] = {}
    try:
        for file in files_of(out, name, follow=True) if numbers else ():
            mine = sorted({number for number in numbers if 0 <= number - file.first_row < file.num_rows})
            if mine and file.lines is not None and file.lines.is_file() and file.lines.stat().st_size <= MAX_BYTES:
                found |= {row.number: _turns(row.text, dataset) for row in file.rows(mine)}
    except SourceError as error:  # the page says that there is no text
        logger.info("%s: texts of its rows are not shown: %s", name, error)
    return found


def _dataset(name: str, entry: Mapping[str, Any]) -> Dataset:
    """As far as it says how rows are written."""
    return Dataset(
        name=name,
        format=entry["format"],
        columns=Columns(**entry["columns"]),
        tags=Tags(**entry["tags"]),
        ignore_keys=tuple(entry["ignore_keys"]),
        source=entry.get("source", ""),
    )


def _turns(text: bytes, dataset: Dataset) -> Sequence[tuple[str, str]]:
    row = parse_row(text, "")
    said = row if isinstance(row, Skip) else said_of(row, dataset)
    if isinstance(said, Skip):
        return ()
    turns = [(turn.role, clipped(_words(turn.content).strip(), MAX_WORDS)) for turn in said.turns[:MAX_TURNS]]
    left = len(said.turns) - MAX_TURNS
    return [*turns, ("", f"and {left} more")] if left > 0 else turns


def _words(content: str | list[Any]) -> str:
    """Texts as they are; of other parts their kind: [{"type": "image", …}, "Who?"] -> "<image> Who?"."""
    if isinstance(content, str):
        return content
    words = []
    for part in content:
        if isinstance(part, str):
            words.append(part)
        elif isinstance(part, dict):
            kind = str(part.get("type", "medium")).removesuffix("_url")
            words.append(part["text"] if isinstance(part.get("text"), str) else f"<{kind}>")
    return " ".join(words)
