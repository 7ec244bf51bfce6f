"""Labels of batches that were tokenized elsewhere: by the turn markers of the chat template, or by finding the answers.

Both give token ids at what the assistant says, -100 elsewhere, and nothing is shifted yet. A conversation in which no
assistant turn says anything has no labels at all: packing skips it as `no_target`. Beside turns that say something, one
that does not is trained to end at once, as packing does.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from neatpack.format.layout import IGNORE

from ...pipeline.config import UserError
from ...pipeline.families.base import Family
from ...pipeline.families.sentinel import derived_markers
from ...pipeline.labels import Span, TurnMarkers, assistant_spans, labels_of, spans_mask, target_mask
from .processor import family_of

logger = logging.getLogger(__name__)

# Processor classes whose template writes <|im_start|>assistant … <|im_end|>
_IMSTART_TEMPLATE_PROCESSORS = frozenset((
    "Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor", "Qwen3VLMoeProcessor", "Qwen3OmniMoeProcessor",
    "LlavaOnevisionProcessor",
))  # fmt: skip
STOP_TOKENS = ("<|im_end|>", "<end_of_turn>", "<|eot_id|>")  # and the tokenizer's own

# Answers without labels, by reason (not_found), and conversations (no_target); of this process
unlabelled: Counter[str] = Counter()

Message = Mapping[str, Any]


def build_labels_from_template(
    input_ids_batch: torch.Tensor, conversations: Sequence[Sequence[Message]], processor: Any
) -> torch.Tensor:
    """Labels by the markers around assistant turns: the family's own, or what a sentinel in the template tells.

    Where no markers can be told, or none is in the ids, `build_labels`.
    """
    markers = _markers(processor)
    rows = []
    for number, (ids, conversation) in enumerate(zip(np.asarray(input_ids_batch), conversations, strict=True)):
        masks = (target_mask(ids, found) for found in markers)
        mask = next((mask for mask in masks if mask.any()), None)
        if mask is None:
            only = torch.as_tensor(ids)[None]
            rows.append(build_labels(only, conversations[number : number + 1], processor)[0])
        else:
            mask &= _has_target(conversation, number)
            rows.append(torch.from_numpy(labels_of(ids, mask)).long())
    return torch.stack(rows) if rows else torch.zeros_like(input_ids_batch)


def build_labels(
    input_ids_batch: torch.Tensor, conversations: Sequence[Sequence[Message]], processor: Any
) -> torch.Tensor:
    """Labels by finding the tokens of each assistant text, and the end-of-turn token if it follows.

    An answer is looked for in its own turn only, where markers tell the turns apart; without markers, behind the turns
    before it and before those after it. Only its own text is trained on, and not what a template writes around it (an
    empty thought). One that is not found, or could be at two places, is not trained on, but logged and counted in
    `unlabelled`.
    """
    markers, tokenizer = _markers(processor), _tokenizer(processor)
    labels = torch.full_like(input_ids_batch, IGNORE)
    for number, (ids, conversation) in enumerate(zip(input_ids_batch.tolist(), conversations, strict=True)):
        if not _has_target(conversation, number):
            continue
        row = _Row(ids, tokenizer)
        mask = torch.from_numpy(spans_mask(_answers(row, conversation, markers, number), len(ids)))
        labels[number][mask] = input_ids_batch[number][mask]
    return labels


def _answers(row: "_Row", conversation: Sequence[Message], markers: Sequence[TurnMarkers], number: int) -> list[Span]:
    """Tokens of what is said in each assistant turn, as far as it is found."""
    texts = [_extract_assistant_text(message) for message in conversation if message.get("role") == "assistant"]
    turns = next((found for found in (row.turns(known) for known in markers) if found), [])
    if len(turns) == len(texts):
        places = [row.inside(text, turn) for text, turn in zip(texts, turns, strict=True)]
    elif turns:  # cut off, or a text that looks like a marker: which turn is which is not told
        places = _in_order([[place for turn in turns if (place := row.inside(text, turn))] for text in texts])
    else:
        places = _behind_prompts(row, conversation)
    for turn, (text, place) in enumerate(zip(texts, places, strict=True)):
        if place is None and text.strip():
            unlabelled["not_found"] += 1
            logger.warning(
                "row %d: its assistant turn %d is not trained on, for its tokens are not found, or in several places: "
                "%.60r", number, turn, text,
            )  # fmt: skip
    return [place for place in places if place is not None]


def _behind_prompts(row: "_Row", conversation: Sequence[Message]) -> list[Span | None]:
    """Without markers: the texts of all turns, prompts too, lie behind each other.

    Of an answer whose prompt is not found, nothing says that it is not a part of the prompt.
    """
    is_answer, candidates = [], []
    for message in conversation:
        answers = message.get("role") == "assistant"
        texts = [_extract_assistant_text(message)] if answers else _texts(message)
        for text in filter(str.strip, texts) if not answers else texts:
            found = row.matches(text, 0, len(row.ids), every_way=True) if text.strip() else []
            closed = [(start, stop + 1) for start, stop in found if row.stops_at(stop)] if answers else []
            is_answer.append(answers)
            candidates.append(closed or found)
    places = _in_order(candidates)
    told = [True, *(place is not None or answers for place, answers in zip(places, is_answer, strict=True))]
    return [place if known else None for place, answers, known in zip(places, is_answer, told, strict=False) if answers]


def _in_order(candidates: Sequence[Sequence[Span]]) -> list[Span | None]:
    """One place for each, behind each other; None where the first possible and the last possible place differ.

    [(0, 1), (4, 5)], [(2, 3)] -> (0, 1), (2, 3): the first cannot be at 4. [(0, 1), (2, 3)] alone -> None.
    """
    first, at = [], 0
    for places in candidates:
        first.append(next((place for place in places if place[0] >= at), None))
        at = first[-1][1] if first[-1] else at
    last: list[Span | None] = []
    before = float("inf")
    for places in reversed(candidates):
        last.append(next((place for place in reversed(places) if place[1] <= before), None))
        before = last[-1][0] if last[-1] else before
    return [one if one == other else None for one, other in zip(first, reversed(last), strict=True)]


class _Row:
    """The ids of one sequence, in which texts are looked for."""

    def __init__(self, ids: list[int], tokenizer: Any) -> None:
        self.ids, self.tokenizer = ids, tokenizer
        self.stops = {*STOP_TOKENS, getattr(tokenizer, "eos_token", None)}

    def turns(self, markers: TurnMarkers) -> list[Span]:
        """What markers enclose; the end-of-turn token, where it is there, is the last token."""
        self.stops.add(self._text(markers.end))
        return assistant_spans(np.array(self.ids), markers)

    def inside(self, text: str, turn: Span) -> Span | None:
        """Where a text lies in an assistant turn; white space that only the turn has at its ends counts as the text's.

        A template may write something before it (a thought), in which the text may stand, too: so the last place, if
        nothing follows there.
        """
        start, stop = turn
        end = stop - self.stops_at(stop - 1)
        if not text.strip():
            return next(first for first in range(start, end + 1) if self._is_blank(first, end)), stop
        found = self.matches(text, start, end)
        if not found:
            return None
        first, last = next((place for place in found if self._is_blank(place[1], end)), found[0])
        return (
            start if self._is_blank(start, first) else first,
            stop if self._is_blank(last, end) else last,
        )

    def matches(self, text: str, start: int, stop: int, *, every_way: bool = False) -> list[Span]:
        """All places of a text among the tokens [start, stop): in the first way of writing it that is there, or in
        every way; then what overlaps a place that was found before is the same one."""
        ids = self.ids[start:stop]
        found: list[Span] = []
        for pattern, is_loose in self._patterns(text):
            if found and (is_loose or not every_way):
                break
            at, more = 0, []
            while True:
                first, last = _find_pattern_indices(ids, pattern, at, allow_first_token_mismatch=is_loose)
                if first < 0:
                    break
                if not is_loose or self._may_be(pattern[0], ids[first]):
                    more.append((start + first, start + last))
                at = first + 1
            found += [place for place in more if not any(place[0] < last and place[1] > first for first, last in found)]
        return sorted(found)

    def _patterns(self, text: str) -> Iterator[tuple[list[int], bool]]:
        """Tokens of a text as it is, with less and with no white space around it, and with another first token.

        Tokens of a text alone and in its context differ at its ends: "\\n" of a template and "\\n Hi" become "\\n\\n"
        and " Hi", a word gets a space before it, and some templates trim what they are given.
        """
        words = text.lstrip()
        blanks = len(text) - len(words)
        ways = [way for end in (None, len(text.rstrip())) for way in (text[:end], text[max(0, blanks - 1) : end])]
        ways += [words, words.rstrip(), " " + words, " " + words.rstrip()]
        patterns = [self.tokenizer.encode(way, add_special_tokens=False) for way in dict.fromkeys(ways)]
        yield from ((pattern, False) for pattern in patterns)
        yield from ((pattern, True) for pattern in patterns)

    def _may_be(self, token: int, found: int) -> bool:
        """Whether a first token is the one that was found, with something before it: "Hi" as " Hi"."""
        text = self._text(token)
        return bool(text) and self._text(found).endswith(text)

    def stops_at(self, at: int) -> bool:
        return at < len(self.ids) and self._text(self.ids[at]) in self.stops

    def _is_blank(self, start: int, stop: int) -> bool:
        """Decoded as a whole: a no-break space may be two tokens, of a byte each. A placeholder of -200 is not."""
        ids = self.ids[start:stop]
        return min(ids, default=0) >= 0 and not str(self.tokenizer.decode(ids)).strip()

    def _text(self, token: int) -> str:
        return _decode_single_token(self.tokenizer, token).strip()


_KNOWN: WeakKeyDictionary[Any, list[TurnMarkers]] = WeakKeyDictionary()


def _markers(processor: Any) -> list[TurnMarkers]:
    """What may stand around assistant turns: of the processor's class or family, or as its template shows."""
    if isinstance(processor, str | Family):
        return [family_of(processor).chat.markers]
    by_name = _imstart_markers(_tokenizer(processor))
    if type(processor).__name__ in _IMSTART_TEMPLATE_PROCESSORS and by_name:
        return [by_name]
    if processor not in _KNOWN:
        _KNOWN[processor] = list(_told_markers(processor))
    return _KNOWN[processor] or ([by_name] if by_name else [])


