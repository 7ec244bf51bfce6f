"""Rows of the token store: their bytes, and what is read of them again."""

import json

import numpy as np
import pytest

from neatpack.pipeline.measure.store import _packed, unpacked
from neatpack.pipeline.records import Measured, MeasuredMedia, MediaRef

PICTURE = MeasuredMedia(
    ref=MediaRef(kind="image", path='a "b"\\ü\n\ud800.jpg', inside="/images/0", offset=7, length=9),
    height=480, width=640, size=(476, 644), grid=(1, 34, 46), stamp="28704 1700000000000000000 0123456789abcdef",
)  # fmt: skip
CLIP = MeasuredMedia(
    ref=MediaRef(kind="video", path="1.png", frames=("1.png", "2.png")), height=56, width=56, size=(56, 56),
    grid=(1, 4, 4), frames=(0, 1), total_frames=2, fps=29.97, asked_fps=0.1, num_samples=16000,
)  # fmt: skip
BY_NUMPY = MeasuredMedia(ref=MediaRef(kind="audio", path="a.wav"), grid=(np.int64(5), 1, 1), fps=np.float32(0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize("media", [(), (PICTURE,), (PICTURE, CLIP), (BY_NUMPY,)], ids=["none", "one", "two", "numpy"])
def test_a_row_and_back(media: tuple[MeasuredMedia, ...]) -> None:
    row = Measured(ids=np.array([1, 2, 3], np.int32), targets=np.array([[1, 3]], np.int32), media=media, tokens=2,
                   visual_tokens=4, media_bytes=8, loss="1.")  # fmt: skip
    content = _packed(6, row)
    back = unpacked(6, content)
    assert back is not None and unpacked(7, content) is None
    assert (back.ids.tolist(), back.targets.tolist(), back.tokens, back.loss) == ([1, 2, 3], [[1, 3]], 2, "1.")
    assert back.media == tuple(media)
    text = content[24 + 4 * 5 :].decode("utf-8", "surrogatepass")
    assert text == json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")), "as json writes it"
