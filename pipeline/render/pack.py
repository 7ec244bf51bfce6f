"""Samples -> Pack: documents laid end to end."""

from collections.abc import Sequence

import numpy as np

from pipeline.families.base import Family
from pipeline.records import IGNORE, Document, Pack, Sample
from pipeline.render.sample import fake_image_sample

FAKE_IMAGE = Document(dataset="", row=-1, repeat=0, tokens=3, visual_tokens=1, num_images=1, num_videos=0)


def build_pack(
    number: int, samples: Sequence[tuple[Document, Sample]], family: Family, *, fake_image: bool, align: int = 1
) -> Pack:
    """Concatenate, each document padded to a multiple of `align`.

    A pack without any medium gets the fake image as its last document, if asked for.
    """
    documents = [document for document, _ in samples]
    rendered = [sample for _, sample in samples]
    add_fake = fake_image and not any(len(sample.image_grid_thw) for sample in rendered)
    if add_fake:
        documents.append(FAKE_IMAGE)
        rendered.append(fake_image_sample(family))
    lengths = [len(sample.input_ids) for sample in rendered]
    padding = [-length % align for length in lengths]

    def joined(name: str, fill: int) -> np.ndarray:
        pieces = [_padded(getattr(sample, name), count, fill) for sample, count in zip(rendered, padding, strict=True)]
        return np.concatenate(pieces, axis=-1)

    return Pack(
        number=number,
        arrays={
            "input_ids": joined("input_ids", family.padding_id),
            "labels": joined("labels", IGNORE),
            "position_ids": joined("position_ids", 0),
            "mm_token_type_ids": joined("mm_token_type_ids", 0),
            "seq_lens": np.array(lengths, dtype=np.int32),
            "seq_lens_padded": np.add(lengths, padding, dtype=np.int32),
            "image_grid_thw": np.concatenate([sample.image_grid_thw for sample in rendered]),
            "pixel_values": np.concatenate([sample.pixel_values for sample in rendered]),
        },
        documents=tuple(documents),
        fake_image=add_fake,
    )


def _padded(array: np.ndarray, count: int, fill: int) -> np.ndarray:
    """Padding at the end of the last axis: what comes after a document cannot change it, attention being causal."""
    if not count:
        return array
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, count)], constant_values=fill)
