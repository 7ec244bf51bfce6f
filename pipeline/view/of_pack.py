"""A pack as a PackView: documents cut apart, labels put back on the tokens they are of, media told from text."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from neatpack.format.layout import AUDIO, IGNORE, TEXT, TOKEN_TYPES, VIDEO, Layout, MediaKind, split_media
from neatpack.format.members import Document, Pack

from ..labels import mask_spans
from ..records import MeasuredMedia
from ..safe import safe_line
from ..shard.words import counted
from .document import DocumentView, MediaRun, MediumView, PackView, TextRun
from .pictures import Seen, seen_media, types_of_kinds
from .tokens import Decoder

KIND_OF = {number: kind for kind, number in TOKEN_TYPES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is known of a document beside its pack."""

    place: str = ""
    media: tuple[MeasuredMedia, ...] = ()  # as they were measured
    detail: str = ""


def near(path: str) -> str:
    """A path from the current folder on, where it is below that."""
    short = os.path.relpath(path) if os.path.isabs(path) else path
    return path if short.startswith("..") else short


def pack_view(
    title: str,
    pack: Pack,
    layout: Layout,
    described: Mapping[str, Any],
    *,
    pack_size: int,
    decoder: Decoder | None,
    known: Mapping[int, Known],
    only: int | None = None,
    notes: Sequence[str] = (),
) -> PackView:
    """A pack whose arrays fit the layout. `described`: the family, as in the manifest. `known`, by position.

    Without a decoder, texts are token ids. `only`: the one document to show.
    """
    arrays = pack.arrays
    parts = {kind: [getattr(document, f"num_{kind}s") for document in pack.documents] for kind in TOKEN_TYPES}
    lengths, padded = arrays["seq_lens"].tolist(), arrays["seq_lens_padded"].tolist()
    views = []
    start = 0
    for position, media in enumerate(split_media(arrays, layout, parts)):
        if only in (None, position):
            inside = slice(start, start + lengths[position])
            per_token = {
                name: arrays[name][..., inside] for name in ("input_ids", "labels", "position_ids", "mm_token_type_ids")
            }
            per_token["mm_token_type_ids"] = types_of_kinds(per_token["mm_token_type_ids"], media)
            document, told = pack.documents[position], known.get(position, Known())
            counts = {kind: parts[kind][position] for kind in TOKEN_TYPES}
            tiles = [medium.grid[1:] for medium in told.media if medium.ref.kind == "image"]
            seen = seen_media(described["name"], media, layout, described["facts"], counts, tiles)
            padding = padded[position] - lengths[position]
            views.append(_document(position, document, per_token, seen, told, padding, decoder))
        start += padded[position]
    return PackView(
        title=safe_line(title),
        family=safe_line(str(described["name"])),
        pack_size=pack_size,
        lengths=tuple(padded),
        documents=tuple(views),
        visual_tokens=sum(document.visual_tokens for document in pack.documents),
        target_tokens=int(np.count_nonzero(arrays["labels"] != IGNORE)),
        notes=tuple(map(safe_line, notes)),
    )


def _document(
    position: int,
    document: Document,
    per_token: Mapping[str, np.ndarray],
    seen: Mapping[MediaKind, Sequence[Seen]],
    known: Known,
    padding: int,
    decoder: Decoder | None,
) -> DocumentView:
    labels, positions = per_token["labels"], np.atleast_2d(per_token["position_ids"])
    ids, types = per_token["input_ids"], per_token["mm_token_type_ids"]
    # labels[i] is the token after input_ids[i], so what is trained on is one further: [a, b] with labels [-100, c] is
    # the text a, b, c, and c is trained on. The shift cut c off the inputs, but the label has it.
    trained = np.append(False, labels != IGNORE)
    is_last_known = bool(len(labels)) and labels[-1] != IGNORE
    if is_last_known:
        ids, types = np.append(ids, labels[-1]), np.append(types, TEXT)
    blocks = _blocks(types)
    media, block_labels = _media(seen, known, blocks, positions)
    return DocumentView(
        position=position,
        is_fake=document.row < 0,
        dataset=safe_line(document.dataset),
        row=document.row,
        repeat=document.repeat,
        id=safe_line(document.id),
        place=safe_line(known.place),
        form=document.form,
        tokens=document.tokens,
        padding=padding,
        visual_tokens=document.visual_tokens,
        target_tokens=int(np.count_nonzero(labels != IGNORE)),
        positions=_ranges(positions),
        runs=tuple(_runs(ids, trained[: len(ids)], blocks, block_labels, decoder)),
        media=media,
        detail=safe_line(known.detail),
    )


