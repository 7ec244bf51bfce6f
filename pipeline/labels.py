"""Which tokens are trained on, and the shift: both written here and nowhere else."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np

from neatpack.format.layout import IGNORE

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
    needles: tuple[bytes, ...] = field(init=False, repr=False, compare=False)  # header and ends, for `token_at`

    def __post_init__(self) -> None:
        needles = [as_bytes(tokens) for tokens in (self.header, (self.end,), *zip(self.other_ends))]
        object.__setattr__(self, "needles", tuple(needles))


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
    content, length = as_bytes(ids), len(ids)
    header, *closing = markers.needles
    skipped = len(markers.header) + markers.tail
    ends = [-1] * len(closing)  # where each of them comes next, as far as it was looked for; `length`: nowhere
    spans: list[Span] = []
    at = token_at(content, header, 0)
    while at >= 0:
        start = at + skipped
        for number, token in enumerate(closing):
            if ends[number] < start:
                found = token_at(content, token, start)
                ends[number] = length if found < 0 else found
        # A truncated sample may end inside the answer, or inside the header.
        spans.append((min(start, length), min(min(ends) + 1, length)))
        at = token_at(content, header, at + 1)
    return spans


def as_bytes(ids: np.ndarray | Sequence[int]) -> bytes:
    """Tokens as `token_at` searches them: of a row's few hundred, numpy takes longer for any single step."""
    return np.asarray(ids, dtype=np.int32).tobytes()


def token_at(content: bytes, tokens: bytes, start: int) -> int:
    """The first place at or after `start`, counted in tokens, where these come; -1: nowhere."""
    at = content.find(tokens, 4 * start)
    while at & 3 and at >= 0:  # not a token but the end of one and the beginning of the next
        at = content.find(tokens, at + 1)
    return at >> 2


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


def disjoint_spans_mask(spans: np.ndarray, length: int) -> np.ndarray:
    """As `spans_mask`, of many at once, [n, 2], in order: none begins before the one before it ends."""
    edges = np.empty(spans.size + 2, dtype=np.int64)
    edges[0], edges[1:-1], edges[-1] = 0, spans.reshape(-1), length
    is_inside = np.zeros(spans.size + 1, dtype=bool)  # each run of tokens between two edges
    is_inside[1::2] = True
    return is_inside.repeat(edges[1:] - edges[:-1])


def labels_of(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """ids [a, b, c], mask [0, 1, 1] -> [-100, b, c]."""
    return np.where(mask, ids, np.int32(IGNORE)).astype(np.int32, copy=False)


def shifted(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Next-token prediction, over the last axis of every per-token array: each input sees the next token's label.

    input_ids [a, b, c], labels [-100, b, c] -> [a, b] and [b, c].
    """
    return {name: values[..., 1:] if name == "labels" else values[..., :-1] for name, values in arrays.items()}


def shifted_together(arrays: Mapping[str, np.ndarray], ends: np.ndarray) -> dict[str, np.ndarray]:
    """As `shifted`, of documents that lie end to end, and end there: each loses a token."""
    is_kept = np.ones(len(arrays["labels"]), dtype=bool)
    is_kept[ends - 1] = False  # the last of all, too: what is kept has a token after it
    return {name: values[1:][is_kept[:-1]] if name == "labels" else values[is_kept] for name, values in arrays.items()}


def shifted_spans_together(spans: np.ndarray, counts: np.ndarray) -> list[list[list[int]]]:
    """Spans of tokens that are trained on, as those of the labels after the shift; of documents with so many each.

    [[0, 3], [5, 6], [0, 1]], of which 2 and 1 -> [[0, 2], [4, 5]] and [].
    """
    moved = np.maximum(spans - 1, 0)
    is_left = spans[:, 1] > 1
    ends = np.concatenate([[0], is_left.cumsum()])[np.cumsum(counts, dtype=np.int64)].tolist()
    left = moved[is_left].tolist()
    return [left[start:end] for start, end in zip([0, *ends], ends, strict=False)]
