"""A PackView as text: in a terminal in colours, with thumbnails of half blocks; in a pipe plain, with all marks."""

from collections.abc import Iterator, Sequence

import numpy as np

from .document import LEGEND, DocumentView, MediumView, PackView
from .lines import in_lines, levels, mask_cells, smaller, some_of, under

GUTTER = "│ "
FRAMES = 6  # of a video
MASK_SIDE = 32  # cells, two of them in a line
BARS = "▁▂▃▄▅▆▇█"
RESET = "\x1b[0m"
STYLES = {
    "text": "",
    "special": "\x1b[2m",
    "trained": "\x1b[32m",
    "trained-special": "\x1b[2;32m",
    "mark": "\x1b[1;32m",
    "medium": "\x1b[36m",
    "title": "\x1b[1m",
    "dim": "\x1b[2m",
    "note": "\x1b[33m",
}
DOCUMENT_COLOURS = ("\x1b[34m", "\x1b[36m")  # in turns
SHOWN_COLOUR = "\x1b[1;33m"


def terminal_text(view: PackView, *, colours: bool = False, thumbnails: bool = False, width: int | None = None) -> str:
    """`width`: columns of the terminal; None: lines are as long as they are."""
    return "".join(f"{line}\n" for line in _Terminal(colours, thumbnails, width).lines(view))


class _Terminal:
    def __init__(self, colours: bool, thumbnails: bool, width: int | None) -> None:
        self.colours, self.thumbnails = colours, thumbnails
        self.width = width and max(20, width)

    def styled(self, text: str, style: str) -> str:
        code = STYLES[style] if self.colours else ""
        return f"{code}{text}{RESET}" if code and text else text

    def words(self, text: str, style: str, indent: str = "") -> Iterator[str]:
        """A sentence of ours, within the terminal's width."""
        for line in in_lines([(text, style)], self.width and self.width - len(indent)):
            yield indent + "".join(self.styled(*piece) for piece in line)

    def lines(self, view: PackView) -> Iterator[str]:
        yield from self.words(view.title, "title")
        if view.skipped:
            yield from self.words(view.skipped, "note")
        else:
            yield from self.words(view.figures, "text")
        for note in view.notes:
            yield from self.words(f"note: {note}", "note")
        if not view.documents:
            return
        yield from self.words(LEGEND, "dim")
        if len(view.lengths) > 1:
            yield ""
            yield from self.words("attention: each token sees itself and those before it in its own document", "dim")
            shown = view.documents[0].position if len(view.documents) == 1 else None
            yield from self.mask(view.lengths, shown)
        for document in view.documents:
            yield ""
            yield from self.document(document)

    def document(self, document: DocumentView) -> Iterator[str]:
        yield from self.words(document.title, "title")
        yield from self.words(document.place, "dim", "  ") if document.place else ()
        yield from self.words(document.figures, "dim", "  ")
        yield from self.words(document.detail, "note", "  ") if document.detail else ()
        for line in in_lines(document.pieces(), self.width and self.width - len(GUTTER)):
            yield self.styled(GUTTER, "dim") + "".join(self.styled(*piece) for piece in line)
        for medium in document.media:
            yield from self.medium(medium)

    def medium(self, medium: MediumView) -> Iterator[str]:
        yield from self.words(medium.label, "medium", "  ")
        if rest := under(medium, FRAMES):
            yield from self.words(rest, "dim", "    ")
        if medium.loudness is not None and len(medium.loudness):
            bars = (BARS[round(level * (len(BARS) - 1))] for level in levels(medium.loudness, 60))
            yield f"    {self.styled(''.join(bars), 'medium')}"
        if self.thumbnails and medium.pictures:
            columns = (self.width or 80) - 4
            frames = some_of(medium.pictures, FRAMES)
            each = min(40, (columns - 2 * len(frames)) // len(frames))
            for line in half_blocks([smaller(frame.pixels, max(4, each), 28) for frame in frames]):
                yield f"    {line}"

    def mask(self, lengths: Sequence[int], shown: int | None) -> Iterator[str]:
        cells = mask_cells(lengths, MASK_SIDE)
        if len(cells) % 2:
            cells = np.vstack([cells, np.full((1, cells.shape[1]), -1, np.int32)])
        for upper, lower in zip(cells[::2].tolist(), cells[1::2].tolist(), strict=True):
            line = "".join(self.cell(*pair, shown) for pair in zip(upper, lower, strict=True))
            yield f"  {line.rstrip()}"

    def cell(self, upper: int, lower: int, shown: int | None) -> str:
        """Two cells of the mask, one above the other, of one document or of two that follow each other."""
        if upper < 0 and lower < 0:
            return " "
        block = "▄" if upper < 0 else "▀" if lower < 0 else "█"
        if not self.colours:
            return block
        number = max(upper, lower)
        return (SHOWN_COLOUR if number == shown else DOCUMENT_COLOURS[number % 2]) + block + RESET


def half_blocks(pictures: Sequence[np.ndarray]) -> Iterator[str]:
    """Pictures beside each other, two pixels in a character: the upper one its colour, the lower one its ground."""
    height = max(picture.shape[0] for picture in pictures)
    for top in range(0, height, 2):
        pieces = []
        for picture in pictures:
            rows = [picture[top + below].tolist() if top + below < picture.shape[0] else None for below in (0, 1)]
            pieces.append(_row(*rows) if rows[0] else " " * picture.shape[1])
        yield "  ".join(pieces).rstrip(" ")


def _row(upper: list[list[int]] | None, lower: list[list[int]] | None) -> str:
    assert upper is not None
    codes, last = [], ""
    for number, above in enumerate(upper):
        code = "\x1b[38;2;{};{};{}m".format(*above)
        code += "\x1b[48;2;{};{};{}m".format(*lower[number]) if lower else ""
        codes.append(("" if code == last else code) + "▀")
        last = code
    return "".join(codes) + RESET