def _ranges(positions: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Smallest and largest of each axis."""
    if not positions.shape[1]:
        return ()
    return tuple((float(axis.min()), float(axis.max())) for axis in positions)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """Media tokens [start, stop) next to each other, of one kind; or those of a video and its sound, in turns."""

    start: int
    stop: int
    kind: MediaKind
    with_sound: bool = False

    @property
    def tokens(self) -> int:
        return self.stop - self.start


def _blocks(types: np.ndarray) -> list[_Block]:
    """types [0, 1, 1, 0, 2] -> tokens 1 and 2 of an image, token 4 of a video."""
    blocks = []
    for start, stop in mask_spans(types != TEXT).tolist():
        if {VIDEO, AUDIO} <= set(types[start:stop].tolist()):
            blocks.append(_Block(start=start, stop=stop, kind="video", with_sound=True))
            continue
        for number, run in groupby(range(start, stop), key=lambda at: int(types[at])):
            places = list(run)
            blocks.append(_Block(start=places[0], stop=places[-1] + 1, kind=KIND_OF[number]))
    return blocks


def _media(
    seen: Mapping[MediaKind, Sequence[Seen]], known: Known, blocks: Sequence[_Block], positions: np.ndarray
) -> tuple[tuple[MediumView, ...], dict[int, str]]:
    """The media, and a label for each block of tokens, by its start."""
    media: list[MediumView] = []
    labels: dict[int, str] = {}
    for kind, found in seen.items():
        mine = [block for block in blocks if block.kind == kind]
        shares = _shares(mine, found)
        measured = [medium for medium in known.media if medium.ref.kind == kind]
        measured = measured if len(measured) >= len(found) else []  # a truncated document has the first of them
        for number, one in enumerate(found, 1):
            share = shares[number - 1] if shares else None
            of_file = measured[number - 1] if measured else None
            source = (of_file.width, of_file.height) if of_file and of_file.width else one.source
            view = MediumView(
                kind=kind,
                number=number,
                tokens=sum(block.tokens for block in share) if share else None,
                path=safe_line(near(of_file.ref.path)) if of_file else "",
                source=source,
                positions=_ranges(positions[:, share[0].start : share[-1].stop]) if share else (),
                pictures=one.pictures,
                note=one.note,
                seconds=one.seconds,
                loudness=one.loudness,
            )
            media.append(view)
            for part, block in enumerate(share or (), 1):
                labels[block.start] = _label(view, block, part, len(share or ()))
        for block in mine:
            labels.setdefault(block.start, f"{kind}s 1 to {len(found)}: {counted(block.tokens, 'token')} together")
    return tuple(media), labels


def _label(medium: MediumView, block: _Block, part: int, parts: int) -> str:
    if parts == 1:
        return medium.label + (", its sound among them" if block.with_sound else "")
    name = f"{medium.kind} {medium.number}, part {part} of {parts}: {counted(block.tokens, 'token')}"
    return f"{name}; {medium.label.partition(': ')[2]}" if part == 1 else name


def _shares(blocks: Sequence[_Block], media: Sequence[Seen]) -> list[list[_Block]]:
    """Blocks of tokens of each medium; [] where they cannot be told apart, as of pictures without a mark between."""
    if len(blocks) == len(media):
        return [[block] for block in blocks]
    if len(media) == 1:
        return [list(blocks)]
    if len(blocks) != sum(one.blocks for one in media):
        return []
    ends = np.cumsum([one.blocks for one in media]).tolist()
    return [list(blocks[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def _runs(
    ids: np.ndarray, trained: np.ndarray, blocks: Sequence[_Block], labels: Mapping[int, str], decoder: Decoder | None
) -> Iterator[TextRun | MediaRun]:
    start = 0
    for block in blocks:
        yield from _text_runs(ids[start : block.start], trained[start : block.start], decoder)
        yield MediaRun(label=labels.get(block.start, block.kind), tokens=block.tokens)
        start = block.stop
    yield from _text_runs(ids[start:], trained[start:], decoder)


def _text_runs(ids: np.ndarray, trained: np.ndarray, decoder: Decoder | None) -> Iterator[TextRun]:
    special = decoder.special if decoder else frozenset()
    tokens = zip(ids.tolist(), trained.tolist(), strict=True)
    for (is_trained, is_special), run in groupby(tokens, key=lambda token: (token[1], token[0] in special)):
        mine = [token for token, _ in run]
        text = decoder.text(mine) if decoder else " ".join(map(str, mine))
        yield TextRun(text=text, tokens=len(mine), is_trained=is_trained, is_special=is_special)
