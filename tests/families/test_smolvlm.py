"""SmolVLM's videos: words, frames, smaller ones, what is refused, packed against alone. Its tensors: test_parity.py."""

import json
from typing import Any

import pytest
import torch
from helpers import (
    ROOT,
    SHARED,
    TinyData,
    asked,
    assert_verified,
    clip,
    differences,
    picture,
    run_with_torchvision,
    tiny_config,
)
from num2words import num2words  # type: ignore[import-untyped]
from processors import idefics3, smolvlm
from support.errors import assert_skipped, raises
from tiny_models import tiny_idefics3
from tokenizers.normalizers import Strip
from transformers import AutoTokenizer
from transformers.models.smolvlm import processing_smolvlm as theirs

from neatpack import PackedShards
from neatpack.loaders.online.tokenized import tokenized_example
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families import smolvlm as ours
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import chosen_family, load_family, processor_files
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure, shrunk, truncated
from neatpack.pipeline.records import Skip
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.run import run_pack


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return load_family(ProcessorKey(processor=str(smolvlm.make(tmp_path_factory.mktemp("smolvlm") / "processor"))))


def video(path, **more):
    return {"type": "video", "video": str(path), **more}


def measured(talk, family):
    (found,) = measure([from_conversation({"conversation": talk})], family)
    return found


def text_of(found, family) -> str:
    text = family.chat.tokenizer.decode(render_whole(found, family, "torch").input_ids)
    return text.replace("<fake_token_around_image><global-img>" + 4 * "<image>" + "<fake_token_around_image>", "▢")


def test_numbers_are_in_num2words_words():
    """All below 1000, and thousands of every number with rests of every form."""
    numbers = [*range(1, 1100), *(1000 * thousands + rest for thousands in (*range(1, 25), 100, 101, 999)
                                  for rest in (0, 1, 20, 21, 99, 100, 101, 999))]  # fmt: skip
    assert [ours.in_words(number) for number in numbers] == [num2words(number) for number in numbers]
    with pytest.raises(ValueError, match="1000000 .*--video-fps.*--video-max-frames"):
        ours.in_words(1_000_000)


def test_words_are_transformers_own():
    intro = theirs.DEFAULT_VIDEO_INTRO.format(frame_count="two", video_duration="0:00:02")
    assert intro == f"{ours.OPENS} two frames from a 0:00:02 [H:MM:SS] video.\n"
    assert ours.CLOSES == theirs.DEFAULT_MEDIA_OUTTRO


def test_a_video_and_a_picture_are_written_where_they_stand(family, tmp_path):
    """The words merge with what is beside them: " You", "\\n\\n"."""
    film, image = clip(tmp_path / "a.mp4", frames=3, rate=1).path, picture(tmp_path / "a.png", 32, 32, seed=1)
    talk = asked({"type": "text", "text": "See "}, video(film), {"type": "image", "image": str(image)})
    assert text_of(measured(talk, family), family).partition("▢What is it?")[0].replace("▢", "#") == (
        "<|im_start|>User: See You are provided the following series of three frames from a 0:00:03 [H:MM:SS] video.\n"
        "\nFrame from 00:00:#\nFrame from 00:01:#\nFrame from 00:02:#\n\n"
        + "\n".join("".join(f"<fake_token_around_image><row_{r}_col_{c}>" + 4 * "<image>" for c in (1, 2, 3))
                    for r in (1, 2, 3)) + "\n\n")  # fmt: skip
    sample = render_whole(measured(talk, family), family, "torch")
    assert sample.media["num_tiles"].tolist() == [3, 10] and sample.media["visual_kinds"].tolist() == [2, 1]
    assert family.media_tokens(sample.media, family.facts) == 13 * 4 == (sample.mm_token_type_ids == 1).sum()


def test_a_part_of_a_video_is_not_longer_than_the_video(family, tmp_path):
    film = clip(tmp_path / "a.mp4", frames=12, rate=1).path
    text = text_of(measured(asked(video(film, video_start=8, video_end=10)), family), family)
    assert "two frames from a 0:00:09 [H:MM:SS] video.\n\nFrame from 00:08:▢\nFrame from 00:09:▢\n\nWhat" in text


def test_rates_are_fractions():
    assert ours.seconds_of(30000, 30000 / 1001) == 1001.0
    assert ours.seconds_of(15000, 30000 / 1001) == 500.5
    assert ours.seconds_of(7, 25.0) == 7 / 25


