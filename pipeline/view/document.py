"""PackView: a pack, or a row before it is packed, as people see it. All that renderers need, and nothing else.

Texts in it are safe (see safe.py): a renderer adds the escaping of its own format, and no more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neatpack.format.layout import MediaKind

from ..safe import TOLD, TRAINED
from ..shard.words import counted
from .pictures import Picture

AXES = ("time", "height", "width")  # of mRoPE
LEGEND = (
    f"{TRAINED[0]}…{TRAINED[1]} trained on; {TOLD[0]}…{TOLD[1]} stands for tokens of a medium, or for a character or "
    "token that has no text"
)


def position_words(ranges: Sequence[tuple[float, float]]) -> str:
    """[(0, 9)] -> positions 0–9; three axes: positions 4 in time, 4–9 in height, 4–7 in width."""
    words = [f"{low:g}" if low == high else f"{low:g}–{high:g}" for low, high in ranges]
    if len(words) == len(AXES):
        words = [f"{word} in {axis}" for word, axis in zip(words, AXES, strict=True)]
    return f"positions {', '.join(words)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRun:
    """Tokens next to each other that are alike."""

    text: str
    tokens: int
    is_trained: bool = False
    is_special: bool = False  # tokens that stand for no text: <|im_end|>


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaRun:
    """Placeholder tokens of one medium next to each other; a video may have several such runs."""

    label: str
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MediumView:
    kind: MediaKind
    number: int  # from 1, among those of its kind in the document
    tokens: int | None  # None: its tokens cannot be told from those of its neighbours
    path: str  # "": unknown
    source: tuple[int, int] | None  # width and height of the file, where it is known
    positions: tuple[tuple[float, float], ...]  # smallest and largest of each axis; (): its tokens cannot be told
    pictures: tuple[Picture, ...]
    note: str
    seconds: float | None
    loudness: np.ndarray | None

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height as the model sees it."""
        if not self.pictures:
            return None
        height, width = self.pictures[0].pixels.shape[:2]
        return width, height

    @property
    def label(self) -> str:
        """image 1: 640x480 -> 644x476, 391 tokens"""
        sizes = " -> ".join(f"{width}x{height}" for width, height in filter(None, (self.source, self.size)))
        facts = [sizes] if sizes else []
        if self.kind == "video" and self.pictures:
            facts.append(counted(len(self.pictures), "frame"))
        if self.seconds is not None:
            facts.append(f"{self.seconds:.1f} s")
        if self.tokens is not None:
            facts.append(counted(self.tokens, "token"))
        return f"{self.kind} {self.number}" + (f": {', '.join(facts)}" if facts else "")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DocumentView:
    position: int  # in its pack, from 0, as in the ledger
    is_fake: bool  # the fake image
    dataset: str
    row: int
    repeat: int
    id: str
    place: str  # file:line, or the file alone; "": unknown
    form: str
    tokens: int
    padding: int
    visual_tokens: int
    target_tokens: int
    positions: tuple[tuple[float, float], ...]  # smallest and largest of each axis
    runs: tuple[TextRun | MediaRun, ...]
    media: tuple[MediumView, ...]
    detail: str = ""  # what was done to make it fit: "truncated from 900 to 512 tokens"

    @property
    def title(self) -> str:
        if self.is_fake:
            return f"document {self.position}: the fake image"
        copy = f", copy {self.repeat}" if self.repeat else ""
        name = f" (id {self.id})" if self.id else ""
        return f"document {self.position}: {self.dataset} row {self.row}{copy}{name}"

    @property
    def figures(self) -> str:
        parts = [counted(self.tokens, "token"), f"{self.visual_tokens:,} visual", f"{self.target_tokens:,} trained on"]
        parts += [f"{self.padding:,} of padding"] if self.padding else []
        return f"{', '.join(parts)}; {position_words(self.positions)}"

    def pieces(self) -> Iterator[tuple[str, str]]:
        """(text, style) in order, with marks: styles are text, special, trained, trained-special, mark and medium."""
        inside = False
        for run in self.runs:
            is_trained = isinstance(run, TextRun) and run.is_trained
            if is_trained != inside:
                yield TRAINED[is_trained is False], "mark"
                inside = is_trained
            if isinstance(run, MediaRun):
                yield f"{TOLD[0]}{run.label}{TOLD[1]}", "medium"
            else:
                style = "special" if run.is_special else "text"
                yield run.text, {"text": "trained", "special": "trained-special"}[style] if is_trained else style
        if inside:
            yield TRAINED[1], "mark"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackView:
    title: str
    family: str
    pack_size: int
    lengths: tuple[int, ...]  # of all documents of the pack, with padding: what the attention mask is made of
    documents: tuple[DocumentView, ...]  # those that are shown
    visual_tokens: int
    target_tokens: int
    notes: tuple[str, ...] = ()  # what is not known, and the remedy
    skipped: str = ""  # why a row would be in no pack

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def figures(self) -> str:
        fill = f"{counted(self.tokens, 'token')} of {self.pack_size:,}"
        counts = f"{self.visual_tokens:,} visual, {self.target_tokens:,} trained on"
        return f"{counted(len(self.lengths), 'document')}, {fill}, {counts}; family {self.family}"
