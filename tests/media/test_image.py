"""The size that probing reads from a header is the size that decoding gives, for every orientation and container."""

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import picture
from hypothesis import given, settings, strategies as st
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngImageFile, PngInfo
from PIL.TiffImagePlugin import ImageFileDirectory_v2
from support.errors import raises_media_error

from neatpack.pipeline.media.image import decode_image, image_size
from neatpack.pipeline.media.open import open_media
from neatpack.pipeline.records import MediaError, MediaRef

ORIENTATION = 0x0112
XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="{}"/></x:xmpmeta>'


def ref(path: Path | str, **where: int) -> MediaRef:
    return MediaRef(kind="image", path=str(path), **where)


def written(path: Path, content: bytes) -> MediaRef:
    path.write_bytes(content)
    return ref(path)


def exif(orientation: Any) -> Image.Exif:
    block = Image.Exif()
    block[ORIENTATION] = orientation
    return block


def saved(form: str, height: int = 20, width: int = 30, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(buffer, form, **options)
    return buffer.getvalue()


def displayed_size(path: str) -> tuple[int, int]:
    """Height and width of the decoded picture, by Pillow alone."""
    with Image.open(path) as image:
        turned = ImageOps.exif_transpose(image)
        return turned.height, turned.width


def assert_unreadable(reference: MediaRef, reason: str, *named: object) -> None:
    with raises_media_error(reason, *named):
        image_size(reference)


# ---------------------------------------------------------------- orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["jpeg", "png", "webp", "tiff", "avif", "mpo"])
def test_every_orientation(tmp_path: Path, form: str, orientation: int) -> None:
    picture = written(tmp_path / f"a.{form}", saved(form, exif=exif(orientation)))
    assert image_size(picture) == ((30, 20) if orientation >= 5 else (20, 30))
    assert image_size(picture) == displayed_size(picture.path) == decode_image(picture).shape[:2]


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_compressed_tiff(tmp_path: Path, compression: str, orientation: int) -> None:
    picture = written(tmp_path / "a.tiff", saved("tiff", exif=exif(orientation), compression=compression))
    assert image_size(picture) == decode_image(picture).shape[:2] == ((30, 20) if orientation == 6 else (20, 30))


@pytest.mark.parametrize("form", ["jpeg", "png", "webp", "tiff", "gif", "bmp"])
def test_no_orientation(tmp_path: Path, form: str) -> None:
    picture = written(tmp_path / f"a.{form}", saved(form))
    assert image_size(picture) == decode_image(picture).shape[:2] == (20, 30)


def exif_text(orientation: bytes) -> bytes:
    """A block whose orientation is a text of one letter, where a number belongs."""
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHI4sI", 1, ORIENTATION, 2, 2, orientation, 0)


def test_an_orientation_in_letters_is_none(tmp_path: Path) -> None:
    for letter in (b"6", b"x"):
        picture = written(tmp_path / "a.jpg", saved("jpeg", exif=exif_text(letter)))
        assert image_size(picture) == displayed_size(picture.path) == decode_image(picture).shape[:2] == (20, 30)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientations_that_do_not_exist(tmp_path: Path, orientation: int) -> None:
    picture = written(tmp_path / "a.jpg", saved("jpeg", exif=exif(orientation)))
    assert image_size(picture) == displayed_size(picture.path) == decode_image(picture).shape[:2] == (20, 30)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("form", ["jpeg", "webp", "tiff"])
def test_orientation_in_xmp(tmp_path: Path, form: str, orientation: int) -> None:
    xmp = XMP.format(orientation).encode()
    tags = ImageFileDirectory_v2()
    tags[700] = xmp
    options = {"tiffinfo": tags} if form == "tiff" else {"xmp": xmp}
    picture = written(tmp_path / f"a.{form}", saved(form, **options))
    assert image_size(picture) == decode_image(picture).shape[:2] == ((30, 20) if orientation == 6 else (20, 30))


@pytest.mark.parametrize("block", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0" + b"\xff" * 40])
def test_a_broken_exif_block_does_not_cost_the_picture(tmp_path: Path, block: bytes) -> None:
    picture = written(tmp_path / "a.jpg", saved("jpeg", exif=block))
    assert image_size(picture) == decode_image(picture).shape[:2] == (20, 30)


# ---------------------------------------------------------------- PNG, whose metadata may follow its pixels


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def before_end(png: bytes, *chunks: bytes) -> bytes:
    end = chunk(b"IEND", b"")
    assert png.endswith(end)
    return png.removesuffix(end) + b"".join(chunks) + end


def exif_chunk(orientation: int) -> bytes:
    return chunk(b"eXIf", exif(orientation).tobytes().removeprefix(b"Exif\0\0"))


def text_chunk(orientation: int) -> bytes:
    return chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP.format(orientation).encode())


@pytest.fixture
def no_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Any) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(PngImageFile, "load", load)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("make", [exif_chunk, text_chunk])
def test_png_metadata_behind_the_pixels(tmp_path: Path, make: Any, orientation: int) -> None:
    picture = written(tmp_path / "a.png", before_end(saved("png"), make(orientation)))
    assert image_size(picture) == ((30, 20) if orientation >= 5 else (20, 30))
    assert image_size(picture) == displayed_size(picture.path) == decode_image(picture).shape[:2]


