"""What `--pixels` says: how the pixels of each kind of medium are stored. Light: config and manifest ask it.

    u8      bytes after resizing, as they are
    zstd    the same, compressed, medium by medium
    source  the medium's own bytes: the loader decodes and resizes, to the very bytes that u8 has

All of them restore to the same arrays: see neatpack/format/pixels.py.
"""

from typing import NamedTuple

from neatpack.errors import UserError
from neatpack.format.manifest import CODECS, KINDS, SOURCE, U8, ZSTD, Codecs

# Disk hurts most users more than a core does: shards of u8 are 5 to 20 times the pictures that they are made of.
DEFAULT: Codecs = {"image": SOURCE, "video": ZSTD}
# Bytes that a pack's pixels take, against u8: where shards are cut, and nothing else, depends on it. Measured by
# jobs/speed/codecs.py.
SHARES = {U8: 1.0, ZSTD: 0.55, SOURCE: 0.12}


def parse_codecs(text: str, default: Codecs = DEFAULT) -> dict[str, str]:
    """ "zstd", "source" (of pictures; videos by zstd) or by kind, "image=source,video=zstd"; "": as by default.

    A kind that is not named is as by default.
    """
    told = f"--pixels {text!r}"
    if not text:
        return dict(default)
    if text in CODECS:
        return {kind: text if text in can_be else ZSTD for kind, can_be in KINDS.items()}
    found: dict[str, str] = {}
    for part in text.split(","):
        kind, equals, codec = (word.strip() for word in part.partition("="))
        if not equals or kind not in KINDS:
            raise UserError(
                f"{told}: expected one of {', '.join(CODECS)}, or by kind, image=source,video=zstd",
                code="option-invalid",
                option="pixels",
                got=text,
            )
        if codec not in KINDS[kind]:
            more = "; a video's own bytes are not kept" if codec == SOURCE else ""
            raise UserError(
                f"{told}: {kind} is {codec!r}, expected one of {', '.join(KINDS[kind])}{more}",
                code="option-invalid",
                option="pixels",
                got=text,
                kind=kind,
            )
        if kind in found:
            raise UserError(
                f"{told}: {kind} is there twice", code="option-invalid", option="pixels", got=text, kind=kind
            )
        found[kind] = codec
    return {kind: found.get(kind, default[kind]) for kind in KINDS}


class Shares(NamedTuple):
    """About what share of the bytes of media is stored: of pictures, and of all others."""

    pictures: float = 1.0
    others: float = 1.0


AS_THEY_ARE = Shares()


def stored_shares(text: str) -> Shares:
    """Others are taken for videos: sounds are stored as they are, and take twice as much at most."""
    codecs = parse_codecs(text)
    return Shares(SHARES[codecs["image"]], SHARES[codecs["video"]])
