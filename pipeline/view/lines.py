"""What renderers share: text in lines of so many columns, thumbnails, and the attention mask as cells."""

import io
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from .document import MediumView, position_words
from .pictures import Picture

Piece = tuple[str, str]  # text and its style
TAB = 4


def in_lines(pieces: Iterable[Piece], width: int | None) -> list[list[Piece]]:
    """Pieces cut at line breaks, and at `width` columns if there is one. A wide character has two columns."""
    lines: list[list[Piece]] = [[]]
    column = 0
    for text, style in pieces:
        for number, part in enumerate(text.split("\n")):
            if number:
                lines.append([])
                column = 0
            if width is None:
                lines[-1].append((part, style))
                continue
            start = 0
            for at, character in enumerate(part):
                columns = _columns(character)
                if column + columns > width:
                    lines[-1].append((part[start:at], style))
                    lines.append([])
                    start, column = at, 0
                column += columns
            lines[-1].append((part[start:], style))
    return [[(text, style) for text, style in line if text] for line in lines]


def _columns(character: str) -> int:
    if character == "\t":
        return TAB
    if unicodedata.combining(character) or character in "\u200c\u200d":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def some_of(pictures: Sequence[Picture], most: int) -> list[Picture]:
    """Evenly, the first and the last among them."""
    if len(pictures) <= most:
        return list(pictures)
    return [pictures[at] for at in np.linspace(0, len(pictures) - 1, most).round().astype(int).tolist()]


def under(medium: MediumView, most: int) -> str:
    """What stands under a medium: file, positions, what is drawn of it and what is not."""
    few = f"{most} of {len(medium.pictures)} frames are drawn" if len(medium.pictures) > most else ""
    where = position_words(medium.positions) if medium.positions else ""
    return "; ".join(filter(None, (medium.path, where, few, medium.note)))


def smaller(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """A picture inside a box, its shape kept, never enlarged."""
    from PIL import Image

    scale = min(1.0, width / pixels.shape[1], height / pixels.shape[0])
    size = (max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[0] * scale)))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))


def png_bytes(pixels: np.ndarray) -> bytes:
    """Lossless, and fast rather than small: the usual compression takes five times as long."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def levels(loudness: np.ndarray, count: int) -> list[float]:
    """The loudest of each of `count` stretches, 0 to 1."""
    pieces = np.array_split(loudness, min(count, len(loudness))) if len(loudness) else []
    return [float(piece.max()) for piece in pieces]


def mask_cells(lengths: Sequence[int], side: int) -> np.ndarray:
    """The attention mask as `side` x `side` cells: the document whose tokens see each other there, or -1 where none do.

    Lengths [2, 2], 4 cells: [[0, -1, -1, -1], [0, 0, -1, -1], [-1, -1, 1, -1], [-1, -1, 1, 1]]. A cell of many tokens
    has the first document that is seen in it.
    """
    total = sum(lengths)
    side = min(side, total)
    cells = np.full((side, side), -1, dtype=np.int32)
    edges = np.arange(side + 1) * total // max(1, side)
    start = 0
    for number, length in enumerate(lengths):
        stop = start + length
        mine = np.flatnonzero((edges[:-1] < stop) & (edges[1:] > start))
        for row in mine.tolist():
            seen = mine[edges[mine] < min(edges[row + 1], stop)]
            cells[row, seen[cells[row, seen] < 0]] = number
        start = stop
    return cells