def test_png_metadata_before_and_behind_the_pixels(tmp_path: Path) -> None:
    """EXIF without an orientation in front must not hide one in the XMP behind."""
    block = Image.Exif()
    block[0x010E] = "a picture"
    picture = written(tmp_path / "a.png", before_end(saved("png", exif=block), text_chunk(6)))
    assert image_size(picture) == decode_image(picture).shape[:2] == (30, 20)


@pytest.mark.parametrize("orientation", [1, 6])
def test_png_text_before_the_pixels(tmp_path: Path, no_pixels: None, orientation: int) -> None:
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", XMP.format(orientation))
    picture = written(tmp_path / "a.png", saved("png", pnginfo=info))
    assert image_size(picture) == ((30, 20) if orientation == 6 else (20, 30))


def test_png_is_not_decoded_for_its_size(tmp_path: Path, no_pixels: None) -> None:
    assert image_size(written(tmp_path / "a.png", saved("png"))) == (20, 30)
    assert image_size(written(tmp_path / "b.png", saved("png", exif=exif(6)))) == (30, 20)
    time = chunk(b"tIME", b"\x07\xea\x01\x01\x00\x00\x00")
    assert image_size(written(tmp_path / "c.png", before_end(saved("png"), time))) == (20, 30)


def test_png_with_metadata_behind_the_pixels_in_a_byte_range(tmp_path: Path) -> None:
    content = before_end(saved("png"), exif_chunk(6))
    written(tmp_path / "a.bin", b"before" + content + b"after")
    assert image_size(ref(tmp_path / "a.bin", offset=6, length=len(content))) == (30, 20)


def test_png_cut_before_its_end(tmp_path: Path, no_pixels: None) -> None:
    """The header is whole; that the pixels are not is found when they are decoded."""
    content = saved("png")
    for cut in (len(content) - 12, len(content) - 8, 60):
        assert image_size(written(tmp_path / "a.png", content[:cut])) == (20, 30)


# ---------------------------------------------------------------- broken files


@pytest.mark.parametrize("form", ["jpeg", "png", "gif", "tiff", "bmp"])
def test_cut_in_the_pixels_the_size_still_stands(tmp_path: Path, form: str) -> None:
    picture = written(tmp_path / f"a.{form}", saved(form, 200, 300)[:-100])
    assert image_size(picture) == (200, 300)
    with pytest.raises(MediaError):
        decode_image(picture)


@pytest.mark.parametrize("form", ["jpeg", "png", "webp", "gif", "tiff", "bmp"])
@pytest.mark.parametrize("cut", [0, 1, 6, 12])
def test_cut_in_the_header(tmp_path: Path, form: str, cut: int) -> None:
    picture = written(tmp_path / f"a.{form}", saved(form)[:cut])
    assert_unreadable(picture, "bad_media", f"{picture.path}: ")


def test_not_a_picture(tmp_path: Path) -> None:
    """In a file or inside one: words that are the same in every run, for they go to the ledger."""
    picture = written(tmp_path / "a.jpg", b"<html>404</html>")
    details = set()
    for part in (picture, ref(picture.path, offset=3, length=5)):
        with pytest.raises(MediaError) as caught:
            image_size(part)
        details.add((caught.value.skip.reason, caught.value.skip.detail))
    ((reason, detail),) = details
    assert reason == "bad_media" and detail.startswith(f"{picture.path}: ") and " at 0x" not in detail


def test_a_decompression_bomb_is_refused_by_its_header(tmp_path: Path) -> None:
    picture = written(tmp_path / "a.gif", b"GIF89a" + struct.pack("<HH", 65535, 65535) + saved("gif")[10:])
    assert_unreadable(picture, "bad_media", "DecompressionBombError")


