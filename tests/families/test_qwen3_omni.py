"""Qwen3-Omni: tokens of sounds, what is refused, packed against alone. Its tensors and positions: test_parity.py."""

import numpy as np
import pytest
import torch
from helpers import (
    TinyData,
    assert_verified,
    differences,
    film,
    tiny_config,
    tone,
)
from hypothesis import given, strategies as st
from processors import qwen3_omni
from tiny_models import tiny_model
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

from neatpack import PackedShards
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.qwen3_omni import audio_tokens
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.run import run_pack


@given(st.integers(1, 100_000))
def test_tokens_of_a_sound(frames):
    assert audio_tokens(frames) == int(_get_feat_extract_output_lengths(torch.tensor(frames)))


def test_the_sound_of_a_video_is_interleaved_by_time(tmp_path):
    path = film(tmp_path / "film.mp4")
    processor = qwen3_omni.make(tmp_path / "processor")
    messages = [{"role": "user", "content": [{"type": "video", "video": str(path), "fps": 1.0}]},
                {"role": "assistant", "content": "Yes."}]  # fmt: skip
    family = load_family(ProcessorKey(processor=str(processor), use_audio_in_video=True))
    (measured,) = measure([from_conversation({"conversation": messages})], family)
    whole = render_whole(measured, family, "torch")
    runs = [int(kind) for kind in whole.mm_token_type_ids[np.flatnonzero(np.diff(whole.mm_token_type_ids)) + 1]]
    assert runs[:4] == [2, 3, 2, 3], "seconds 0 and 1 of the video, what is heard, seconds 2 and 3, the rest"
    silent = load_family(ProcessorKey(processor=str(processor)))
    (deaf,) = measure([from_conversation({"conversation": messages})], silent)
    assert (measured.visual_tokens, deaf.visual_tokens) == (deaf.visual_tokens, deaf.visual_tokens)
    assert measured.audio_tokens == audio_tokens(family.sound.frames(measured.media[0].num_samples))
    assert measured.tokens - deaf.tokens == measured.audio_tokens + 2
    assert deaf.audio_tokens == 0


@pytest.mark.parametrize("heard", [False, True])
def test_packed_equals_alone(tmp_path, heard):
    """Sounds of several lengths, pictures and videos in one pack, through a tiny model of transformers' own."""
    data = TinyData(tmp_path / "data")
    tone(data.folder / "a.wav", 1.3)
    tone(data.folder / "b.wav", 0.4)
    film(data.folder / "c.mp4", seconds=2.0)
    data.row([("user", "<audio>What?"), ("assistant", "A tone.")], audios=["a.wav"])
    data.row([("user", "<video>See?"), ("assistant", "Yes, grey.")], videos=[{"path": "c.mp4", "fps": 2}])
    data.row([("user", "<audio>Or <audio>?"), ("assistant", "The second.")], audios=["b.wav", "a.wav"])
    data.image(60, 90)
    data.text("Nothing?", "Nothing.")
    processor = qwen3_omni.make(tmp_path / "processor")
    out = tmp_path / "out"
    small = {"video_min_pixels": 1024, "video_max_pixels": 65536, "max_pixels": 16384, "use_audio_in_video": heard}
    run_pack(tiny_config(data.write(), out, processor=str(processor), pack_size=2048, **small))
    assert assert_verified(out).counts.packed == 5
    (pack,) = PackedShards(out, pixels="fp32")
    assert pack["n_audios"] == (4 if heard else 3)
    model = tiny_model("qwen3_omni")
    keys = ("input_ids", "position_ids", "attention_mask", "pixel_values", "image_grid_thw", "pixel_values_videos",
            "video_grid_thw", "input_features", "feature_attention_mask")  # fmt: skip

    def logits(batch):
        return model(**{key: batch[key] for key in keys if key in batch}).logits

    found = differences(logits, out, pack)
    assert len(found) == len(pack["seq_lens"]) == 5
    assert max(found) < 1e-5
