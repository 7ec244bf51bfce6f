"""Documents -> Pack: laid end to end."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from neatpack.format.layout import IGNORE, TOKEN_TYPES
from neatpack.format.members import Document, Documents, Pack
from neatpack.pipeline.families.media_rows import Joined

from ..families.base import Arrays, Family
from ..labels import disjoint_spans_mask, labels_of, shifted_together
from ..measure.store import TextRow
from .sample import Expanded, fake_image_sample


def build_pack(
    number: int,
    told: Sequence[Document],
    documents: Sequence[Expanded | TextRow],
    family: Family,
    *,
    fake_image: bool,
    align: int = 1,
) -> Pack:
    """Labelled, positioned, shifted and laid end to end, each padded to a multiple of `align`. `told`: of each of them.

    A pack that the family wants a fake image in (nothing in it is seen) gets it as its last document, if asked for.
    """
    told = Documents.of(told)
    num_media = {kind: sum(told.columns[f"num_{kind}s"]) for kind in TOKEN_TYPES}
    add_fake = fake_image and family.wants_fake_image(num_media["image"] + num_media["video"], num_media["audio"])
    text = laid_out(documents, family, align=align)
    pieces = [piece for document in documents for piece in document.media]
    if not add_fake:
        return Pack(number=number, arrays=text | family.joined(pieces), documents=told, fake_image=False)
    fake = _fake_image(family, align)
    text = {name: np.concatenate([values, fake.text[name]], axis=-1) for name, values in text.items()}
    media = family.joined([*pieces, fake.media]) if pieces else fake.alone  # beside a sound, or, in nearly all, alone
    return Pack(number=number, arrays=text | media, documents=told + fake.document, fake_image=True)


def laid_out(documents: Sequence[Expanded | TextRow], family: Family, *, align: int = 1) -> Arrays:
    """What `end_to_end` gives for the documents rendered one by one and shifted, reckoned for all of them at once.

    A document of text has 200 tokens: what is done for each costs as much as for all.
    """
    ids, lengths = _numbers([document.ids for document in documents])
    ends = np.cumsum(lengths)
    starts = ends - lengths
    targets, num_spans = spans_of(documents)
    targets = targets + starts.repeat(num_spans)[:, None]
    types = family.chat.token_types(ids)
    labels = labels_of(ids, disjoint_spans_mask(targets, len(ids)))
    whole = {"input_ids": ids, "labels": labels, "mm_token_type_ids": types}
    shifted = shifted_together(whole, ends)

    lengths = lengths - 1
    padded = lengths + -lengths % align
    places = np.arange(padded.sum(), dtype=np.int32)  # of each token in its document
    places -= (padded.cumsum() - padded).astype(np.int32).repeat(padded)
    if align > 1:
        is_real, fills = places < lengths.repeat(padded), _fills(family.chat.padding_id)
        shifted = {name: _spread(values, is_real, fills[name]) for name, values in shifted.items()}
    return {
        "input_ids": shifted["input_ids"],
        "labels": shifted["labels"],
        "position_ids": _positions(documents, types, ends, padded, places, family),
        "seq_lens": lengths.astype(np.int32),
        "seq_lens_padded": padded.astype(np.int32),
        "mm_token_type_ids": shifted["mm_token_type_ids"],
    }


def spans_of(documents: Sequence[Expanded | TextRow]) -> tuple[np.ndarray, np.ndarray]:
    """The targets of documents, each in its own: int32 [n, 2], and how many each has."""
    targets, counts = _numbers([document.targets for document in documents])
    return targets.reshape(-1, 2), counts // 2


def _numbers(several: Sequence[np.ndarray | memoryview]) -> tuple[np.ndarray, np.ndarray]:
    """Arrays of int32 end to end, some of them as bytes, and how many numbers each has. An array of numpy for each of
    them would take longer than this for all."""
    plain = [each if isinstance(each, memoryview) else each.astype("<i4", copy=False).tobytes() for each in several]
    return np.frombuffer(b"".join(plain), "<i4"), np.array([len(each) // 4 for each in plain])


def _positions(
    documents: Sequence[Expanded | TextRow],
    types: np.ndarray,
    ends: np.ndarray,  # of the documents in `types`, before the shift
    padded: np.ndarray,  # their lengths after it
    places: np.ndarray,
    family: Family,
) -> np.ndarray:
    """Text advances by one on every axis, through its padding; a document in which something is seen is asked about."""
    positions = np.empty((family.position_axes, len(places)), dtype=family.position_dtype)
    positions[:] = places
    is_seen = np.array([bool(document.media) for document in documents])
    is_seen[ends.searchsorted(types.nonzero()[0], side="right")] = True
    for at in is_seen.nonzero()[0].tolist():
        own = types[ends[at - 1] if at else 0 : ends[at]]
        media = Joined(family.media, documents[at].media)
        start = padded[:at].sum()
        found = padded_positions(family.positions(own, media, family.facts)[..., :-1], padded[at])
        positions[:, start : start + padded[at]] = found
    return positions if family.position_axes > 1 else positions[0]


def _spread(values: np.ndarray, is_real: np.ndarray, fill: int) -> np.ndarray:
    """[a, b], is_real [1, 1, 0] -> [a, b, fill]."""
    result = np.full(len(is_real), fill, dtype=values.dtype)
    result[is_real] = values
    return result


def _fills(padding_id: int) -> dict[str, int]:
    return {"input_ids": padding_id, "labels": IGNORE, "mm_token_type_ids": 0}


def padded_positions(values: np.ndarray, length: int) -> np.ndarray:
    """They go on through padding: to a reader of positions alone, a document ends where its padding does."""
    count = length - values.shape[-1]
    if not count:
        return values
    after = (np.arange(count) + np.ceil(values.max()) + 1).astype(values.dtype)
    return np.concatenate([values, np.broadcast_to(after, (*values.shape[:-1], count))], axis=-1)


def end_to_end(documents: Sequence[Mapping[str, np.ndarray]], *, padding_id: int, align: int = 1) -> Arrays:
    """The per-token arrays of documents behind each other, each padded to a multiple of `align`, and their lengths.

    Padding comes last, where causal attention cannot see it.
    """
    lengths = [len(document["input_ids"]) for document in documents]
    padding = [-length % align for length in lengths]
    fills = _fills(padding_id)

    def padded(name: str, values: np.ndarray, count: int) -> np.ndarray:
        if name == "position_ids":
            return padded_positions(values, values.shape[-1] + count)
        return np.concatenate([values, np.full(count, fills[name], dtype=values.dtype)])

    def joined(name: str) -> np.ndarray:
        pairs = zip(documents, padding, strict=True)
        return np.concatenate([padded(name, document[name], count) for document, count in pairs], axis=-1)

    return {
        "input_ids": joined("input_ids"),
        "labels": joined("labels"),
        "position_ids": joined("position_ids"),
        "seq_lens": np.array(lengths, dtype=np.int32),
        "seq_lens_padded": np.add(lengths, padding, dtype=np.int32),
        **({"mm_token_type_ids": joined("mm_token_type_ids")} if "mm_token_type_ids" in documents[0] else {}),
    }


class _Fake(NamedTuple):
    """The fake image as the last document of a pack."""

    document: Documents
    text: Arrays
    media: Arrays
    alone: Arrays  # the media arrays of a pack with nothing else to see or hear


@lru_cache(maxsize=8)
def _fake_image(family: Family, align: int) -> _Fake:
    """The same in every pack."""
    sample = fake_image_sample(family)
    visual_tokens = int(np.count_nonzero(sample.mm_token_type_ids))
    document = Document(dataset="", row=-1, repeat=0, id="", form="chat", loss="", targets=(),
                        tokens=len(sample.input_ids), visual_tokens=visual_tokens, num_images=1, num_videos=0,
                        num_audios=0)  # fmt: skip
    text = end_to_end([sample.per_token], padding_id=family.chat.padding_id, align=align)
    return _Fake(Documents.of([document]), text, sample.media, family.joined([sample.media]))
