"""Positions, bit-equal to the installed transformers' get_rope_index for random mixtures of text, images and videos."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from neatpack.pipeline.mrope import mrope_positions

MERGE = 2
KINDS, SIZES = st.sampled_from(["image", "video"]), st.integers(1, 6)
BLOCKS = st.lists(st.tuples(KINDS, st.integers(1, 4), SIZES, SIZES, st.integers(1, 5)), max_size=4)


def model_of(cls):
    """get_rope_index needs a config and no weights."""
    model = cls.__new__(cls)
    torch.nn.Module.__init__(model)
    model.config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=MERGE, tokens_per_second=2))
    return model


def sequence(blocks, *, per_frame: bool):
    """Token types, and grids in patches; Qwen3-VL writes each frame of a video as a block of its own."""
    types, images, videos = [0, 0], [], []
    for kind, frames, rows, columns, text in blocks:
        frames = 1 if kind == "image" else frames
        grid = (frames, rows * MERGE, columns * MERGE)
        (images if kind == "image" else videos).append(grid)
        block = [1 if kind == "image" else 2] * (rows * columns)
        for _ in range(frames):
            types += block + ([0] if per_frame else [])
        types += [0] * text
    return np.array(types, dtype=np.uint8), images, videos


@pytest.mark.parametrize("cls", [Qwen2VLModel, Qwen2_5_VLModel, Qwen3VLModel])
@settings(max_examples=60)
@given(blocks=BLOCKS, seconds=st.floats(0.05, 4))
def test_bit_equal_to_the_model(cls, blocks, seconds):
    per_frame = cls is Qwen3VLModel
    types, images, videos = sequence(blocks, per_frame=per_frame)
    ids = torch.zeros(1, len(types), dtype=torch.long)
    extra = {}
    intervals = None
    if cls is Qwen2_5_VLModel and videos:
        extra = {"second_per_grid_ts": torch.full((len(videos),), seconds)}
        intervals = [float(2 * torch.tensor(seconds))] * len(videos)
    expected, _ = model_of(cls).get_rope_index(
        ids,
        mm_token_type_ids=torch.from_numpy(types.astype(np.int32))[None],
        image_grid_thw=torch.tensor(images) if images else None,
        video_grid_thw=torch.tensor(videos) if videos else None,
        **extra,
    )
    frames = [(1, rows, columns) for t, rows, columns in videos for _ in range(t)] if per_frame else videos
    ours = mrope_positions(types, images, frames, merge_size=MERGE, video_intervals=intervals)
    assert np.array_equal(ours, expected[:, 0].numpy())


def test_literal():
    types = np.array([0, 0, 1, 1, 0])
    assert mrope_positions(types, [(1, 2, 4)], merge_size=2).tolist() == [
        [0, 1, 2, 2, 4],
        [0, 1, 2, 2, 4],
        [0, 1, 2, 3, 4],
    ]


def test_vision_tokens_must_fit_their_grid():
    with pytest.raises(AssertionError):
        mrope_positions(np.array([0, 1, 1, 1]), [(1, 2, 4)], merge_size=2)
