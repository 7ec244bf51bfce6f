"""Samples -> Pack: documents laid end to end."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..families.base import Arrays, Family
from ..records import IGNORE, Document, Pack, Sample
from .sample import fake_image_sample


def build_pack(
    number: int, samples: Sequence[tuple[Document, Sample]], family: Family, *, fake_image: bool, align: int = 1
) -> Pack:
    """Concatenate, each document padded to a multiple of `align`.

    A pack that the family wants a fake image in (nothing in it is seen) gets it as its last document, if asked for.
    """
    documents = [document for document, _ in samples]
    rendered = [sample for _, sample in samples]
    add_fake = fake_image and family.wants_fake_image(
        sum(document.num_images + document.num_videos for document in documents),
        sum(document.num_audios for document in documents),
    )
    if add_fake:
        rendered.append(fake_image_sample(family))
        documents.append(_fake_document(rendered[-1]))
    text = end_to_end([sample.per_token for sample in rendered], padding_id=family.chat.padding_id, align=align)
    return Pack(
        number=number,
        arrays=text | family.joined([sample.media for sample in rendered]),
        documents=tuple(documents),
        fake_image=add_fake,
    )


def end_to_end(documents: Sequence[Mapping[str, np.ndarray]], *, padding_id: int, align: int = 1) -> Arrays:
    """The per-token arrays of documents behind each other, each padded to a multiple of `align`, and their lengths.

    Padding comes last, where causal attention cannot see it. Positions go on through it: to a reader of positions
    alone, a document ends where its padding does.
    """
    lengths = [len(document["input_ids"]) for document in documents]
    padding = [-length % align for length in lengths]
    fills = {"input_ids": padding_id, "labels": IGNORE, "mm_token_type_ids": 0}

    def padded(name: str, values: np.ndarray, count: int) -> np.ndarray:
        if name == "position_ids":
            after = (np.arange(count) + np.ceil(values.max()) + 1).astype(values.dtype)
        else:
            after = np.full(count, fills[name], dtype=values.dtype)
        return np.concatenate([values, np.broadcast_to(after, (*values.shape[:-1], count))], axis=-1)

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


def _fake_document(sample: Sample) -> Document:
    visual_tokens = int(np.count_nonzero(sample.mm_token_type_ids))
    return Document(dataset="", row=-1, repeat=0, id="", form="chat", loss="", targets=(),
                    tokens=len(sample.input_ids), visual_tokens=visual_tokens, num_images=1, num_videos=0,
                    num_audios=0)  # fmt: skip
