"""Which tokens are trained on, and the shift: both written here and nowhere else."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from .records import IGNORE

Array = TypeVar("Array", bound=Any)  # numpy's or torch's


@dataclass(frozen=True, slots=True)
class TurnMarkers:
    """Token ids around an assistant turn, as the chat template writes them.

    `header` introduces the turn (`<|im_start|>assistant`); `tail` tokens after it belong to the header too (the line
    break, which byte-pair encoding may have merged with line breaks of the answer: "\\n" or "\\n\\n"); `end` closes it,
    or one of `other_ends`.
    """

    header: tuple[int, ...]
    end: int
    tail: int = 1
    other_ends: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOn:
    """What is trained on, where a row does not say it of its turns (`loss`)."""

    turns: Literal["all-assistant", "last-assistant", "all"] = "all-assistant"  # all: prompts and template, too
    reasoning: Literal["train", "mask", "drop"] = "train"


AS_USUAL = TrainOn()
Span = tuple[int, int]  # tokens [start, stop)


def target_mask(ids: np.ndarray, markers: TurnMarkers) -> np.ndarray:
    """True for the tokens of assistant text and for the end-of-turn token after it.

    header (7, 8), end 9: ids [7, 5, 1, 4, 9, 1, 7, 8, 1, 4, 4, 9, 1] -> only [4, 4, 9] of the second turn.
    """
    return spans_mask(assistant_spans(ids, markers), len(ids))


def assistant_spans(ids: np.ndarray, markers: TurnMarkers) -> list[Span]:
    """What the assistant says in each of its turns, with the end-of-turn token after it."""
    first, *others = markers.header
    starts = (ids == first).nonzero()[0]  # np.flatnonzero takes twice as long for a row's few hundred tokens
    starts = starts[starts + len(markers.header) <= len(ids)]
    for offset, token in enumerate(others, 1):
        starts = starts[ids[starts + offset] == token]
    closes = ids == markers.end
    for token in markers.other_ends:
        closes |= ids == token
    ends = closes.nonzero()[0]
    starts += len(markers.header) + markers.tail
    after = ends.searchsorted(starts).tolist()
    # A truncated sample may end inside the answer, or inside the header.
    stops = [*(ends + 1).tolist(), len(ids)]
    return [(min(start, len(ids)), stops[end]) for start, end in zip(starts.tolist(), after, strict=True)]


def spans_mask(spans: Iterable[Sequence[int]], length: int) -> np.ndarray:
    """[(1, 3)] of 4 -> [0, 1, 1, 0]."""
    mask = np.zeros(length, dtype=bool)
    for start, stop in spans:
        mask[start:stop] = True
    return mask


def mask_spans(mask: np.ndarray) -> np.ndarray:
    """Int32 [n, 2]: [0, 1, 1, 0, 1] -> [[1, 3], [4, 5]]."""
    padded = np.zeros(len(mask) + 2, dtype=bool)  # np.diff with prepend and append takes twice as long
    padded[1:-1] = mask
    edges: np.ndarray = (padded[1:] != padded[:-1]).nonzero()[0]
    return edges.astype(np.int32).reshape(-1, 2)


def labels_of(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """ids [a, b, c], mask [0, 1, 1] -> [-100, b, c]."""
    return np.where(mask, ids, np.int32(IGNORE)).astype(np.int32)


def shifted(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Next-token prediction, over the last axis of every per-token array: each input sees the next token's label.

    input_ids [a, b, c], labels [-100, b, c] -> [a, b] and [b, c].
    """
    return {name: values[..., 1:] if name == "labels" else values[..., :-1] for name, values in arrays.items()}
