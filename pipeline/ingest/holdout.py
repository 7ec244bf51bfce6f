"""Which rows are held out for validation: a matter of what a row says, and of nothing else.

A row is held out if the hash of its turns and media is below the share that is asked for. So the choice stays whatever
rows are added, removed or moved around it, and whatever else its JSON holds (ids, lengths). A copy of a row, in another
data set or with other tags too, goes where the row goes. A larger share holds the same rows out, and more.
"""

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neatpack.storage.files import sha256_of

from ..media.parquet import cell_bytes, cell_of
from ..records import Skip
from .convert import said_of
from .formats.parts import KINDS
from .lines import MAX_ROW_BYTES, Part, constant, media_beside, rows
from .meta import Dataset


def held_out(dataset: Dataset, part: Part, share: float, max_row_bytes: int = MAX_ROW_BYTES) -> NDArray[np.bool_]:
    """The task: which rows of a part are held out."""
    embedded = (media_beside(part.file).uri, part.origin) if part.origin else ()  # what was rewritten may have some
    below = (row_hash(line, dataset, embedded, max_row_bytes) < share * 2**64 for *_, line in rows(part, max_row_bytes))
    return np.fromiter(below, dtype=np.bool_, count=part.num_rows)


def row_hash(line: bytes, dataset: Dataset, embedded: tuple[str, ...] = (), max_bytes: int = MAX_ROW_BYTES) -> int:
    """64 bits of what a row says. `embedded`: the files where our rewriting of the data set has its media."""

    def plain(value: dict[str, Any]) -> Any:
        """Null is absent, as Arrow has it. A place in those depends on the rows before: its bytes stand for it."""
        if embedded and value.keys() == {"path", "offset", "length"} and value["path"] in embedded:
            return sha256_of(value["path"], value["offset"], value["offset"] + value["length"])
        if embedded and value.keys() == {"path", "cell"} and value["path"] in embedded:
            return hashlib.sha256(cell_bytes(value["path"], cell_of(value["cell"]))).hexdigest()
        return {key: item for key, item in value.items() if item is not None}

    try:
        if len(line) > max_bytes:
            raise ValueError("too long to be parsed")
        said = _said(json.loads(line, object_hook=plain, parse_constant=constant), dataset)
        content = json.dumps(said, sort_keys=True).encode()
    except (ValueError, TypeError, OverflowError, RecursionError):  # as in `parse_row`: a bad row is a row, too
        content = line.strip()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")


def _said(row: Any, dataset: Dataset) -> Any:
    """Turns, media and tools in our words; a row that says nothing as it is.

    What rows of other formats and of later versions have beyond role, content and media comes last and only where it
    is there, so that it moves no row that has none of it.
    """
    said = said_of(row, dataset) if isinstance(row, dict) else None
    if said is None or isinstance(said, Skip):
        return row
    turns = [[turn.role, turn.content, *([turn.extras] if turn.extras else [])] for turn in said.turns]
    media = [[named.entry for named in said.media.get(kind, ())] for kind in KINDS]
    return [turns, *media, *([said.tools] if said.tools else [])]
