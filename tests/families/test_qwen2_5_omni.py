"""Qwen2.5-Omni: what is refused; positions against the model's own. Its tensors are compared in test_parity.py."""

import numpy as np
import pytest
import torch
from processors import qwen2_5_omni
from support.errors import raises
from tiny_models import tiny_model

from neatpack.format.layout import AUDIO, IMAGE, VIDEO
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return load_family(ProcessorKey(processor=str(qwen2_5_omni.make(tmp_path_factory.mktemp("omni") / "processor"))))


@pytest.mark.parametrize("seconds", [1.0, 0.5, 0.37])
def test_positions_are_the_models(family, seconds):
    """Text, a picture of 2 x 3 merged patches, a sound of 31 tokens, a video of 3 frames, text."""
    before = {kind: family.chat.marker_ids(kind) for kind in ("image", "video", "audio")}
    ids = [5, 6]
    for kind, count in (("image", 6), ("audio", 31), ("video", 12), ("image", 6)):
        ids += [*before[kind][0], *[family.chat.placeholder_ids[kind]] * count, *before[kind][1], 7]
    types = family.chat.token_types(np.array(ids))
    assert [int((types == kind).sum()) for kind in (IMAGE, AUDIO, VIDEO)] == [12, 31, 12]
    media = {
        "image_grid_thw": np.array([[1, 4, 6], [1, 6, 4]]),
        "video_grid_thw": np.array([[3, 4, 4]]),
        "video_second_per_grid": np.array([seconds], dtype=np.float32),
    }
    expected, _ = tiny_model("qwen2_5_omni").get_rope_index(
        torch.tensor([ids]), torch.tensor(media["image_grid_thw"]), torch.tensor(media["video_grid_thw"]),
        torch.ones(1, len(ids), dtype=torch.long), False, torch.tensor([124]),
        torch.tensor(media["video_second_per_grid"]),
    )  # fmt: skip
    assert family.positions(types, media, family.facts).tolist() == expected[:, 0].tolist()


def test_what_is_refused(family):
    assert family.sound.frames(160_000) == 1000
    with pytest.raises(ValueError, match=r"10.0 s .* 10 s"):
        family.sound.frames(160_001)
    assert family.sound.tokens_of(family.sound.frames(321)) == 1
    with pytest.raises(ValueError, match="0.02"):
        family.sound.frames(320)
    with raises(UserError, "option-conflict", option="use_audio_in_video", family="qwen2_5_omni"):
        load_family(ProcessorKey(processor=family.source, use_audio_in_video=True))
