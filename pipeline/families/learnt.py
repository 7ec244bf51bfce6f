"""What the arrays of a Hugging Face processor are, learnt from its answers: rows of media, and floats that bytes stand
for.

A float array is stored as bytes where all that the probes show of it are values of one table of 256 floats a channel,
made by the arithmetic of transformers from the processor's own rescaling, mean and std. Each medium is held to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from neatpack.format.layout import Delivery, MediaArray, MediaKind
from neatpack.pipeline.families.media_rows import Joined

from ..config import UserError
from ..media.pixels import pixel_table, rescale_table
from .asked import MISFITS, PROBES, Asked, Look, Shown, blank
from .base import Arrays


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """The arrays of each kind of medium, and what their bytes stand for."""

    arrays: dict[MediaKind, dict[str, MediaArray]]
    tables: dict[str, np.ndarray] = field(default_factory=dict)  # by kind, float32 [channels, 256]
    mixes: bool = False  # whether pictures and videos of one conversation are what they are alone, in its order

    @property
    def media(self) -> dict[str, MediaArray]:
        return {name: array for found in self.arrays.values() for name, array in found.items()}


def pattern(look: Look) -> Shown:
    """Noise over 256 blocks, each of another brightness, and another in each channel."""
    *frames, height, width, _ = look.shape
    y, x = np.arange(height)[:, None] * 16 // height, np.arange(width)[None] * 16 // width
    blocks = np.stack([(16 * y + x + shift) % 256 for shift in (0, 85, 170)], axis=-1)
    noise = np.random.default_rng(0).integers(-20, 21, look.shape)
    return Shown(look, np.clip(np.broadcast_to(blocks, (*frames, height, width, 3)) + noise, 0, 255).astype(np.uint8))


def learn(asked: Asked, kind: MediaKind) -> tuple[dict[str, MediaArray], list[Arrays]]:
    """The arrays of a kind, floats as floats, and what the probes gave; a UserError where rows belong to no medium.

    Sides that differ between media are free.
    """
    thing, source = "picture" if kind == "image" else kind, asked.source
    answers = [asked.about([pattern(look)]) for look in PROBES[kind]]
    if not np.array_equal(asked.about([blank(PROBES[kind][0])])[0], answers[0][0]):
        raise UserError(
            f"--processor {source}: tokens of a {thing} depend on its pixels, and lengths are counted without those",
            code="processor-unsupported",
            kind=kind,
        )
    found = [arrays for _, arrays in answers]
    _, two = asked.about([pattern(PROBES[kind][0])] * 2)
    in_batch_axis = set()
    for name, array in found[0].items():
        shape, doubled = array.shape, two[name].shape
        if doubled[:1] == (2 * shape[0],):
            continue
        if shape[0] != 1 or len(shape) < 2 or doubled[:2] != (1, 2 * shape[1]):
            raise UserError(
                f"--processor {source}: {name} is {list(shape)} for a {thing} and {list(doubled)} for two; "
                f"family default needs rows that belong to {thing}s",
                code="processor-unsupported",
                array=name,
            )
        in_batch_axis.add(name)
    found = [{name: array[0] if name in in_batch_axis else array for name, array in arrays.items()}
             for arrays in found]  # fmt: skip
    result: dict[str, MediaArray] = {}
    for name, first in found[0].items():
        shapes = [arrays[name].shape for arrays in found]
        if len({len(shape) for shape in shapes}) > 1:
            raise UserError(
                f"--processor {source}: {name} has as many axes as a {thing} wants: {shapes}",
                code="processor-unsupported",
                array=name,
            )
        row = tuple(sides[0] if len(set(sides)) == 1 else -1 for sides in zip(*shapes, strict=True))[1:]
        counts = ""
        if {shape[0] for shape in shapes} != {1}:  # tiles, patches, frames
            counts = f"num_{name}"
            result[counts] = MediaArray(kinds=(kind,), dtype="int64", row=())
        dtype = {"f": "float32", "b": "uint8"}.get(first.dtype.kind, "int64")
        deliver = Delivery(batch_axis=name in in_batch_axis)
        result[name] = MediaArray(kinds=(kind,), dtype=dtype, row=row, counts=counts, deliver=deliver)
    return result, found


def learnt(asked: Asked, *, as_floats: bool) -> tuple[Learnt, str]:
    """Of pictures, which it must take, and of videos: "" or why not."""
    arrays: dict[MediaKind, dict[str, MediaArray]] = {}
    shown: dict[MediaKind, list[Arrays]] = {}
    why_no_videos = ""
    for kind in asked.kinds:
        try:
            arrays[kind], shown[kind] = learn(asked, kind)
            assert kind == "image" or asked.tells_time in (True, False)  # asked now, while it may refuse
        except UserError as error:
            if kind == "image":
                raise
            why_no_videos = str(error).removeprefix(f"--processor {asked.source}: ")
        except MISFITS as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if kind == "image":
                raise UserError(
                    f"--processor {asked.source}: does not take a question with a picture, and family default tried: "
                    f"{said}",
                    code="processor-unsupported",
                    kind=kind,
                ) from error
            why_no_videos = f"does not take a question with a video, and family default tried: {said}"
    if "video" in arrays and (differ := _shared(arrays)):
        del arrays["video"]
        why_no_videos = f"pictures and videos share {differ}, which has other rows for the one than for the other"
    tables = {} if as_floats else _stored_as_bytes(arrays, shown, asked.processor)
    found = Learnt(arrays=arrays, tables=tables)
    asked.kinds = tuple(arrays)
    asked.in_batch_axis = {name for name, array in found.media.items() if array.deliver.batch_axis}
    return (replace(found, mixes=_mixes(asked, found)) if "video" in arrays else found), why_no_videos


def _shared(arrays: dict[MediaKind, dict[str, MediaArray]]) -> str:
    """Arrays that both kinds fill are of both, in place; the name of one that is not alike."""
    images, videos = arrays["image"], arrays["video"]
    for name in sorted(images.keys() & videos.keys()):
        if replace(images[name], kinds=("video",)) != videos[name]:
            return name
        images[name] = videos[name] = replace(images[name], kinds=("image", "video"))
    return ""


def _mixes(asked: Asked, found: Learnt) -> bool:
    """By what comes of a video, a picture and a video together, each of other pixels."""
    first, second = (pattern(look) for look in PROBES["video"][:1] * 2)
    media = [first, pattern(PROBES["image"][0]), Shown(second.look, 255 - second.pixels)]
    try:
        _, together = asked.about(media)
        alone = [with_counts(asked.about([shown])[1], [shown.look], asked, found.media) for shown in media]
    except MISFITS:
        return False
    as_given = {name: replace(array, dtype=str(together[name].dtype)) for name, array in found.media.items()
                if name in together}  # fmt: skip
    joined = Joined(as_given, alone)
    return all(np.array_equal(together[name], array) for name, array in joined.items())


def with_counts(arrays: Arrays, looks: Sequence[Look], asked: Asked, media: dict[str, MediaArray]) -> Arrays:
    """And how many rows of them each medium has. A ValueError where they do not add up to those that are there."""
    result = dict(arrays)
    for name, array in media.items():
        if array.counts and name in arrays:
            of = [look for look in looks if look.kind in array.kinds]
            rows = [len(arrays[name])] if len(of) == 1 else [asked.shapes(look)[name][0] for look in of]
            if sum(rows) != len(arrays[name]):
                raise ValueError(f"{name} has {len(arrays[name])} rows for the row's media together and {rows} alone")
            result[array.counts] = np.array(rows, dtype=np.int64)
    return result


# Floats that bytes stand for


def _stored_as_bytes(
    arrays: dict[MediaKind, dict[str, MediaArray]], shown: dict[MediaKind, list[Arrays]], processor: Any
) -> dict[str, np.ndarray]:
    """Declares arrays of floats as bytes, in place, where all that was shown of them is in a table."""
    tables: dict[str, np.ndarray] = {}
    for kind, found in arrays.items():
        for name, array in found.items():
            if array.dtype != "float32" or not array.row or min(array.row) < 1 or array.kinds[0] != kind:
                continue
            seen = [answers[name] for of in array.kinds for answers in shown[of]]
            known = [tables[kind]] if kind in tables else candidates(processor, kind)
            for table in known:
                if all(bytes_of(floats, table) is not None for floats in seen):
                    tables[kind] = table
                    stored = replace(array, dtype="uint8", deliver=replace(array.deliver, table=kind))
                    for of in array.kinds:
                        arrays[of][name] = stored
                    break
    return tables


def candidates(processor: Any, kind: MediaKind) -> Iterator[np.ndarray]:
    """Tables by the settings of a processor's part, as each backend of transformers would come to them."""
    part = processor.video_processor if kind == "video" else processor.image_processor
    factor, mean, std = (getattr(part, name, None) for name in ("rescale_factor", "image_mean", "image_std"))
    if not getattr(part, "do_rescale", True) or not isinstance(factor, float):
        return
    for backend in ("torch", "pil"):
        if getattr(part, "do_normalize", False):
            if mean is None or std is None:
                return
            means, stds = (np.broadcast_to(values, (3,)).tolist() for values in (mean, std))
            table = pixel_table(factor, means, stds, backend)
        else:
            table = rescale_table(factor, backend)
        if (table == table[0]).all():  # in whatever order the channels are
            table = table[:1]
        yield table
        yield torch.from_numpy(table).bfloat16().float().numpy()


def bytes_of(floats: np.ndarray, table: np.ndarray) -> np.ndarray | None:
    """The bytes that stand for floats, rows as loaders/pixels.py restores them; None if one has none, to the bit."""
    leading = int(np.prod(floats.shape[: max(1, floats.ndim - 3)]))  # [media, tiles, 3, 448, 448]: media * tiles
    if floats.size % max(1, leading * len(table)):
        return None
    values = np.ascontiguousarray(floats, dtype=np.float32).reshape(leading, len(table), -1)
    first, step = table[:, :1], (table[:, -1:] - table[:, :1]) / np.float32(255)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):  # what is no number is no byte, either
        found: np.ndarray = np.clip(np.rint((values - first) / step), 0, 255).astype(np.uint8)
    for channel, row in enumerate(table.view(np.int32)):
        if not np.array_equal(row[found[:, channel]], values[:, channel].view(np.int32)):
            return None
    return found.reshape(floats.shape)
