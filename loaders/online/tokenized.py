"""One conversation as tensors, before the shift: by the functions that the offline path packs with."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from neatpack.errors import NeatpackError
from neatpack.format.layout import MediaKind

from ...pipeline.families.base import Family
from ...pipeline.ingest.conversation import from_conversation
from ...pipeline.measure.length import measure, truncated
from ...pipeline.records import Measured, MediaError, Sample, Skip
from ...pipeline.render.sample import fake_image_sample, render_whole
from ..media import LAYOUT_KEY
from ..pixels import RESTORE_KEY, STORED_KEY, Stored, restored, stored_arrays

PER_TOKEN = ("input_ids", "attention_mask", "labels", "mm_token_type_ids", "position_ids")
RESIZE = "torch"  # as the HF processors' default backend does


class SampleError(NeatpackError, ValueError):
    """A sample that cannot be used, for a reason of the ledger's list."""

    def __init__(self, skip: Skip) -> None:
        super().__init__(f"{skip.reason}: {skip.detail}", code="row-invalid", reason=skip.reason)
        self.reason = skip.reason


def measured_example(example: Mapping[str, Any], family: Family, *, needs_target: bool = False) -> Measured:
    """The exact length of a conversation, and what its media will be; one without an answer may only be asked about."""
    parsed = from_conversation(example)
    (measured,) = measure([parsed], family, needs_target=needs_target) if not isinstance(parsed, Skip) else (parsed,)
    if isinstance(measured, Skip):
        raise SampleError(measured)
    return measured


def tokenized_example(
    example: Mapping[str, Any],
    family: Family,
    *,
    max_length: int | None = None,
    truncate: bool = False,
    needs_target: bool = False,
    restore: bool = True,
) -> dict[str, Any]:
    """{"conversation": …} -> input_ids, attention_mask, labels, position_ids and media of one sample; nothing shifted.

    One of more than `max_length` tokens is cut at its end, outside of its media (`truncate`), or a SampleError. One
    without an answer has labels that are all masked, or is a SampleError (`needs_target`). restore: False leaves pixels
    as bytes, for who lays samples end to end.
    """
    measured = measured_example(example, family, needs_target=needs_target)
    length = measured.tokens + 1  # before the shift
    if max_length is not None and length > max_length:
        cut = truncated(measured, max_length - 1, family) if truncate else None
        if cut is None:
            raise SampleError(
                Skip(
                    reason="overlong",
                    detail=f"{length} tokens, max_length is {max_length}",
                    fields={"got": length, "most": max_length},
                )
            )
        measured = cut
    try:
        return as_tensors(render_whole(measured, family, RESIZE), measured.num_media, family, restore=restore)
    except MediaError as error:
        raise SampleError(error.skip) from error


def as_tensors(
    sample: Sample, num_media: Mapping[MediaKind, int], family: Family, *, restore: bool = True
) -> dict[str, Any]:
    # Copies: ids may be a tokenizer's own memory, which nobody may write to.
    text = {name: _integers(torch.from_numpy(np.array(array))) for name, array in sample.per_token.items()}
    return {
        **text,
        "attention_mask": torch.ones_like(text["input_ids"]),
        **media_tensors(sample.media, family, restore=restore),
        LAYOUT_KEY: family.media,
        **{f"n_{kind}s": count for kind, count in num_media.items()},
    }


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers as torch's own kind of them; positions are fractions in some families."""
    return tensor if tensor.is_floating_point() else tensor.long()


def media_tensors(media: Mapping[str, np.ndarray], family: Family, *, restore: bool = True) -> dict[str, Any]:
    """Floats as the HF processor gives them; or bytes, and how they become those."""
    stored = _stored(family)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in media.items()}
    small = {name: _integers(tensor) for name, tensor in tensors.items() if name not in stored}
    pixels = {name: tensors[name] for name in stored if name in tensors}
    if not restore:
        return small | pixels | {STORED_KEY: stored, RESTORE_KEY: torch.float32}
    return small | {name: restored(rows, stored[name], torch.float32) for name, rows in pixels.items()}


def without_empty_media(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample without the arrays of media that it does not have: models want none of them."""
    empty = {name for name in sample[LAYOUT_KEY] if name in sample and not len(sample[name])}
    return {name: value for name, value in sample.items() if name not in empty}


def with_fake_image(sample: dict[str, Any], family: Family) -> dict[str, Any]:
    """A sample without image or video, and behind it the smallest image, unseen and untrained: it makes the vision
    tower run in every step. A sample that has one is given back as it is."""
    if not family.wants_fake_image(sample["n_images"] + sample["n_videos"], sample["n_audios"]):
        return sample
    fake = fake_image_document(family)
    fake["attention_mask"] = torch.zeros_like(fake["attention_mask"])
    joined = {name: torch.cat([sample[name], fake[name]], dim=-1) for name in PER_TOKEN}
    images = {name: fake[name] for name, array in family.media.items() if "image" in array.kinds}
    return sample | joined | images | {"n_images": 1}


def fake_image_document(family: Family, *, restore: bool = True) -> dict[str, Any]:
    """The fake image as a document of a pack, which needs no shift: it has no targets."""
    return as_tensors(fake_image_sample(family), {"image": 1, "video": 0, "audio": 0}, family, restore=restore)


@lru_cache(maxsize=8)
def _stored(family: Family) -> dict[str, Stored]:
    return stored_arrays(family.media, family.tables(RESIZE))


def row(values: Any) -> torch.Tensor:
    """[1, L] or [L] -> [L]."""
    tensor = torch.as_tensor(values)
    return tensor[0] if tensor.ndim == 2 else tensor
