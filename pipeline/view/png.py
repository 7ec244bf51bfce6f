"""A PackView as a picture: the same content as the page, drawn by Pillow."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..config import UserError
from .document import LEGEND, DocumentView, MediumView, PackView
from .lines import TAB, Piece, in_lines, levels, smaller, some_of, under

WIDTH, MARGIN, LINE = 1000, 24, 20
MAX_HEIGHT = 100_000  # pixels: 300 MB while it is drawn
FRAMES = 8  # of a video
TALLEST = 640  # pixels of a picture
MASK = 200
MISSING = "□"  # in place of what no font here has
FONTS = ("DejaVuSansMono.ttf", "NotoSansMono-Regular.ttf", "LiberationMono-Regular.ttf")  # as the system finds them
INK, SOFT, GROUND, NOTE = (28, 32, 36), (110, 115, 123), (255, 255, 255), (138, 90, 0)
COLOURS = {  # of a style: ink, and the ground behind it
    "text": (INK, None),
    "special": (SOFT, None),
    "trained": ((11, 90, 44), (213, 242, 221)),
    "trained-special": ((70, 135, 95), (213, 242, 221)),
    "mark": ((11, 90, 44), (213, 242, 221)),
    "medium": ((29, 74, 156), (227, 236, 251)),
    "title": (INK, None),
    "soft": (SOFT, None),
    "note": (NOTE, None),
}
DOCUMENT_COLOURS, SHOWN_COLOUR = ((76, 127, 217), (88, 180, 174)), (226, 163, 42)

Draw = Callable[[ImageDraw.ImageDraw, Image.Image, int], None]  # … at this height


@dataclass(frozen=True)
class _Strip:
    """A part of the picture, as wide as it is."""

    height: int
    draw: Draw


def png_picture(view: PackView) -> np.ndarray:
    """uint8 [height, width, 3]. Raises UserError where it would be too high to draw."""
    strips = list(_Page().strips(view))
    height = 2 * MARGIN + sum(strip.height for strip in strips)
    if height > MAX_HEIGHT:
        raise UserError(
            f"--png: the picture would be {height:,} pixels high, above {MAX_HEIGHT:,}; give --doc N for one document "
            "of the pack, or --html",
            code="option-conflict",
            option="png",
            height=height,
            most=MAX_HEIGHT,
        )
    image = Image.new("RGB", (WIDTH, height), GROUND)
    pen = ImageDraw.Draw(image)
    top = MARGIN
    for strip in strips:
        strip.draw(pen, image, top)
        top += strip.height
    return np.asarray(image)


class _Page:
    @cached_property
    def font(self) -> Any:
        for name in FONTS:
            try:
                return ImageFont.truetype(name, 14)
            except OSError:
                continue
        return ImageFont.load_default(14)

    @cached_property
    def column(self) -> float:
        """Pixels; of a font that is not monospaced, those of a wide letter."""
        return float(self.font.getlength("M"))

    @cached_property
    def nothing(self) -> bytes:
        """How the font draws what it does not have."""
        return bytes(self.font.getmask("\U0010ffff"))

    @cached_property
    def drawable(self) -> dict[str, str]:
        return {" ": " "}

    def glyph(self, character: str) -> str:
        known = self.drawable
        if character not in known:
            known[character] = MISSING if bytes(self.font.getmask(character)) == self.nothing else character
        return known[character]

    def strips(self, view: PackView) -> Iterator[_Strip]:
        yield from self.words(view.title, "title")
        yield from self.words(view.skipped, "note") if view.skipped else self.words(view.figures, "text")
        for note in view.notes:
            yield from self.words(f"note: {note}", "note")
        if view.documents:
            yield from self.words(LEGEND, "soft")
        if view.documents and len(view.lengths) > 1:
            yield self.space(8)
            yield self.mask(view)
        for document in view.documents:
            yield from self.document(document)

    def document(self, document: DocumentView) -> Iterator[_Strip]:
        yield _Strip(
            25, lambda pen, _, top: pen.line([(MARGIN, top + 16), (WIDTH - MARGIN, top + 16)], (217, 220, 225))
        )
        yield from self.words(document.title, "title")
        yield from self.words(document.place, "soft") if document.place else ()
        yield from self.words(document.figures, "soft")
        yield from self.words(document.detail, "note") if document.detail else ()
        yield self.space(6)
        yield from self.lines(document.pieces(), indent=12)
        for medium in document.media:
            yield from self.medium(medium)

    def medium(self, medium: MediumView) -> Iterator[_Strip]:
        yield self.space(8)
        yield from self.words(medium.label, "medium")
        if rest := under(medium, FRAMES):
            yield from self.words(rest, "soft")
        if medium.loudness is not None and len(medium.loudness):
            yield self.sound(medium.loudness)
        if medium.pictures:
            frames = some_of(medium.pictures, FRAMES)
            room = (WIDTH - 2 * MARGIN - 8 * (len(frames) - 1)) // len(frames)
            # As large as the model sees it, where there is room.
            yield self.pictures([smaller(frame.pixels, room, TALLEST) for frame in frames])

    def space(self, height: int) -> _Strip:
        return _Strip(height, lambda pen, image, top: None)

    def words(self, text: str, style: str) -> Iterator[_Strip]:
        yield from self.lines([(text, style)])

    def lines(self, pieces: Any, indent: int = 0) -> Iterator[_Strip]:
        columns = int((WIDTH - 2 * MARGIN - indent) / self.column)
        for line in in_lines(pieces, columns):
            yield _Strip(LINE, self._line(line, MARGIN + indent))

    def _line(self, line: list[Piece], left: int) -> Draw:
        def draw(pen: ImageDraw.ImageDraw, image: Image.Image, top: int) -> None:
            x = float(left)
            for text, style in line:
                shown = "".join(map(self.glyph, text.replace("\t", " " * TAB)))
                ink, ground = COLOURS[style]
                width = self.font.getlength(shown)
                if ground:
                    pen.rectangle((x, top, x + width - 1, top + LINE - 2), ground)
                weight = 1 if style in ("title", "mark") else 0
                pen.text((x, top + 1), shown, ink, self.font, stroke_width=weight * 0.4)
                x += width

        return draw

    def mask(self, view: PackView) -> _Strip:
        shown = view.documents[0].position if len(view.documents) == 1 else None
        scale = MASK / max(1, view.tokens)

        def draw(pen: ImageDraw.ImageDraw, image: Image.Image, top: int) -> None:
            pen.rectangle((MARGIN, top, MARGIN + MASK, top + MASK), (246, 247, 249), (217, 220, 225))
            start = 0
            for number, length in enumerate(view.lengths):
                low, high = start * scale, (start + length) * scale
                corners = [(low, low), (low, high), (high, high)]
                colour = SHOWN_COLOUR if number == shown else DOCUMENT_COLOURS[number % 2]
                pen.polygon([(MARGIN + x, top + y) for x, y in corners], colour)
                start += length
            words = "attention: each token (down) sees itself\nand those before it (across) in its own\ndocument"
            pen.multiline_text((MARGIN + MASK + 16, top), words, SOFT, self.font, spacing=6)

        return _Strip(MASK + 4, draw)

    def sound(self, loudness: np.ndarray) -> _Strip:
        def draw(pen: ImageDraw.ImageDraw, image: Image.Image, top: int) -> None:
            for at, level in enumerate(levels(loudness, 120)):
                half = 1 + round(20 * level)
                pen.rectangle((MARGIN + 4 * at, top + 24 - half, MARGIN + 4 * at + 2, top + 24 + half), (29, 74, 156))

        return _Strip(50, draw)

    def pictures(self, pixels: list[np.ndarray]) -> _Strip:
        def draw(pen: ImageDraw.ImageDraw, image: Image.Image, top: int) -> None:
            left = MARGIN
            for picture in pixels:
                height, width = picture.shape[:2]
                pen.rectangle((left - 1, top + 3, left + width, top + 4 + height), outline=(217, 220, 225))
                image.paste(Image.fromarray(picture), (left, top + 4))
                left += picture.shape[1] + 8

        return _Strip(8 + max(picture.shape[0] for picture in pixels), draw)
