"""Labels of batches that were tokenized elsewhere: by the turn markers of the chat template, or by finding the answers.

Both give token ids at what the assistant says, -100 elsewhere, and nothing is shifted yet.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ...pipeline.config import UserError
from ...pipeline.families.sentinel import derived_markers
from ...pipeline.labels import TurnMarkers, labels_of, target_mask
from ...pipeline.records import IGNORE
from .processor import family_of

# Processor classes whose template writes <|im_start|>assistant … <|im_end|>
_IMSTART_TEMPLATE_PROCESSORS = frozenset((
    "Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor", "Qwen3VLMoeProcessor", "Qwen3OmniMoeProcessor",
    "LlavaOnevisionProcessor",
))  # fmt: skip


def build_labels_from_template(
    input_ids_batch: torch.Tensor, conversations: Sequence[Sequence[Mapping[str, Any]]], processor: Any
) -> torch.Tensor:
    """Labels by the markers around assistant turns: the family's own, or what a sentinel in the template tells.

    Where no markers can be told, `build_labels`.
    """
    markers = _markers(processor)
    rows = []
    for number, ids in enumerate(np.asarray(input_ids_batch)):
        masks = [target_mask(ids, found) for found in markers]
        mask = next((mask for mask in masks if mask.any()), None)
        if mask is None:
            only = torch.as_tensor(ids)[None]
            rows.append(build_labels(only, conversations[number : number + 1], processor)[0])
        else:
            rows.append(torch.from_numpy(labels_of(ids, mask)).long())
    return torch.stack(rows) if rows else torch.zeros_like(input_ids_batch)


def build_labels(
    input_ids_batch: torch.Tensor, conversations: Sequence[Sequence[Mapping[str, Any]]], processor: Any
) -> torch.Tensor:
    """Labels by finding the tokens of each assistant text, one after the other, and the end-of-turn token behind it.

    Fragile where tokenizing in context differs from tokenizing alone: the first token may differ, no other.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    stop = _get_stop_token_id(tokenizer)
    stops = {stop, getattr(tokenizer, "eos_token_id", None)} - {None}
    labels = torch.full_like(input_ids_batch, IGNORE)
    for row, (ids, conversation) in enumerate(zip(input_ids_batch.tolist(), conversations, strict=True)):
        at = 0
        for message in conversation:
            if message.get("role") != "assistant":
                continue
            pattern = tokenizer.encode(_extract_assistant_text(message), add_special_tokens=False)
            start, end = _find_pattern_indices(ids, pattern, at, allow_first_token_mismatch=True)
            if start < 0:
                continue
            end += end < len(ids) and ids[end] in stops
            labels[row, start:end] = input_ids_batch[row, start:end]
            at = end
    return labels


_KNOWN: WeakKeyDictionary[Any, list[TurnMarkers]] = WeakKeyDictionary()


def _markers(processor: Any) -> list[TurnMarkers]:
    """Those of the processor's family, and those that its template shows; told once per processor."""
    if isinstance(processor, str):
        return [family_of(processor).chat.markers]
    if processor in _KNOWN:
        return _KNOWN[processor]
    found = []
    with suppress(UserError):  # a class that no family serves
        found.append(family_of(processor).chat.markers)
    with suppress(UserError):  # a template without markers that could be told
        found.append(derived_markers(getattr(processor, "tokenizer", processor)))
    _KNOWN[processor] = found
    return found


def _find_pattern_indices(
    template: Sequence[int],
    pattern: Sequence[int],
    search_start_index: int = 0,
    allow_first_token_mismatch: bool = False,
) -> tuple[int, int]:
    """Where `pattern` first lies in `template` from an index on: [start, end), or (-1, -1)."""
    length, skipped = len(pattern), int(allow_first_token_mismatch and len(pattern) > 1)
    if not length:
        return -1, -1
    wanted = list(pattern[skipped:])
    for start in range(search_start_index, len(template) - length + 1):
        if list(template[start + skipped : start + length]) == wanted:
            return start, start + length
    return -1, -1


def _extract_assistant_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part.get("text", "") for part in parts if isinstance(part, Mapping) and part.get("type") == "text")


def _decode_single_token(tokenizer: Any, token_id: int) -> str:
    """Some tokenizers take an id, some only a list of ids, some only a tensor of them."""
    for form in (token_id, [token_id]):
        with suppress(TypeError, ValueError, AttributeError):  # what they say of another form than theirs
            return str(tokenizer.decode(form))
    return str(tokenizer.decode(torch.tensor([token_id])))


def _get_assistant_marker(tokenizer: Any) -> list[int] | None:
    """[<|im_start|>, assistant, line break]; None where the tokenizer does not know <|im_start|> as a token."""
    if _single(tokenizer, "<|im_start|>") is None:
        return None
    return list(tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False))


def _get_stop_token_id(tokenizer: Any) -> int | None:
    """<|im_end|>, where the tokenizer has it."""
    return _single(tokenizer, "<|im_end|>")


def _single(tokenizer: Any, token: str) -> int | None:
    ids = tokenizer.encode(token, add_special_tokens=False)
    return ids[0] if len(ids) == 1 and _decode_single_token(tokenizer, ids[0]).strip() == token else None
