"""Turn markers read off a chat template: what it writes around texts that it cannot know."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jinja2 import TemplateError

from ..config import UserError
from ..labels import TurnMarkers, target_mask

# Words that no template writes.
QUESTIONS = ("Whyquestionone", "Howquestiontwo", "Whenquestionthree")
ANSWERS = ("Becauseanswerone", "Thusanswertwo", "Thenanswerthree")


def derived_markers(processor: Any) -> TurnMarkers:
    """The markers of a processor's (or tokenizer's) chat template, from a conversation of known texts.

    The assistant's header is what stands between a question and its answer, less what closes the question: that much
    a conversation that ends with the question shows. The end of a turn is the token right after an answer. Both must
    be the same in every turn, the end a token of its own that no text has, and a scan for them must find the answers
    and nothing else; otherwise a UserError says why not.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"{name}: turn markers can be derived with a fast tokenizer only (one with a tokenizer.json)",
            code="processor-unsupported",
            part="tokenizer.json",
        )
    if not getattr(processor, "chat_template", None):
        processor = tokenizer  # some processors leave it to their tokenizer
    turns = [turn for pair in zip(QUESTIONS, ANSWERS, strict=True) for turn in pair]
    text = _rendered(processor, turns, name)
    ids, spans = _encoded(tokenizer, text)
    places = [_tokens_of(word, text, spans, name) for word in turns]
    gaps = [ids[before.stop : after.start] for before, after in pairwise(places)]
    introductions = [_without_spaces(gap, tokenizer) for gap in gaps[::2]]
    question_alone = _rendered(processor, turns[:1], name)
    alone, alone_spans = _encoded(tokenizer, question_alone)
    closing = alone[_tokens_of(turns[0], question_alone, alone_spans, name).stop :]
    headers = {_without_closing(gap, closing) for gap in introductions}
    if len(headers) != 1:
        found = ", ".join(repr(tokenizer.decode(header)) for header in sorted(headers))
        raise UserError(
            f"{name}: its chat template introduces answers in several ways ({found}); no family fits it",
            code="processor-unsupported",
            part="header",
        )
    (header,) = headers
    last = ids[places[-1].stop :]
    ends = [gap[0] if gap else -1 for gap in (*gaps[1::2], last)]  # -1: nothing
    if len(set(ends)) > 1 or ends[0] not in tokenizer.added_tokens_decoder:
        found = ", ".join(repr(tokenizer.decode(end) if end >= 0 else "") for end in ends)
        raise UserError(
            f"{name}: its chat template must close every answer by the same special token; it has {found}",
            code="processor-unsupported",
            part="end",
        )
    tail = 0
    while tail < len(header) - 1 and not tokenizer.decode(header[len(header) - 1 - tail]).strip():
        tail += 1  # a line break, which may merge with one of the answer's
    markers = TurnMarkers(header=header[: len(header) - tail], end=ends[0], tail=tail)
    expected = np.zeros(len(ids), dtype=bool)
    for question, gap, answer in zip(places[::2], introductions, places[1::2], strict=True):
        expected[question.stop + len(gap) : answer.stop + 1] = True
    if not header or not np.array_equal(target_mask(np.array(ids), markers), expected):
        raise UserError(
            f"{name}: its chat template writes {tokenizer.decode(header)!r} before an answer, which is not enough to "
            "tell answers from the rest; no family fits it",
            code="processor-unsupported",
            part="header",
        )
    return markers


def _rendered(processor: Any, words: Sequence[str], name: str) -> str:
    """The conversation as text. Most templates take parts; older ones take texts, and print parts as Python does."""
    troubles = []
    for in_parts in (True, False):
        messages = [
            {"role": role, "content": [{"type": "text", "text": word}] if in_parts else word}
            for role, word in zip(("user", "assistant") * len(words), words, strict=False)
        ]
        try:
            text: str = processor.apply_chat_template(messages, tokenize=False)
        except (TemplateError, TypeError, ValueError) as error:  # the template's own refusals among them
            troubles.append(str(error))
            continue
        if all(text.count(word) == 1 for word in words) and "{'type'" not in text:
            return text
        troubles.append("it leaves texts out, or repeats them")
    raise UserError(
        f"{name}: its chat template does not render a plain conversation: {'; '.join(troubles)}",
        code="processor-unsupported",
        part="texts",
    )


def _encoded(tokenizer: Any, text: str) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return tuple(encoded["input_ids"]), encoded["offset_mapping"]


def _tokens_of(word: str, text: str, spans: Sequence[tuple[int, int]], name: str) -> slice:
    """Which tokens a word is made of; a token that also has a space before it is the word's."""
    start = text.index(word)
    stop = start + len(word)
    tokens = [index for index, (begin, end) in enumerate(spans) if begin < stop and end > start]
    if spans[tokens[-1]][1] > stop:
        raise UserError(
            f"{name}: what its chat template writes after a text merges with it; no markers can be found",
            code="processor-unsupported",
            part="end",
        )
    return slice(tokens[0], tokens[-1] + 1)


def _without_spaces(gap: tuple[int, ...], tokenizer: Any) -> tuple[int, ...]:
    """A space before the answer is the answer's: with most words it is one token."""
    while gap and not tokenizer.decode(gap[-1]).strip(" "):
        gap = gap[:-1]
    return gap


def _without_closing(gap: tuple[int, ...], closing: tuple[int, ...]) -> tuple[int, ...]:
    """[end, break, start, role] less [end, break] -> [start, role]; all of it where the closing is all there is."""
    same = 0
    while same < min(len(gap), len(closing)) and gap[same] == closing[same]:
        same += 1
    return gap[same:] or gap