@given(st.sampled_from(["jpeg", "png", "webp", "gif", "tiff", "bmp"]), st.data())
@settings(max_examples=300)
def test_damage_anywhere_is_a_size_or_a_skip_and_decoding_agrees(
    tmp_path_factory: pytest.TempPathFactory, form: str, data: Any
) -> None:
    content = bytearray(saved(form, exif=exif(6)) if form in ("jpeg", "png", "webp", "tiff") else saved(form))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(content), len(content) // 2, len(content) - 3]))
    picture = written(tmp_path_factory.getbasetemp() / "damaged", bytes(content[:end]))
    sizes: list[tuple[int, ...]] = []
    for look in (image_size, lambda ref: decode_image(ref).shape[:2]):
        try:
            sizes.append(look(picture))
        except MediaError as error:
            assert error.skip.reason == "bad_media"
            break
    assert len(set(sizes)) == 1 or not sizes
    assert min(sum(sizes, (1,))) > 0


# ---------------------------------------------------------------- where the bytes are


def test_missing_files(tmp_path: Path) -> None:
    absent, folder = tmp_path / "absent.jpg", tmp_path
    assert_unreadable(ref(absent), "missing_media", f"{absent}: ", "No such file or directory")
    assert_unreadable(ref(folder), "missing_media", f"{folder}: ", "Is a directory")
    assert_unreadable(ref(absent / "below.jpg"), "missing_media", f"{absent}/below.jpg: ", "No such file or directory")
    assert_unreadable(ref(tmp_path / ("x" * 300)), "missing_media")


def test_a_name_that_no_file_can_have() -> None:
    assert_unreadable(ref("a\0b.jpg"), "missing_media", "'a\\x00b.jpg'")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    picture = written(tmp_path / "a.png", saved("png"))
    (tmp_path / "a.png").chmod(0)
    assert_unreadable(picture, "missing_media", f"{picture.path}: ", "Permission denied")


def test_byte_ranges(tmp_path: Path) -> None:
    first, second = saved("png", 5, 6), saved("jpeg", 7, 8, exif=exif(6))
    path = tmp_path / "media.bin"
    written(path, first + second)
    assert image_size(ref(path, offset=0, length=len(first))) == (5, 6)
    assert image_size(ref(path, offset=len(first), length=len(second))) == (8, 7)
    assert open_media(ref(path, offset=len(first), length=len(second))).read() == second
    assert open_media(ref(path, offset=3, length=4)).read() == (first + second)[3:7]
    assert open_media(ref(path, offset=len(first))).read() == second  # to the end
    assert open_media(ref(path)).read() == first + second
    assert_unreadable(ref(path, offset=0, length=0), "bad_media", f"{path}: ")


@pytest.mark.parametrize(("offset", "length", "end"), [(0, 11, 11), (10, 1, 11), (11, 0, 11), (0, 1 << 62, 1 << 62)])
def test_byte_ranges_beyond_the_end(tmp_path: Path, offset: int, length: int, end: int) -> None:
    path = tmp_path / "media.bin"
    written(path, b"0123456789")
    assert_unreadable(ref(path, offset=offset, length=length), "bad_media", path, "10 bytes", offset, end)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "PA", "CMYK", "1"])
def test_pixels_are_those_of_transformers(tmp_path: Path, mode: str) -> None:
    """Alpha goes onto white, as transformers' convert_to_rgb does it; a transparent colour of a palette, too."""
    from transformers.image_transforms import convert_to_rgb

    image = Image.open(picture(tmp_path / "a.png", 20, 30, mode="RGBA")).convert(mode)
    held = MediaRef(kind="image", path="", held=image)
    assert np.array_equal(decode_image(held), convert_to_rgb(image, return_numpy=True))
    if mode == "P":
        image.info["transparency"] = image.getpixel((0, 0))
        assert np.array_equal(decode_image(held), convert_to_rgb(image, return_numpy=True))
        assert decode_image(held)[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("least", [255, 254, 0])
def test_alpha_that_hides_nothing(least: int) -> None:
    """Every value of a channel, under an alpha of 255 but for one pixel."""
    from transformers.image_transforms import convert_to_rgb

    pixels = np.full((16, 16, 4), 255, dtype=np.uint8)
    pixels[..., :3] = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    pixels[0, 7, 3] = least
    image = Image.fromarray(pixels)
    decoded = decode_image(MediaRef(kind="image", path="", held=image))
    assert np.array_equal(decoded, convert_to_rgb(image, return_numpy=True))
    assert np.array_equal(decoded, pixels[..., :3]) == (least == 255)
