"""Samples -> Pack: documents laid end to end."""

from collections.abc import Sequence

import numpy as np

from pipeline.families.base import Family
from pipeline.records import Document, Pack, Sample
from pipeline.render.sample import fake_image_sample

FAKE_IMAGE = Document(dataset="", row=-1, repeat=0, tokens=3, visual_tokens=1, num_images=1, num_videos=0)


def build_pack(number: int, samples: Sequence[tuple[Document, Sample]], family: Family, *, fake_image: bool) -> Pack:
    """Concatenate; a pack without any medium gets the fake image as its last document, if asked for."""
    documents = [document for document, _ in samples]
    rendered = [sample for _, sample in samples]
    add_fake = fake_image and not any(len(sample.image_grid_thw) for sample in rendered)
    if add_fake:
        documents.append(FAKE_IMAGE)
        rendered.append(fake_image_sample(family))
    return Pack(
        number=number,
        arrays={
            "input_ids": np.concatenate([sample.input_ids for sample in rendered]),
            "labels": np.concatenate([sample.labels for sample in rendered]),
            "position_ids": np.concatenate([sample.position_ids for sample in rendered], axis=-1),
            "mm_token_type_ids": np.concatenate([sample.mm_token_type_ids for sample in rendered]),
            "seq_lens": np.array([len(sample.input_ids) for sample in rendered], dtype=np.int32),
            "image_grid_thw": np.concatenate([sample.image_grid_thw for sample in rendered]),
            "pixel_values": np.concatenate([sample.pixel_values for sample in rendered]),
        },
        documents=tuple(documents),
        fake_image=add_fake,
    )