# Total frames and frames per second: short ones, ends that are skipped, and not, for there would be nothing left.
VIDEOS = [(1, 5.0), (2, 30.0), (7, 25.0), (34, 24.0), (100, 29.97), (301, 30.0), (1000, 23.976), (4321, 60.0), (3, 0.5),
          (15000, 30000 / 1001), (90, 8.0), (5, 0.2)]  # fmt: skip
SETTINGS: list[dict[str, Any]] = [
    {"fps": 1, "num_frames": 8}, {"fps": 1, "num_frames": 64}, {"fps": 2.5, "num_frames": 3},
    {"fps": 0.1, "num_frames": 1}, {"fps": 30, "num_frames": 500},
]  # fmt: skip


def test_frames_are_the_processors(tmp_path):
    kinds = [["SmolVLMVideoProcessor", settings, VIDEOS] for settings in SETTINGS]
    chosen = iter(json.loads(run_with_torchvision(ROOT / "tests" / "render" / "hf_frames.py", json.dumps(kinds))))
    for number, settings in enumerate(SETTINGS):
        made = smolvlm.make(tmp_path / str(number), {**smolvlm.VIDEO, **settings})
        rule = load_family(ProcessorKey(processor=str(made))).video
        for total, fps in VIDEOS:
            assert rule.choose(total, fps, None).tolist() == next(chosen), (settings, total, fps)


def test_numbers_of_frames(family, tmp_path):
    def chosen(source=family.source, **key):
        return load_family(ProcessorKey(processor=source, **key)).video

    assert chosen(video_fps=2).choose(10, 5.0, None).tolist() == [0, 3, 6, 9]
    assert chosen().choose(10, 5.0, 2.0).tolist() == [0, 3, 6, 9]
    assert len(chosen(video_max_frames=3).choose(50, 5.0, None)) == 3
    assert chosen().wished({"nframes": 2}).choose(50, 5.0, None).tolist() == [0, 49]
    assert len(chosen(video_max_frames=3).wished({"nframes": 12}).choose(500, 5.0, None)) == 12
    assert len(chosen().wished({"max_frames": 4}).choose(50, 5.0, None)) == 4
    # Where its processor fails, for it is told one of the two: no bound, and just the number.
    one = {name: str(smolvlm.make(tmp_path / name, {**smolvlm.VIDEO, name: None})) for name in ("num_frames", "fps")}
    assert len(chosen(one["num_frames"]).choose(500, 5.0, None)) == 100
    assert len(chosen(one["fps"]).choose(500, 5.0, None)) == 8
    assert len(chosen(str(smolvlm.make_all_frames(tmp_path / "all"))).choose(90, 30.0, None)) == 90


def test_smaller_and_shorter(family, tmp_path):
    film = clip(tmp_path / "a.mp4", frames=8, rate=1).path
    whole = measured([*asked(), *asked(video(film))], family)
    assert "eight frames from" in text_of(whole, family)
    smaller = [shrunk(whole, level, family) for level in (1, 2, 3, 4)]
    assert [len(one.media[0].frames) for one in smaller] == [4, 2, 1, 1]
    for one in smaller:
        assert len(render_whole(one, family, "torch").input_ids) - 1 == one.tokens
    assert "series of two frames from a 0:00:08 [H:MM:SS] video.\n\nFrame from 00:00:▢\nFrame from 00:07:▢\n\n" in (
        text_of(smaller[1], family)
    )
    cut = truncated(whole, family.chat.places(whole.ids)[0][0] + 10, family)
    assert not cut.media and "Frame" not in family.chat.tokenizer.decode(cut.ids)


def test_the_tokenizer_is_left_as_it_is(tmp_path):
    files = processor_files(str(smolvlm.make(tmp_path / "processor")))
    before = len(files.tokenizer)
    family = chosen_family(ProcessorKey(processor=files.source), files)
    assert len(files.tokenizer) == before and family.chat.placeholder_ids["video"] == before
    talk = asked(answer="Yes.")
    talk[0]["content"][0]["text"] = "What is <video>, and <image>?"
    sample = tokenized_example({"conversation": talk}, family)
    assert int(sample["input_ids"].max()) < before, "the token stands for a video until its frames do"
    assert "What is <video>, and <image>?" in family.chat.tokenizer.decode(sample["input_ids"])


