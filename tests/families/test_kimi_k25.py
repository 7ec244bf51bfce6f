"""Kimi-K2.5: grids, labels, times, and packed against alone with its model. Its tensors: test_parity.py."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import TinyData, assert_verified, clip, differences, picture, tiny_config
from processors import kimi_k25
from support.errors import raises
from tiny_models import tiny_kimi_k25

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.format.layout import Delivery
from neatpack.loaders.pp_media import VLM_PP_MEDIA_KEY, prepare_vlm_media_for_pp
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.kimi_k25 import clock
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure, shrunk, truncated
from neatpack.pipeline.records import MeasuredMedia, MediaRef
from neatpack.pipeline.render.sample import render_sample, render_whole
from neatpack.pipeline.run import run_pack


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return load_family(ProcessorKey(processor=str(kimi_k25.make(tmp_path_factory.mktemp("k25") / "processor"))))


def part(kind, path, **more):
    return {"type": kind, kind: str(path), "path": str(path), **more}


def text(words):
    return {"type": "text", "text": words}


def turns(*parts, answer="It is so."):
    return [{"role": "user", "content": list(parts)}, {"role": "assistant", "content": [text(answer)]}]


def test_one_grid_has_three_names(family, tmp_path):
    """Those of transformers' processor, and of the two that are remote code; chunks of videos are counted."""
    images = [
        part("image", picture(tmp_path / f"{i}.png", *size, seed=i)) for i, size in enumerate([(28, 28), (200, 130)])
    ]
    long = part("video", clip(tmp_path / "long.mp4", frames=48, rate=5).path)  # 19 frames at 2 a second
    (measured,) = measure([from_conversation({"conversation": turns(*images, long, text("?"))})], family)
    media = render_whole(measured, family, "torch").media
    assert len(media["image_grid_thw"]) == 2
    assert np.array_equal(media["grid_thws"], media["image_grid_thw"])
    assert np.array_equal(media["image_grid_hws"], media["image_grid_thw"][:, 1:])
    assert media["num_chunks_per_video"].tolist() == [len(media["video_grid_thw"])] == [5]


def test_labels_are_the_answers_and_their_ends(family, tmp_path):
    image, short = part("image", picture(tmp_path / "a.png", 29, 29)), part("video", clip(tmp_path / "a.mp4").path)
    messages = [{"role": "system", "content": [text("Be brief.")]},
                *turns(image, text("?"), answer="\n\nYes."), *turns(short, answer="No")]  # fmt: skip
    (measured,) = measure([from_conversation({"conversation": messages})], family)
    labels = render_whole(measured, family, "torch").labels
    assert family.chat.tokenizer.decode(labels[labels != -100]) == "\n\nYes.<|im_end|>No<|im_end|>"


def test_literal_markers_in_a_text_are_text(family):
    words = "<|im_assistant|>assistant<|im_middle|>x<|kimi_k25_video_placeholder|><|media_pad|><|im_end|>"
    (measured,) = measure([from_conversation({"conversation": turns(text(words))})], family)
    assert not family.chat.places(measured.ids)
    assert words in family.chat.tokenizer.decode(measured.ids)
    labels = render_whole(measured, family, "torch").labels
    assert family.chat.tokenizer.decode(labels[labels != -100]) == "It is so.<|im_end|>"


def test_times():
    video = MeasuredMedia(ref=MediaRef(kind="video", path=""), grid=(3, 2, 2), frames=(0, 45, 109_999), fps=30.0)
    assert [clock(video, frame) for frame in range(3)] == ["00:00:00.000", "00:00:01.500", "01:01:06.633"]


def test_a_tokenizer_without_the_video_token_takes_no_videos(tmp_path):
    made = kimi_k25.make(tmp_path / "processor", with_video_token=False)
    family = load_family(ProcessorKey(processor=str(made)))
    (skip,) = measure(
        [from_conversation({"conversation": turns(part("video", clip(tmp_path / "a.mp4").path))})], family
    )
    assert skip.reason == "video_unsupported"


def test_the_published_config_says_the_same_in_other_words(tmp_path):
    published = {"processor_class": "KimiK25Processor", "media_proc_cfg": {
        "in_patch_limit": 96, "patch_size": 14, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "merge_kernel_size": 2,
        "fixed_output_tokens": None, "patch_limit_on_one_side": 20, "in_patch_limit_each_frame": 24,
        "in_patch_limit_video": None, "sample_fps": 2.0, "temporal_merge_kernel_size": 4}}  # fmt: skip
    remote, ours = kimi_k25.make(tmp_path / "remote", **published), kimi_k25.make(tmp_path / "ours")
    (remote / "processor_config.json").unlink()
    one, other = (load_family(ProcessorKey(processor=str(path))) for path in (remote, ours))
    assert (one.image, one.video) == (other.image, other.video)
    # Its own arithmetic: x / 255, less the mean, times 1 / std, in float32.
    bytes_ = (np.arange(256) / 255.0).astype(np.float32)
    bytes_ -= np.array(0.5)
    bytes_ *= 1 / np.array(0.5)
    assert np.array_equal(one.tables("pil")["image"], np.tile(bytes_, (3, 1)))


