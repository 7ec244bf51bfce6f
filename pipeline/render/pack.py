"""Samples -> Pack: documents laid end to end."""

from collections.abc import Sequence

import numpy as np

from pipeline.families.base import Family
from pipeline.records import IGNORE, Document, Pack, Sample
from pipeline.render.sample import fake_image_sample

MEDIA = ("image_grid_thw", "pixel_values", "video_grid_thw", "second_per_grid_ts", "pixel_values_videos")
FAKE_IMAGE = Document(dataset="", row=-1, repeat=0, tokens=3, visual_tokens=1, num_images=1, num_videos=0)


def build_pack(
    number: int, samples: Sequence[tuple[Document, Sample]], family: Family, *, fake_image: bool, align: int = 1
) -> Pack:
    """Concatenate, each document padded to a multiple of `align`.

    A pack without any medium gets the fake image as its last document, if asked for.
    """
    documents = [document for document, _ in samples]
    rendered = [sample for _, sample in samples]
    add_fake = fake_image and not any(len(s.image_grid_thw) + len(s.video_grid_thw) for s in rendered)
    if add_fake:
        documents.append(FAKE_IMAGE)
        rendered.append(fake_image_sample(family))
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
            after = np.arange(count, dtype=np.int32) + sample.position_ids.max() + 1
            pieces += [sample.position_ids, np.broadcast_to(after, (*sample.position_ids.shape[:-1], count))]
        return np.concatenate(pieces, axis=-1)

    return Pack(
        number=number,
        arrays={
            "input_ids": joined("input_ids", family.padding_id),
            "labels": joined("labels", IGNORE),
            "position_ids": joined_positions(),
            "mm_token_type_ids": joined("mm_token_type_ids", 0),
            "seq_lens": np.array(lengths, dtype=np.int32),
            "seq_lens_padded": np.add(lengths, padding, dtype=np.int32),
            **{name: np.concatenate([getattr(sample, name) for sample in rendered]) for name in MEDIA},
        },
        documents=tuple(documents),
        fake_image=add_fake,
    )
