"""TurboJPEG is used where it gives Pillow's bits, and nowhere else: the same pixels, the same errors."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings, strategies as st
from PIL import Image

from neatpack.pipeline.media import image as image_module, jpeg
from neatpack.pipeline.media.image import decode_image
from neatpack.pipeline.media.jpeg import decoded_jpeg, made_jpegs
from neatpack.pipeline.records import MediaError, MediaRef


def noise(mode: str, height: int, width: int, seed: int) -> Image.Image:
    """Coarse enough for a JPEG, with colours at both ends."""
    values = np.random.default_rng(seed).integers(
        0, 256, (5, 7, len(Image.new(mode, (1, 1)).getbands())), dtype=np.uint8
    )
    small = Image.frombytes(mode, (7, 5), values.tobytes())
    return small.resize((width, height), Image.Resampling.BICUBIC)


def saved(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "jpeg", **options)
    return file.getvalue()


def outcome(content: bytes) -> np.ndarray | str:
    try:
        return decode_image(MediaRef(kind="image", path="a.jpg", held=content))
    except MediaError as error:
        return f"{error.skip.reason}: {error.skip.detail}"


def by_pillow(content: bytes) -> np.ndarray | str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_module, "decoded_jpeg", lambda content, size: None)
        return outcome(content)


def same(one: np.ndarray | str, other: np.ndarray | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one == other
    return np.array_equal(one, other)


def is_turbo(content: bytes) -> bool:
    with Image.open(io.BytesIO(content)) as image:
        return decoded_jpeg(content, (image.height, image.width)) is not None


options = st.fixed_dictionaries(
    {
        "quality": st.integers(1, 100),
        "subsampling": st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]),
        "progressive": st.booleans(),
        "optimize": st.booleans(),
        "restart_marker_blocks": st.sampled_from([0, 1, 3]),
    }
)


@settings(max_examples=150)
@given(mode=st.sampled_from(["RGB", "L"]), height=st.integers(1, 70), width=st.integers(1, 70), options=options)
def test_every_plain_jpeg_has_the_pixels_of_pillow(mode: str, height: int, width: int, options: dict[str, Any]) -> None:
    content = saved(noise(mode, height, width, seed=height), **options)
    assert is_turbo(content)
    assert same(outcome(content), by_pillow(content))


def test_three_colours_that_are_rgb() -> None:
    content = saved(noise("RGB", 33, 47, 0), keep_rgb=True)
    assert is_turbo(content)
    assert same(outcome(content), by_pillow(content))


@pytest.mark.parametrize("orientation", [2, 3, 6, 8])
def test_turned_ones_and_others_are_pillows(orientation: int) -> None:
    turned = Image.Exif()
    turned[0x0112] = orientation
    content = saved(noise("RGB", 33, 47, 0), exif=turned)
    assert same(outcome(content), by_pillow(content))
    cmyk = saved(noise("CMYK", 33, 47, 0))
    assert not is_turbo(cmyk)
    assert same(outcome(cmyk), by_pillow(cmyk))


@pytest.mark.parametrize("progressive", [False, True])
def test_cut_files_fail_as_they_do_in_pillow(progressive: bool) -> None:
    content = saved(noise("RGB", 40, 56, 1), progressive=progressive, quality=90)
    outcomes = []
    for end in range(2, len(content), 7):
        outcomes.append(by_pillow(content[:end]))
        assert same(outcome(content[:end]), outcomes[-1]), end
    assert any(isinstance(one, str) and "truncated" in one for one in outcomes)


@settings(max_examples=300)
@given(st.data())
def test_damaged_files_are_what_they_are_in_pillow(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(list(made_jpegs()))))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(2, len(content) - 1))] = data.draw(st.integers(0, 255))
    assert same(outcome(bytes(content)), by_pillow(bytes(content)))


def test_frames_that_pillow_may_not_know_are_left_to_it() -> None:
    """Arithmetic coding, say, which libraries are built with or without."""
    content = saved(noise("RGB", 33, 47, 0))
    at = content.index(b"\xff\xc0")
    assert decoded_jpeg(content, (33, 47)) is not None
    assert decoded_jpeg(content, (33, 48)) is None, "another size than Pillow's"
    for marker in (0xC3, 0xC9, 0xCA):
        assert decoded_jpeg(content[: at + 1] + bytes([marker]) + content[at + 2 :], (33, 47)) is None


def test_another_libjpeg_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose Pillow is built with one that rounds otherwise."""
    real, content = simplejpeg.decode_jpeg, saved(noise("RGB", 33, 47, 0))
    expected = by_pillow(content)
    jpeg._equals_pillow.cache_clear()
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *given, **more: real(*given, **more) ^ 1)
    try:
        assert not is_turbo(content)
        assert same(outcome(content), expected)
    finally:
        jpeg._equals_pillow.cache_clear()


def test_real_pictures(shared: Path) -> None:
    paths = sorted((shared / "data").rglob("*.jp*g"))
    contents = [content for path in paths if (content := path.read_bytes())]
    assert len(contents) > 100
    assert all(same(outcome(content), by_pillow(content)) for content in contents)