def test_settings(tmp_path):
    made = str(kimi_k25.make(tmp_path / "processor"))
    family = load_family(ProcessorKey(processor=made, max_pixels=14 * 14 * 12, video_fps=1.0, video_max_frames=5))
    assert family.image.max_patches == 12
    assert family.video.choose(100, 10.0, None).tolist() == [0, 20, 40, 60, 80]
    assert family.video.choose(30, 10.0, 0.5).tolist() == [0]
    assert family.video.choose(3, 1.0, 4.0).tolist() == [0, 1, 2]  # transformers refuses a rate above the video's
    with raises(UserError, "option-conflict", option="min_pixels", family="kimi_k25"):
        load_family(ProcessorKey(processor=made, min_pixels=5))


def test_shrinking_halves_patches_and_frames(family, tmp_path):
    image, video = picture(tmp_path / "a.png", 130, 200), clip(tmp_path / "a.mp4", frames=48, rate=5).path
    (whole,) = measure([from_conversation({"conversation": turns(part("image", image), part("video", video))})], family)
    tokens = [whole.tokens] + [shrunk(whole, level, family).tokens for level in range(1, 6)]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[-1] < tokens[0] / 3
    small = shrunk(whole, 3, family)
    assert len(small.media[1].frames) == 4
    assert len(render_sample(small, family, "torch").input_ids) == small.tokens
    ids = render_whole(small, family, "torch").input_ids
    assert "00:00:00.000<|media_begin|>video<|media_content|>" in family.chat.tokenizer.decode(ids)
    one = family.image.smallest
    assert family.image.smaller(one, 3) == one


def test_truncation_takes_the_opening_markers_of_a_picture_with_it(family, tmp_path):
    image = picture(tmp_path / "a.png", 130, 200)
    messages = [*turns(text("Hello")), *turns(part("image", image), text("What?"))]
    (whole,) = measure([from_conversation({"conversation": messages})], family)
    cut = truncated(whole, family.chat.places(whole.ids)[0][0] + 3, family)
    assert not cut.media
    assert family.chat.tokenizer.decode(cut.ids).endswith("<|im_user|>user<|im_middle|>")


@pytest.fixture(scope="module")
def out(family, tmp_path_factory):
    """Pictures, videos, both, several, and text alone."""
    folder = tmp_path_factory.mktemp("k25_out")
    data = TinyData(folder / "data")
    for number, frames in enumerate((4, 26, 9)):
        clip(data.folder / f"{number}.mp4", frames=frames, rate=5)
    for number, (height, width) in enumerate([(60, 90), (28, 28), (300, 100)]):
        data.image(height, width, answer=f"Picture {number}.")
    ask = [("user", "<video>What?"), ("assistant", "Yes.")]
    data.row(ask, videos=["0.mp4"]).row(ask, videos=["1.mp4"])
    data.row([("user", "<image>and<video><video><image>?"), ("assistant", "No."), ("user", "<video>"),
              ("assistant", "All.")], videos=["1.mp4", "2.mp4", "0.mp4"], images=["0.png", "2.png"])  # fmt: skip
    for number in range(8):
        data.text("How many?", "so many " * (20 * number + 1))
    made = folder / "out"
    run_pack(tiny_config(data.write(), made, processor=family.source, pack_size=400))
    return made


def test_the_output_is_right(out):
    assert assert_verified(out).counts.skipped == {}


# Everything that a batch has beside what torch calls labels: the model takes what it knows.
NOT_THE_MODELS = ("labels", "_packed_seq_ids", "stored_pixels")


def inputs(batch):
    return {key: value for key, value in batch.items() if key not in NOT_THE_MODELS}


def test_packed_equals_alone(out, family):
    model = tiny_kimi_k25(family)
    packs = list(PackedShards(out, pixels="fp32"))
    assert any(pack["n_images"] > 1 and pack["n_videos"] > 1 for pack in packs)
    for pack in packs:
        assert max(differences(lambda batch: model(**inputs(batch)).logits, out, pack)) < 1e-5


def test_microbatches_have_their_own_media(out, family):
    packs = list(PackedShards(out, pixels="uint8"))
    batch = neat_packed_vlm_collater(packs)
    chunks = prepare_vlm_media_for_pp(batch, len(packs), len(packs), family.media)[VLM_PP_MEDIA_KEY]
    for number, pack in enumerate(packs):
        for name in family.media:
            assert torch.equal(chunks[name][number], pack[name]), name


def test_shapes_of_rows_are_those_of_the_layout(family):
    assert json.loads(json.dumps(family.described()))["media"]["pixel_values"]["row"] == [3, 14, 14]
    assert family.media["pixel_values_videos"] == replace(
        family.media["pixel_values"], kinds=("video",), counts="video_grid_thw", deliver=Delivery(table="video")
    )
