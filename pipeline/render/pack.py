"""Samples -> Pack: documents laid end to end."""

from collections.abc import Sequence

import numpy as np

from neatpack.pipeline.families.base import Family
from neatpack.pipeline.records import IGNORE, Document, Pack, Sample
from neatpack.pipeline.render.sample import fake_image_sample


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
    lengths = [len(sample.input_ids) for sample in rendered]
    padding = [-length % align for length in lengths]

    def joined(name: str, fill: int) -> np.ndarray:
        """An array of all documents, padding included: it comes last, where causal attention cannot see it."""
        arrays = [getattr(sample, name) for sample in rendered]
        pads = [np.full(count, fill, dtype=arrays[0].dtype) for count in padding]
        return np.concatenate([piece for pair in zip(arrays, pads, strict=True) for piece in pair])

    def joined_positions() -> np.ndarray:
        """They go on through the padding: to a reader of positions alone, a document ends where its padding does."""
        pieces = []
        for sample, count in zip(rendered, padding, strict=True):
            after = np.arange(count) + np.ceil(sample.position_ids.max()) + 1
            after = after.astype(sample.position_ids.dtype)
            pieces += [sample.position_ids, np.broadcast_to(after, (*sample.position_ids.shape[:-1], count))]
        return np.concatenate(pieces, axis=-1)

    return Pack(
        number=number,
        arrays={
            "input_ids": joined("input_ids", family.padding_id),
            "labels": joined("labels", IGNORE),
            "position_ids": joined_positions(),
            "seq_lens": np.array(lengths, dtype=np.int32),
            "seq_lens_padded": np.add(lengths, padding, dtype=np.int32),
            "mm_token_type_ids": joined("mm_token_type_ids", 0),
            **family.joined([sample.media for sample in rendered]),
        },
        documents=tuple(documents),
        fake_image=add_fake,
    )


def _fake_document(sample: Sample) -> Document:
    visual_tokens = int(np.count_nonzero(sample.mm_token_type_ids))
    return Document(dataset="", row=-1, repeat=0, tokens=len(sample.input_ids), visual_tokens=visual_tokens,
                    num_images=1, num_videos=0, num_audios=0)  # fmt: skip
