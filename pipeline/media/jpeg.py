"""JPEGs by TurboJPEG, in half of the time that Pillow takes, where that gives the bits that Pillow gives.

Pillow stays the measure. What is not a plain JPEG of grey or of three colours, and whatever TurboJPEG warns of, is left
to it: it may know better, or say what is wrong. And no picture is decoded here in a process whose Pillow and TurboJPEG
differ on a few that are made for the purpose, as they would with another libjpeg behind one of them.
"""

import io
import random
import struct
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import simplejpeg
from PIL import Image

PLAIN = (0xC0, 0xC1, 0xC2)  # frames that both have: baseline, extended and progressive, Huffman-coded
_NO_SEGMENT = (0x01, *range(0xD0, 0xD9))  # markers that stand alone


def decoded_jpeg(content: bytes, size: tuple[int, int]) -> np.ndarray | None:
    """RGB pixels [height, width, 3], not turned, of a JPEG that has this size to Pillow; None: ask Pillow."""
    return _turbo(content) if _equals_pillow() and _is_plain(content, size) else None


def _turbo(content: bytes) -> np.ndarray | None:
    try:
        pixels: np.ndarray = simplejpeg.decode_jpeg(content, "RGB", fastdct=False, fastupsample=False, strict=True)
    except ValueError:  # strict: warnings, too. TurboJPEG fills with grey what is missing, where Pillow may refuse
        return None
    return pixels


def _is_plain(content: bytes, size: tuple[int, int]) -> bool:
    """Whether the first frame is one of PLAIN, of 8 bits, this size and one or three colours.

    It is found by stepping over segments. TurboJPEG reserves what a frame says: a size that nobody checked is no size.
    """
    at = 2
    while at + 10 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker == 0xFF or marker in _NO_SEGMENT:
            at += 1 if marker == 0xFF else 2
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            bits, height, width, colours = struct.unpack_from(">BHHB", content, at + 4)
            return marker in PLAIN and bits == 8 and (height, width) == size and colours in (1, 3)
        else:
            at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return False


@lru_cache(maxsize=1)
def _equals_pillow() -> bool:
    """Asked once in a process: 12 ms."""
    for content in made_jpegs():
        with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
            expected = np.asarray(image.convert("RGB"))
        found = _turbo(content)
        if found is None or not np.array_equal(found, expected):
            return False
    return True


def made_jpegs() -> Iterator[bytes]:
    """Small ones of every common kind: sampled, odd in size, so that edges are filled up, of colours that overflow."""
    noise = random.Random(0)
    width, height = 43, 37
    for mode in ("RGB", "L"):
        small = Image.frombytes(mode, (9, 8), noise.randbytes(9 * 8 * len(mode)))
        image = small.resize((width, height), Image.Resampling.BICUBIC)
        for sampling in ("4:4:4", "4:2:2", "4:2:0") if mode == "RGB" else ("4:4:4",):
            for quality in (10, 75, 95):
                for progressive in (False, True):
                    file = io.BytesIO()
                    image.save(file, "jpeg", subsampling=sampling, quality=quality, progressive=progressive)
                    yield file.getvalue()