def _told_markers(processor: Any) -> Iterator[TurnMarkers]:
    """Half a second of work, for some processors."""
    with suppress(UserError):  # a class that no family serves
        yield family_of(processor).chat.markers
    with suppress(UserError):  # a template without markers that could be told
        yield derived_markers(_tokenizer(processor))


def _imstart_markers(tokenizer: Any) -> TurnMarkers | None:
    header, end = _get_assistant_marker(tokenizer), _get_stop_token_id(tokenizer)
    return None if header is None or end is None else TurnMarkers(header=tuple(header[:-1]), end=end, tail=1)


def _tokenizer(processor: Any) -> Any:
    if isinstance(processor, str | Family):
        return family_of(processor).chat.tokenizer
    return getattr(processor, "tokenizer", processor)


def _has_target(conversation: Sequence[Message], number: int) -> bool:
    """Whether any assistant turn says something."""
    answers = [message for message in conversation if message.get("role") == "assistant"]
    if not answers or any(map(_says_something, answers)):
        return True
    unlabelled["no_target"] += 1
    logger.warning("row %d has no labels: no assistant turn of it says anything", number)
    return False


def _says_something(message: Message) -> bool:
    beside = message.get("reasoning_content") or message.get("tool_calls")
    return bool(_extract_assistant_text(message).strip() or beside)


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
        known = start + skipped  # most places differ in their first token already
        if template[known] == wanted[0] and list(template[known : start + length]) == wanted:
            return start, start + length
    return -1, -1


def _extract_assistant_text(message: Message) -> str:
    return "".join(_texts(message))


def _texts(message: Message) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part.get("text", "") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]


def _decode_single_token(tokenizer: Any, token_id: int) -> str:
    """Some tokenizers take an id, some only a list of ids, some only a tensor of them.

    Of no token (a placeholder of -200) it is the number.
    """
    for form in (token_id, [token_id], torch.tensor([token_id])):
        # What they say of another form than theirs, and of numbers that are none of their tokens.
        with suppress(TypeError, ValueError, AttributeError, IndexError, OverflowError):
            return str(tokenizer.decode(form))
    return str(token_id)


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
