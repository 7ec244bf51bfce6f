"""Guesses for the online path: chars // 3 and 500 per unknown medium, by the literal semantics of the reference."""

from typing import Any

import pytest

from neatpack.loaders.online.estimate import (
    IMAGE_CFG,
    VIDEO_CFG,
    _estimate_image_tokens,
    _estimate_sample_length,
    _estimate_video_tokens,
    content_parts,
    estimate_media_tokens,
    estimate_text_tokens,
)

IMAGE, VIDEO = IMAGE_CFG, VIDEO_CFG  # factors 28 and 32


def example(*contents: Any, **keys: Any) -> dict[str, Any]:
    return {"conversation": [{"role": "user", "content": content} for content in contents], **keys}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


PICTURE, CLIP = {"type": "image", "image": "a.jpg"}, {"type": "video", "video": "a.mp4"}


# ---------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ({}, 0),
        (example(), 0),
        (example("ab"), 0),
        (example("abc"), 1),
        (example("ab", "cd"), 1),  # divided once, not turn by turn
        (example("ab", [text("cd"), PICTURE, text("ef")]), 2),
        (example([text("你好吗")]), 1),  # characters, not bytes
        (example([{"type": "text"}, {"type": "other", "text": "abcdef"}, "abcdef"]), 0),
        (example(None, 7), 0),
        ({"conversation": [{"role": "user"}]}, 0),
        (example("abc" * 100, _text_tokens=7), 7),
        (example("abc" * 100, _text_tokens=0), 0),  # zero is a number too
        (example("abc", _text_tokens="12"), 12),
        (example("abc", _text_tokens=None), 1),
    ],
)
def test_text(value: dict[str, Any], tokens: int) -> None:
    assert estimate_text_tokens(value) == tokens


# ---------------------------------------------------------------- media of unknown size


def test_every_unknown_medium_counts_500() -> None:
    assert _estimate_sample_length(example("abcdef")) == 2
    value = example([PICTURE, text("abc"), PICTURE], "abc", [CLIP])
    assert _estimate_sample_length(value) == 1502
    assert _estimate_sample_length(value, return_media_tokens=True) == (1502, 1500)
    assert _estimate_sample_length(value, IMAGE, VIDEO) == 1502  # no sizes in the row
    sized = value | {"mm_inputs_meta": {"images_meta": [[56, 56], [56, 56]]}}
    assert _estimate_sample_length(sized) == 1502  # sizes, but no processor


def test_other_parts_are_not_media() -> None:
    assert estimate_media_tokens(example([{"type": "audio"}, {"type": "image_url"}, "image"]), None, None) == 0


# ---------------------------------------------------------------- media of known size


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        ([56, 56], 4),  # 2 x 2 merged patches of 28
        ([28, 28], 4),  # grown to min_pixels
        ([640, 480], 391),  # 644 x 476 -> 23 x 17
        ([480, 640], 391),
        ([5000, 5000], 1225),  # shrunk to max_pixels: 980 x 980 -> 35 x 35
        ((56.9, 56.0), 4),  # cut to whole numbers
    ],
)
def test_image(size: Any, tokens: int) -> None:
    assert _estimate_image_tokens(size, IMAGE) == tokens


def frames(*meta: float, **overrides: Any) -> int:
    """Temporal patches of a clip of [total_frames, height, width, fps, duration]: tokens over those of a frame."""
    tokens = _estimate_video_tokens(meta, VIDEO | overrides)
    per_frame, rest = divmod(tokens, 16)  # 128 x 128 in blocks of 32
    assert rest == 0
    return per_frame


def test_video_frames() -> None:
    assert frames(100, 128, 128, 25.0, 4.0) == 4  # 4 s at 2 fps: 8 frames, two a patch
    assert frames(0, 128, 128, 25.0, 4.0) == 4  # frames from duration * fps
    assert frames(100, 128, 128, 25.0, 999.0) == 4  # where frames are known, duration is not asked
    assert frames(100, 128, 128, 0.0, 4.0) == 4  # fps unknown: by duration
    assert frames(0, 128, 128, 0.0, 4.0) == 2  # neither: min_frames
    assert frames(10, 128, 128, 25.0, 0.4) == 2  # less than a second: min_frames
    assert frames(2, 128, 128, 25.0, 0.1) == 2  # even above what there is
    assert frames(125, 128, 128, 25.0, 5.0) == 5
    assert frames(175, 128, 128, 25.0, 7.0, fps=1) == 4  # 7 frames are padded to 8
    assert frames(10, 128, 128, 1.0, 10.0, fps=5) == 5  # never more than there are
    assert frames(25 * 1000, 128, 128, 25.0, 1000.0, max_frames=20) == 10
    assert frames(100, 128, 128, 25.0, 4.0, min_frames=1, fps=0.1) == 1  # one frame, padded to a patch


