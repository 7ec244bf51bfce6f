"""GLM-4.xV: what closes a turn, which frames are taken, what is refused. Its tensors are compared in test_parity.py."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import ROOT, SHARED, asked, clip, picture, run_with_torchvision
from processors import glm4v
from support.errors import assert_skipped
from tiny_models import tiny_glm4v

from neatpack.loaders.mended import mend
from neatpack.loaders.model_inputs import PackCollater
from neatpack.loaders.online.tokenized import tokenized_example
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import family_for, load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure, truncated
from neatpack.pipeline.records import Example, Turn
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.token_types import token_types

CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return load_family(ProcessorKey(processor=str(glm4v.make(tmp_path_factory.mktemp("glm") / "processor"))))


@pytest.fixture(scope="module")
def real():
    folder = SHARED / "processors" / "glm4.5v"
    if not folder.is_dir():
        pytest.skip("../shared/processors/glm4.5v is not here")
    return family_for(str(folder))


def trained(family, *turns):
    (measured,) = measure([Example(turns=turns)], family)
    labels = render_whole(measured, family, "torch").labels
    return family.chat.tokenizer.decode(labels[labels != -100])


def turn(role, text="", **more):
    return Turn(role=role, parts=(text,) if text else (), **more)


def test_the_next_role_closes_an_answer_and_the_last_one_is_closed_by_us(family):
    said = trained(family, turn("user", "A?"), turn("assistant", "B."), turn("user", "C?"), turn("assistant", "D."))
    assert said == "B.<|user|>D.<|user|>"


def test_a_call_is_closed_by_its_observation(real):
    """And a line break that the template does not prompt with is the model's to write."""
    call = turn("assistant", tool_calls=(CALL,))
    answer = turn("tool", "So.", name="look", call_id="1")
    said = trained(real, turn("user", "A?"), call, answer, turn("assistant", "B."))
    first, second = said.split("<|observation|>")
    assert first.startswith("\n<think></think>\n<tool_call>look") and first.endswith("</tool_call>")
    assert second == "\n<think></think>\nB.<|user|>"
    assert trained(real, turn("user", "A?"), call).endswith("</tool_call><|observation|>")


def test_the_line_break_of_a_prompt_is_not_trained_on(family, real):
    assert (family.chat.markers.tail, real.chat.markers.tail) == (1, 0)


def test_what_nothing_would_close_is_refused(family):
    turns = (
        turn("user", "A?"),
        turn("assistant", "B."),
        turn("system", "C."),
        turn("user", "D?"),
        turn("assistant", "E."),
    )
    (skip,) = measure([Example(turns=turns)], family)
    assert_skipped(skip, "bad_row", "role system")


def test_frames_are_told_from_pictures_by_what_stands_around_them(family, tmp_path):
    assert token_types(np.array([5, 8, 5, 3, 9, 5]), {"image": 5}, (8, 9)).tolist() == [1, 0, 2, 0, 0, 1]
    image = {"type": "image", "image": str(picture(tmp_path / "a.png", 60, 60))}
    video = {"type": "video", "video": clip(tmp_path / "a.mp4").path}
    (measured,) = measure([from_conversation({"conversation": asked(image, video, image)})], family)
    whole = render_whole(measured, family, "torch")
    grids = whole.media["image_grid_thw"].prod(1) // 4, whole.media["video_grid_thw"].prod(1) // 4
    assert np.bincount(whole.mm_token_type_ids)[1:].tolist() == [grids[0].sum(), grids[1].sum()]
    cut = truncated(measured, family.chat.places(measured.ids)[1][0] - 1 + grids[0][0], family)
    assert cut is None, "nothing to train on before the answer"


def test_bounds_are_of_a_picture(family):
    bounded = load_family(ProcessorKey(processor=family.source, max_pixels=28 * 28 * 6)).image
    size, grid = bounded.shape(280, 420, 1)
    assert size == (56, 84) and grid == (1, 4, 6), "6 merged patches, where the processor's own config would say 12"
    assert family.image.shape(10, 300, 1)[0] == (28, 840), "enlarged to a merged patch first, as by its smart_resize"


VIDEOS = [
    (1, 25.0), (2, 1.0), (7, 3.0), (40, 8.0), (33, 8.0), (100, 29.97), (700, 24.0), (750, 25.0), (900, 30.0),
    (3000, 10.0), (3001, 10.0), (9000, 29.97), (299, 1.0), (301, 1.0), (5000, 2.0), (80_000, 30.0), (2500, 1.0),
]  # fmt: skip


def test_frames_are_the_processors(family, tmp_path):
    """Of short and long videos, above and below all bounds of duration; an odd last frame is repeated later."""
    kinds = [["Glm4vVideoProcessor", {}, VIDEOS], ["Glm4vVideoProcessor", {"fps": 5}, VIDEOS],
             ["Glm46VVideoProcessor", {}, VIDEOS]]  # fmt: skip
    theirs = json.loads(run_with_torchvision(ROOT / "tests" / "render" / "hf_frames.py", json.dumps(kinds)))
    newer = load_family(ProcessorKey(processor=str(glm4v.make_46(tmp_path / "p")))).video
    rules = [family.video, replace(family.video, fps=5), newer]
    ours = [rule.choose(total, fps, None).tolist() for rule in rules for total, fps in VIDEOS]
    for (total, fps), mine, expected in zip(VIDEOS * 3, ours, theirs, strict=True):
        if expected:  # of one frame, GLM-4.6V's takes none, and fails
            assert mine + mine[-1:] * (len(mine) % 2) == expected, (total, fps)
    assert ours[2 * len(VIDEOS)] == [0]
    assert newer.choose(100, 10.0, 2.0).tolist() == family.video.choose(100, 10.0, None).tolist(), "as a row asks"


def test_numbers_of_frames_that_the_user_sets(family):
    asked_for = {"video_max_frames": 8, "video_min_frames": 6, "video_fps": 1.0}
    rule = load_family(ProcessorKey(processor=family.source, **asked_for)).video
    assert [len(rule.choose(total, 10.0, None)) for total in (20, 75, 300)] == [6, 7, 8]
    assert len(rule.wished({"nframes": 5}).choose(300, 10.0, None)) == 4


@torch.no_grad()
def test_pictures_and_videos_in_one_batch_need_mending(family, tmp_path):
    """transformers takes every visual token for a picture's then; in the version that this is for, it says so."""
    model = tiny_glm4v(family)
    model._forward_pre_hooks.clear()
    image = {"type": "image", "image": str(picture(tmp_path / "a.png", 60, 60))}
    video = {"type": "video", "video": clip(tmp_path / "a.mp4").path}
    sample = tokenized_example({"conversation": asked(video, image)}, family)
    batch = {name: value for name, value in PackCollater()([_pack(sample)]).items()}
    with pytest.raises(ValueError, match="Image features and image tokens do not match"):
        model(**batch)
    assert torch.isfinite(mend(model)(**batch).loss)


def _pack(sample):
    length = torch.tensor([len(sample["input_ids"])])
    return sample | {"seq_lens": length, "seq_lens_padded": length, "pack": 0}