def test_what_is_refused(family, tmp_path):
    with raises(UserError, "option-conflict", option="max_pixels", family="smolvlm"):
        load_family(ProcessorKey(processor=family.source, max_pixels=5))
    with raises(UserError, "option-conflict", option="video_max_pixels", family="smolvlm"):
        load_family(ProcessorKey(processor=family.source, video_max_pixels=5))
    other = str(smolvlm.make(tmp_path / "p", {**smolvlm.VIDEO, "max_image_size": {"longest_edge": 64}}))
    with raises(UserError, "processor-unsupported", key="max_image_size", family="smolvlm"):
        load_family(ProcessorKey(processor=other))
    files = processor_files(family.source)
    files.tokenizer.backend_tokenizer.normalizer = Strip()
    with raises(UserError, "processor-unsupported", family="smolvlm"):
        chosen_family(ProcessorKey(processor=family.source), files)


def test_what_the_template_of_videos_leaves_out_is_said(tmp_path):
    """Whatever the processor's own writes."""
    made = smolvlm.make(tmp_path / "p")
    template = made / "chat_template.jinja"
    template.write_text(template.read_text() + "{{- messages[-1].reasoning_content -}}")
    family, film = load_family(ProcessorKey(processor=str(made))), clip(tmp_path / "a.mp4").path
    thought = [*asked()[:-1], {**asked()[-1], "reasoning_content": "Hm."}]
    assert not isinstance(measured(thought, family), Skip)
    skip = measured([*asked(video(film))[:-1], thought[-1]], family)
    assert_skipped(skip, "bad_row", "reasoning_content", "video")


def test_idefics3_takes_no_videos(tmp_path):
    family = load_family(ProcessorKey(processor=str(idefics3.make(tmp_path / "p"))))
    film = clip(tmp_path / "a.mp4").path
    assert measured(asked(video(film)), family).reason == "video_unsupported"


@torch.no_grad()
def test_packed_equals_alone(family, tmp_path):
    """Pictures, videos, both and none; the fake image."""
    data = TinyData(tmp_path / "data")
    for number in range(3):
        clip(data.folder / f"{number}.mp4", frames=3 + 2 * number, rate=1, height=60, width=40 + 30 * number)
        data.image(40 + 50 * number, 90, answer=f"Picture {number}.")
        data.row([("user", "<video>What?"), ("assistant", f"Film {number}.")], videos=[f"{number}.mp4"])
    data.row([("user", "<video>or<image>, or <video>?"), ("assistant", "No.")], videos=["0.mp4", "2.mp4"],
             images=["2.png"])  # fmt: skip
    for number in (1, 60, 120, 180, 180, 180):
        data.text("How many?", "so many " * number)
    out = tmp_path / "out"
    run_pack(tiny_config(data.write(), out, processor=family.source, pack_size=700))
    assert assert_verified(out).counts.skipped == {}
    model = tiny_idefics3(family, kind="SmolVLM")

    def logits_of(batch):
        keys = ("input_ids", "attention_mask", "position_ids", "pixel_values")
        given = {key: batch[key].double() if key == "pixel_values" else batch[key] for key in keys if key in batch}
        return model(**given).logits

    packs = list(PackedShards(out, pixels="fp32"))
    assert any(pack["n_images"] and pack["n_videos"] and len(pack["seq_lens"]) > 1 for pack in packs)
    for pack in packs:
        assert max(differences(logits_of, out, pack)) < 1e-9


def test_words_merge_with_a_text_beside_them(tmp_path):
    """With a vocabulary that has " You" and "\\n\\n\\n": ids are those of the whole text, encoded at once."""
    if not (vocabulary := SHARED / "processors" / "qwen3-vl").is_dir():
        pytest.skip("../shared/processors/qwen3-vl is not here")
    made = smolvlm.make(tmp_path / "processor")
    tokenizer = AutoTokenizer.from_pretrained(str(vocabulary))
    tokenizer.add_special_tokens({"additional_special_tokens": idefics3.TOKENS}, replace_extra_special_tokens=False)
    tokenizer.chat_template = idefics3.TEMPLATE
    tokenizer.save_pretrained(str(made))
    family = load_family(ProcessorKey(processor=str(made)))
    film = clip(tmp_path / "a.mp4", frames=3, rate=1).path
    merged = set()
    for before in ("a", "See ", "\n", "You", "1"):
        for after in ("b", " c", "\nd", "\n\n", "2"):
            talk = asked({"type": "text", "text": before}, video(film), {"type": "text", "text": after})
            ids = render_whole(measured(talk, family), family, "torch").input_ids.tolist()
            assert tokenizer.encode(tokenizer.decode(ids)) == ids
            merged |= {tokenizer.decode([token]) for token in ids}
    assert {" You", "\n\n\n"} <= merged