def test_video_budget_covers_the_clip() -> None:
    # 768 frames of 1280 x 704 are shrunk to 12.6M pixels in all, by 7.4: 160 x 64 -> 384 * 5 * 2.
    assert _estimate_video_tokens([768, 1280, 704, 2.0, 384.0], VIDEO) == 3840
    # 4 of 1280 x 704 need not be: 2 * 40 * 22.
    assert _estimate_video_tokens([4, 1280, 704, 2.0, 2.0], VIDEO) == 1760


def test_sizes_add_up() -> None:
    images, videos = [[56, 56], [640, 480]], [[100, 128, 128, 25.0, 4.0]]
    value = example([PICTURE, PICTURE, CLIP, text("abc")])
    value["mm_inputs_meta"] = {"images_meta": images, "videos_meta": videos}
    assert _estimate_sample_length(value, IMAGE, VIDEO, return_media_tokens=True) == (1 + 395 + 64, 395 + 64)
    assert _estimate_sample_length(value, IMAGE, None) == 1 + 395  # without a config a kind counts nothing
    assert _estimate_sample_length(value, None, VIDEO) == 1 + 64


@pytest.mark.parametrize(
    "sizes",
    [{}, {"images_meta": None}, {"images_meta": []}, {"images_meta": [None], "videos_meta": [None, None]}],
    ids=str,
)
def test_sizes_that_are_not_there_count_nothing(sizes: dict[str, Any]) -> None:
    value = example([PICTURE, text("abc")], mm_inputs_meta=sizes)
    assert _estimate_sample_length(value, IMAGE, VIDEO, return_media_tokens=True) == (1, 0)


# ---------------------------------------------------------------- what was counted before, and what cannot be


def test_precomputed_media_tokens_win() -> None:
    value = example([PICTURE, text("abc")], _media_tokens=7, mm_inputs_meta={"images_meta": [[56, 56]]})
    assert _estimate_sample_length(value, IMAGE, VIDEO, return_media_tokens=True) == (8, 7)
    assert estimate_media_tokens(value | {"_media_tokens": 0}, None, None) == 0  # zero is a number too
    assert estimate_media_tokens(value | {"_media_tokens": None}, IMAGE, VIDEO) == 4


@pytest.mark.parametrize("size", [[0, 0], [0, 640], [1, 201], [5000, 10]], ids=str)
def test_a_size_that_no_model_takes_is_a_guess(size: list[int]) -> None:
    assert _estimate_image_tokens(size, IMAGE) == 500
    assert _estimate_video_tokens([100, *size, 25.0, 4.0], VIDEO) == 500


def test_without_a_rate_every_frame_is_taken_up_to_the_most() -> None:
    assert frames(100, 128, 128, 25.0, 4.0, fps=None) == 50
    assert frames(31, 128, 128, 25.0, 1.2, fps=None) == 16  # padded
    assert frames(31, 128, 128, 25.0, 1.2, fps=None, max_frames=20) == 10
    assert frames(0, 128, 128, 0.0, 0.0, fps=None) == 1


def test_what_was_counted_needs_no_estimate() -> None:
    """Entries of mm_inputs_meta as objects, beside those that have a size."""
    counted = {"images_meta": [{"n_tokens": 77}, None, {}], "videos_meta": [{"n_tokens": 900}]}
    example = {"conversation": [], "_text_tokens": 1, "mm_inputs_meta": counted}
    for configs in ((None, None), (IMAGE_CFG, VIDEO_CFG)):
        assert _estimate_sample_length(example, *configs) == 1 + 77 + 500 + 900
    assert (
        _estimate_image_tokens({"n_tokens": 77}, IMAGE_CFG) == _estimate_video_tokens({"n_tokens": 77}, VIDEO_CFG) == 77
    )
    mixed = {"images_meta": [{"n_tokens": 77}, [640, 480]]}
    assert _estimate_sample_length({"mm_inputs_meta": mixed}, IMAGE_CFG, VIDEO_CFG) == 77 + 391


def test_bounds_of_a_frame() -> None:
    """Qwen2-VL: 8 frames of 640 x 480, each within 320 x 320 and all of them beyond it."""
    cfg = VIDEO | {"factor": 28, "patch_size": 14, "min_pixels": 3136, "max_pixels": 320 * 320}
    assert _estimate_video_tokens([100, 640, 480, 25.0, 4.0], cfg | {"per_frame": True}) == 4 * 13 * 9  # 364 x 252
    assert _estimate_video_tokens([100, 640, 480, 25.0, 4.0], cfg) == 4 * 4 * 3  # the clip in 320 x 320: 112 x 84


def test_content_parts() -> None:
    assert [*content_parts(example("text", [PICTURE, "text"], [CLIP]))] == [PICTURE, CLIP]
    assert [*content_parts({})] == []
