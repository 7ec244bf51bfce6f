"""InternVL: frames, smaller and shorter ones, what is refused, packed against alone. Its tensors: test_parity.py."""

import json
from typing import Any

import pytest
import torch
from helpers import ROOT, TinyData, assert_verified, clip, differences, picture, run_with_torchvision, tiny_config
from processors import internvl
from support.errors import raises
from tiny_models import tiny_internvl

from neatpack import PackedShards
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure, shrunk, truncated
from neatpack.pipeline.run import run_pack

SIZES = [(56, 56), (40, 30), (112, 112), (57, 170), (400, 120), (300, 300), (1, 90), (168, 112)]


def asked(*seen, question="What is it?", answer="It is so."):
    images = [one if isinstance(one, dict) else {"type": "image", "image": str(one)} for one in seen]
    return [
        {"role": "user", "content": [*images, {"type": "text", "text": question}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    made = internvl.make(tmp_path_factory.mktemp("internvl") / "processor")
    return load_family(ProcessorKey(processor=str(made)))


def test_smaller_and_shorter(tiny, tmp_path):
    path = picture(tmp_path / "a.png", 170, 110)  # 3 x 2 tiles and the whole
    (whole,) = measure([from_conversation({"conversation": [*asked(), *asked(path)]})], tiny)
    assert [shrunk(whole, level, tiny).tokens - whole.tokens for level in (1, 2, 3)] == [-16, -24, -24]
    cut = truncated(whole, tiny.chat.places(whole.ids)[0][0] + 10, tiny)
    assert not cut.media and "<img>" not in tiny.chat.tokenizer.decode(cut.ids)


def test_smaller_and_shorter_videos(tiny, tmp_path):
    film = {"type": "video", "video": clip(tmp_path / "a.mp4", frames=9).path}
    (whole,) = measure([from_conversation({"conversation": [*asked(), *asked(film)]})], tiny)
    assert [len(shrunk(whole, level, tiny).media[0].frames) for level in (1, 2, 3, 4)] == [4, 2, 1, 1]
    frame = len(tiny.chat.ids("\nFrame2: <img></img>")) + 4
    assert whole.tokens - shrunk(whole, 1, tiny).tokens == 5 * frame
    assert shrunk(whole, 1, tiny).media[0].frames == (0, 3, 5, 8), "the first and the last among them"
    place = tiny.chat.places(whole.ids)[0][0]
    cut = truncated(whole, place + 10, tiny)
    assert not cut.media and "Frame" not in tiny.chat.tokenizer.decode(cut.ids)


# Total frames and frames per second; 34 and 14 frames is where steps of a float go beyond the end.
VIDEOS = [(1, 5.0), (7, 25.0), (34, 24.0), (100, 29.97), (301, 30.0), (1000, 23.976), (4321, 60.0)]
SETTINGS: list[dict[str, Any]] = [
            {"num_frames": 1}, {"num_frames": 7}, {"num_frames": 14, "initial_shift": False},
            {"fps": 1}, {"fps": 2.5},
            {"num_frames": 6, "initial_shift": 0.9}, {"num_frames": 7, "initial_shift": 3}]  # fmt: skip


def test_frames_are_the_processors(tmp_path):
    """Where it takes any: it refuses a video of fewer frames than wanted, and fails where a rate gives none."""
    asked_for = []
    for settings in SETTINGS:
        number, rate = settings.get("num_frames"), settings.get("fps", 0)
        asked_for.append([[total, fps] for total, fps in VIDEOS if 1 <= (number or int(total / fps * rate)) <= total])
    kinds = [["InternVLVideoProcessor", *both] for both in zip(SETTINGS, asked_for, strict=True)]
    theirs = iter(json.loads(run_with_torchvision(ROOT / "tests" / "render" / "hf_frames.py", json.dumps(kinds))))
    for number, (settings, videos) in enumerate(zip(SETTINGS, asked_for, strict=True)):
        rule = load_family(ProcessorKey(processor=str(internvl.make(tmp_path / str(number), video=settings)))).video
        for total, fps in videos:
            ours, expected = rule.choose(total, fps, None).tolist(), next(theirs)
            assert ours == [frame for frame in expected if frame < total], (settings, total)
        for total, fps in VIDEOS:
            ours = rule.choose(total, fps, None).tolist()
            assert ours == sorted(set(ours)) and ours and ours[0] >= 0 and ours[-1] < total, (settings, total)


def test_numbers_of_frames(tiny):
    def chosen(**key):
        return load_family(ProcessorKey(processor=tiny.source, **key)).video

    assert len(chosen().choose(90, 30.0, None)) == 90, "as its processor does"
    assert chosen().choose(10, 10.0, 4.0).tolist() == chosen(video_fps=4.0).choose(10, 10.0, None).tolist()
    assert chosen(video_fps=4.0).choose(10, 10.0, None).tolist() == [1, 3, 6, 8]
    assert len(chosen(video_max_frames=6).choose(90, 30.0, None)) == 6
    assert len(chosen(video_max_frames=6).wished({"nframes": 8}).choose(90, 30.0, None)) == 8


def test_what_is_refused(tiny, tmp_path):
    with raises(UserError, "option-conflict", option="max_pixels", family="internvl"):
        load_family(ProcessorKey(processor=tiny.source, max_pixels=5))
    with raises(UserError, "option-conflict", option="video_max_pixels", family="internvl"):
        load_family(ProcessorKey(processor=tiny.source, video_max_pixels=5))
    other = str(internvl.make(tmp_path / "p", video={"image_mean": [0.5, 0.5, 0.5]}))
    with raises(UserError, "processor-unsupported", key="image_mean", family="internvl"):
        load_family(ProcessorKey(processor=other))


@torch.no_grad()
def test_packed_equals_alone(tiny, tmp_path):
    data = TinyData(tmp_path / "data")
    for number, (height, width) in enumerate(SIZES):
        data.image(height, width, answer=f"Picture {number}.")
    data.row([("user", "<image>and<image>?"), ("assistant", "No.")], images=["0.png", "3.png"])
    for number in (1, 5, 20, 60, 120, 180, 180, 180):
        data.text("How many?", "so many " * number)
    out = tmp_path / "out"
    run_pack(tiny_config(data.write(), out, processor=tiny.source, pack_size=400))
    assert assert_verified(out).counts.skipped == {}
    model = tiny_internvl(tiny)

    def logits_of(batch):
        keys = ("input_ids", "attention_mask", "position_ids", "pixel_values")
        given = {key: batch[key].double() if key == "pixel_values" else batch[key] for key in keys if key in batch}
        return model(**given).logits

    packs = list(PackedShards(out, pixels="fp32"))
    assert any(pack["n_images"] > 1 and len(pack["seq_lens"]) > 1 for pack in packs)
    assert any(pack["seq_lens"][-1] == 6 for pack in packs), "a fake image"
    for pack in packs:
        assert max(differences(logits_of, out, pack)) < 1e-9
