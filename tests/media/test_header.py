"""The size of a JPEG by our own parser is what Pillow says, for every file; where it says nothing, Pillow is asked."""

import io
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
from helpers import SHARED
from hypothesis import given, settings, strategies as st
from PIL import Image

from neatpack.pipeline.media import image
from neatpack.pipeline.media.header import jpeg_size
from neatpack.pipeline.records import MediaError, MediaRef

ORIENTATION = 0x0112


def saved(size: tuple[int, int] = (30, 20), mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert(mode).save(buffer, "jpeg", **options)
    return buffer.getvalue()


def with_segment(content: bytes, marker: int, body: bytes) -> bytes:
    """Right behind the beginning."""
    return content[:2] + struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body + content[2:]


def by_pillow(content: bytes) -> tuple[int, int] | None:
    """Height and width as displayed; None for what is no picture."""
    try:
        return image._size_by_pillow(MediaRef(kind="image", path="a"), io.BytesIO(content))
    except MediaError:
        return None


PLAIN = {
    "as Pillow writes it": saved(),
    "progressive": saved(progressive=True),
    "grey": saved(mode="L"),
    "CMYK": saved(mode="CMYK"),
    "no subsampling": saved(subsampling=0, quality=100),
    "restart markers": saved(restart_marker_blocks=1),
    "a comment": saved(comment=b"x" * 1000),
    "a profile": saved(icc_profile=b"p" * 3000),
    "a profile in two": saved(icc_profile=b"p" * 70_000)[: 1 << 17],
    "a narrow one": saved((1, 3000)),
    "XMP that turns nothing": saved(xmp=b"<x:xmpmeta/>"),
    "an application's own": with_segment(saved(), 0xEB, b""),
}
ASKED = {
    "EXIF": saved(exif=Image.Exif()),
    "XMP that turns it": saved(xmp=b'<x tiff:Orientation="6"/>'),
    "Photoshop": with_segment(saved(), 0xED, b"Photoshop 3.0\0" + b"8BIM\x03\xed\0"),
    "several pictures": with_segment(saved(), 0xE2, b"MPF\0" + b"x" * 8),
    "a short JFIF": with_segment(saved(), 0xE0, b"JFIF\0"),
    "a short Adobe": with_segment(saved(), 0xEE, b"Adobe\0"),
    "a short profile": with_segment(saved(), 0xE2, b"ICC_PROFILE\0\1"),
    "tables that do not fill their segment": with_segment(saved(), 0xDB, b"\0" * 66),
    "two sizes": with_segment(saved(), 0xC0, b"\x08\0\5\0\5\3" + b"\1\x11\0" * 3),
    "junk between": saved()[:2] + b"\0" + saved()[2:],
    "padding between": saved()[:2] + b"\xff" + saved()[2:],
    "12 bits": saved().replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
    "two layers": saved().replace(b"\0\x14\0\x1e\3", b"\0\x14\0\x1e\2"),
    "no height": saved().replace(b"\0\x14\0\x1e\3", b"\0\0\0\x1e\3"),
    "too many pixels": saved().replace(b"\0\x14\0\x1e\3", b"\xff\xff\xff\xff\3"),
    "lossless": saved().replace(b"\xff\xc0\0\x11", b"\xff\xc3\0\x11"),
    "no JPEG": b"\xff\xd8\xfe" + saved()[3:],
    "a PNG": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "nothing": b"",
}  # fmt: skip


@pytest.mark.parametrize("what", PLAIN)
def test_plain_ones_are_told(what: str) -> None:
    content = PLAIN[what]
    assert jpeg_size(content) == by_pillow(content) is not None


@pytest.mark.parametrize("what", ASKED)
def test_of_others_nothing_is_said(what: str) -> None:
    assert jpeg_size(ASKED[what]) is None


def test_orientation_is_pillows(tmp_path: Path) -> None:
    """Through the whole way: by the bytes that are read for the stamp, and by the file."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    for content in (saved(exif=exif), saved(xmp=b'<x tiff:Orientation="6"/>')):
        (tmp_path / "a.jpg").write_bytes(content)
        assert image.image_size(MediaRef(kind="image", path=str(tmp_path / "a.jpg"))) == (30, 20)


def cut_everywhere(content: bytes) -> set[tuple[int, int] | None]:
    return {size for end in range(len(content)) if (size := jpeg_size(content[:end])) != by_pillow(content[:end])}


def test_a_file_that_ends_early() -> None:
    """Never another size than Pillow's; and none where Pillow refuses the file."""
    assert cut_everywhere(saved(quality=5)) <= {None}


@given(
    st.sampled_from([PLAIN["as Pillow writes it"], PLAIN["a profile"], PLAIN["progressive"], PLAIN["CMYK"]]),
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 3),
)
@settings(max_examples=400, deadline=None)
def test_damaged_ones(content: bytes, changes: list[tuple[int, int]], lost: int) -> None:
    """Bytes changed, and bytes lost: what is told is what Pillow says."""
    damaged = bytearray(content)
    for at, value in changes:
        damaged[at % len(damaged)] = value
    at = changes[0][0]
    del damaged[at : at + lost]
    told = jpeg_size(bytes(damaged))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert told is None or told == by_pillow(bytes(damaged))


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is not here")
def test_every_picture_at_hand() -> None:
    """Real ones and nasty ones: told or not, it is what Pillow says; most JPEGs are told."""
    found = [
        path.read_bytes()
        for folder in ("media", "nasty")
        for path in (SHARED / "data" / folder).rglob("*")
        if path.is_file()
    ]
    jpegs = [content for content in found if content.startswith(b"\xff\xd8\xff") and len(content) < 1 << 24]
    told = {content: size for content in jpegs if (size := jpeg_size(content[: 16 << 10])) is not None}
    assert len(jpegs) > 100 and len(told) > 0.8 * len(jpegs)
    assert [size for content, size in told.items() if size != by_pillow(content)] == []
    others = [content for content in found if not content.startswith(b"\xff\xd8\xff")]
    assert {jpeg_size(content[: 16 << 10]) for content in others} == {None}
