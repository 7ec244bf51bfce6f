"""Image rules as JSON, for the manifest, and back: loaders render images of the codec `source` by them.

No name from a file is imported: RULES lists the rules that a file can name. Images are not stored as `source` if their
rule is not listed or does not come back equal.
"""

import dataclasses
import logging
import math
import types
import typing
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from neatpack.errors import OutputError, UserError
from neatpack.format.layout import MediaArray
from neatpack.format.manifest import SOURCE, U8, ZSTD, Pixels, spelled
from neatpack.format.pixels import ImageFile, PixelsChangedError

from ..codecs import parse_codecs
from ..media.image import decode_image, image_size
from ..media.pixels import RESIZE
from ..records import MeasuredMedia, MediaError, MediaRef
from .base import Family, ImageRule

logger = logging.getLogger(__name__)

# Classes by name, and the module of this package that has them: imported where one is asked for.
RULES = {
    "AnyresImages": "llava_onevision",
    "CropImages": "phi4_mm",
    "GemmaImages": "gemma4",
    "GlmImages": "glm4v",
    "K25Images": "kimi_k25",
    "KimiVLImages": "kimi_vl",
    "PatchImages": "rules",
    "PlacedTiles": "idefics3",
    "RowImages": "mistral3",
    "SmolImages": "smolvlm",
    "SquareImages": "gemma3",
    "TiledImages": "internvl",
}
_MOST = 1 << 31  # no number of a rule is larger
# What a rule may raise where the numbers of a forged file make no sense.
_SENSELESS = (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, AssertionError, MemoryError)


class RuleRenderer:
    """Renders images from their original files by the rule that packed them."""

    def __init__(self, rule: ImageRule, resize: str) -> None:
        self._rule, self._resize = rule, resize

    @property
    def arrays(self) -> Mapping[str, MediaArray]:
        try:
            return self._rule.arrays
        except _SENSELESS as error:
            raise OutputError(f"pixels.rule: {type(error).__name__}: {error}", key="pixels.rule") from None

    def count_rows(self, image: ImageFile) -> Mapping[str, int]:
        """Return the rows of each array; none where the rule cannot render such an image."""
        try:
            return self._rule.rows(_as_measured(image))
        except _SENSELESS:
            return {}

    def render(self, image: ImageFile) -> Mapping[str, np.ndarray]:
        medium = _as_measured(image)
        try:
            if (size := image_size(medium.ref)) != (image.height, image.width):
                raise PixelsChangedError(
                    f"{image.width}x{image.height} when packed, now {size[1]}x{size[0]}",
                    got=size,
                    expected=(image.height, image.width),
                )
            return self._rule.render(decode_image(medium.ref), medium, RESIZE[self._resize])
        except MediaError as error:
            raise PixelsChangedError(f"cannot be decoded here: {error}") from None
        except PixelsChangedError:
            raise
        except _SENSELESS as error:
            shape = image._replace(content=image.content[:16])
            raise OutputError(f"{shape} cannot be rendered: {type(error).__name__}: {error}") from None


def load_renderer(pixels: Pixels) -> RuleRenderer:
    """Return what renders the images of an output. Raise OutputError where its manifest has no rule for them."""
    rule, resize = pixels.rule, pixels.resize
    if rule is None or resize not in RESIZE:
        raise OutputError(f"pixels: no rule for images that are resized by {resize!r}", key="pixels", resize=resize)
    return RuleRenderer(restored_rule(rule), resize)


def image_file(medium: MeasuredMedia) -> ImageFile | None:
    """Return an image whose file is held in memory; None for any other medium."""
    held = medium.ref.held
    if medium.ref.kind != "image" or not isinstance(held, bytes):
        return None
    return ImageFile(held, medium.height, medium.width, medium.size, medium.grid)


def _as_measured(image: ImageFile) -> MeasuredMedia:
    ref = MediaRef(kind="image", path="image", held=image.content)
    return MeasuredMedia(ref=ref, height=image.height, width=image.width, size=image.size, grid=image.grid)


def described_rule(rule: ImageRule | None) -> dict[str, Any] | None:
    """As JSON; None where it could not be restored."""
    if rule is None or type(rule).__name__ not in RULES:
        return None
    fields = {f.name: _plain(getattr(rule, f.name)) for f in dataclasses.fields(rule) if f.compare}
    described = {"name": type(rule).__name__, "fields": fields}
    try:
        return described if restored_rule(described) == rule else None
    except ValueError:
        return None


def restored_rule(found: Mapping[str, Any]) -> ImageRule:
    """The rule that a manifest describes, which may say anything. Raises ValueError where it is none."""
    name, given = found.get("name"), found.get("fields")
    if not isinstance(name, str) or name not in RULES or not isinstance(given, dict):
        raise OutputError(
            f"pixels.rule: {str(name)[:60]!r} is unknown; known: {', '.join(RULES)}",
            code="output-damaged",
            key="pixels.rule",
        )
    rule: type[ImageRule] = getattr(import_module(f".{RULES[name]}", __package__), name)
    hints = typing.get_type_hints(rule)
    names = [f.name for f in dataclasses.fields(rule) if f.compare]
    if given.keys() != set(names):
        raise OutputError(
            f"pixels.rule: {name} has {', '.join(names)}, and not {', '.join(map(str, given))[:200]}",
            code="output-damaged",
            key="pixels.rule",
        )
    values = {each: tuple(value) if isinstance(value := given[each], list) else value for each in names}
    for each, value in values.items():
        if not _fits(value, hints[each]):
            raise OutputError(
                f"pixels.rule: {each} of {name} cannot be {str(value)[:60]}", code="output-damaged", key="pixels.rule"
            )
    return rule(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON may stand in a field of this type, as far as rules have types."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return any(_fits(value, each) for each in of)
    if origin is tuple:
        return isinstance(value, tuple) and 1 <= len(value) <= 16 and all(_fits(each, of[0]) for each in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, dict)
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and abs(value) < _MOST
    if kind is int:
        return type(value) is int and 0 <= value < _MOST
    return isinstance(value, kind)


def pixels_for(asked: str, family: Family) -> str:
    """What `--pixels` means for a family, spelled out; what it cannot do is an error if it was asked for, and else left
    out with a word."""
    codecs = parse_codecs(asked)
    has_pixels = {kind for array in family.media.values() if array.deliver.table for kind in array.kinds}
    for kind, codec in codecs.items():
        if kind in family.rules and kind not in has_pixels and codec != U8:
            codecs[kind] = _instead(asked, kind, codec, U8, f"{family.name} stores what its processor gives, as floats")
        elif codec == SOURCE and kind in family.rules and not keeps_sources(family):
            codecs[kind] = _instead(asked, kind, codec, ZSTD, f"{family.name} cannot render pictures at load")
    return spelled(codecs)


def keeps_sources(family: Family) -> bool:
    """Whether loaders can render its pictures: by a rule that is known by name, into one array."""
    from neatpack.pipeline.families.restore import described_rule

    arrays = [array for array in family.media.values() if array.deliver.table and "image" in array.kinds]
    return len(arrays) == 1 and described_rule(family.image) is not None


def _instead(asked: str, kind: str, codec: str, other: str, why: str) -> str:
    if asked:
        raise UserError(
            f"--pixels {asked}: {why}; give --pixels {kind}={other}",
            code="option-conflict",
            option="pixels",
            got=asked,
            kind=kind,
            other=other,
        )
    logger.info("pixels: %s=%s and not %s: %s", kind, other, codec, why)
    return other
