"""Which tokens of a conversation or document are trained on: what its row asks for, else what the config says."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from neatpack.format.layout import TEXT

from ..families.chat import Chat
from ..labels import AS_USUAL, Span, TrainOn, assistant_spans, mask_spans, spans_mask
from ..records import Example, Skip, Turn

_NO_SPACE = re.compile(r"\S")


def asked_loss(example: Example) -> str:
    """What a row asks of its assistant turns, a letter each: "1" trained, "0" not, "." as the config says.

    "" if it asks nothing of any. A text, for it goes into the JSON of packs, where readers want one type for a key.
    """
    asked = [turn.loss for turn in example.turns if turn.role == "assistant"]
    if asked.count(None) == len(asked):
        return ""
    return "".join({True: "1", False: "0", None: "."}[loss] for loss in asked)


def is_trained(number: int, num_turns: int, asked: str, train_on: TrainOn) -> bool:
    """Whether assistant turn `number` is trained on; `asked` as `asked_loss` gives it."""
    if asked and asked[number] != ".":
        return asked[number] == "1"
    return train_on.turns != "last-assistant" or number == num_turns - 1


def target_spans(ids: np.ndarray, example: Example, chat: Chat, train_on: TrainOn) -> np.ndarray | Skip:
    """The tokens that are trained on, as spans, int32 [n, 2], of ids as `chat.encode` gives them."""
    if example.is_document:
        return _some(mask_spans(_without_media(ids, chat)), "no text in the document")
    if skip := _cannot_be_told(example, train_on):
        return skip
    spans, answers = assistant_spans(ids, chat.markers), [turn for turn in example.turns if turn.role == "assistant"]
    asked = asked_loss(example)
    if len(spans) != len(answers):
        return Skip(
            reason="bad_row",
            detail=f"the chat template writes {len(spans)} assistant turns of {len(answers)}; which is which is not "
            "told: join turns of the assistant that follow each other",
            fields={"got": len(spans), "expected": len(answers)},
        )
    trained = [number for number in range(len(answers)) if is_trained(number, len(answers), asked, train_on)]
    if not any([answers[number].says_something for number in trained]):
        return Skip(reason="no_target", detail="no assistant turn that is trained on says anything")
    targets = [spans[number] for number in trained]
    with_media = not all([isinstance(part, str) for turn in answers for part in turn.parts])
    if train_on == AS_USUAL and not with_media and _are_apart(targets):  # nearly all
        return _some(np.array(targets, dtype=np.int32), "nothing is said")
    if train_on.turns == "all":
        mask, are_trained = _without_media(ids, chat), set(trained)
        for number, (start, stop) in enumerate(spans):
            mask[start:stop] &= number in are_trained
    else:
        mask = spans_mask(targets, len(ids))
        if with_media:
            mask &= _without_media(ids, chat)
    if train_on.reasoning == "mask":
        for start, stop in spans:
            for first, last in _reasoning(ids[start:stop], chat):
                mask[start + first : start + last] = False
    return _some(mask_spans(mask), "nothing but reasoning is said, and that is masked")


def _are_apart(spans: Sequence[Span]) -> bool:
    """Whether they are spans as `mask_spans` gives them: in order, none empty, and something between any two."""
    end = -1
    for start, stop in spans:
        if not end < start < stop:
            return False
        end = stop
    return True


def without_reasoning(example: Example, chat: Chat) -> Example:
    """For --reasoning drop: neither what rows keep apart, nor what stands in the text between the template's tags."""

    def without(turn: Turn) -> Turn:
        if turn.role != "assistant":
            return turn
        parts = tuple(
            _without_tagged(part, *chat.format.reasoning) if isinstance(part, str) else part for part in turn.parts
        )
        return replace(turn, reasoning="", parts=parts)

    return replace(example, turns=tuple(map(without, example.turns)))


def _without_tagged(text: str, opening: str, closing: str) -> str:
    """Remove what stands between the tags, with the tags and the white space around them; unclosed tags stay.

    "Hm. <think>So.</think> Yes." -> "Hm.Yes.". A regular expression would take a time that grows with the square of the
    number of spaces, or of unclosed tags.
    """
    pieces, at = [], 0
    while (start := text.find(opening, at)) >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        pieces.append(text[at:start].rstrip())
        at = _after_spaces(text, end + len(closing))
    return "".join([*pieces, text[at:]])


def _after_spaces(text: str, start: int) -> int:
    """Return the place of the first character at or after `start` that is no white space."""
    found = _NO_SPACE.search(text, start)
    return found.start() if found else len(text)


def _some(spans: np.ndarray, problem: str) -> np.ndarray | Skip:
    """The first token is no target: nothing comes before it that it could be told from."""
    return spans if len(spans) and spans[-1, 1] > 1 else Skip(reason="no_target", detail=problem)


def _cannot_be_told(example: Example, train_on: TrainOn) -> Skip | None:
    """A wish for a turn that is not the assistant's: where it begins and ends is not known."""
    for number, turn in enumerate(example.turns):
        if turn.role == "assistant" or turn.loss is None or turn.loss == (train_on.turns == "all"):
            continue
        wish, remedy = ("trained on", "--train-on all trains on all turns") if turn.loss else ("masked", "")
        return Skip(
            reason="bad_row",
            detail=f"turn {number}: is to be {wish}, but loss can be said of assistant turns only"
            + (f"; {remedy}" if remedy else ""),
            fields={"turn": number, "loss": turn.loss},
        )
    return None


def _without_media(ids: np.ndarray, chat: Chat) -> np.ndarray:
    """All but the tokens of media, and the markers around them."""
    mask: np.ndarray = chat.token_types(ids) == TEXT
    for place, kind in chat.places(ids):
        before, after = chat.marker_ids(kind)
        if before and ids[max(0, place - len(before)) : place].tolist() == before:
            mask[place - len(before) : place] = False
        if after and ids[place + 1 : place + 1 + len(after)].tolist() == after:
            mask[place + 1 : place + 1 + len(after)] = False
    return mask


def _reasoning(ids: np.ndarray, chat: Chat) -> Iterator[Span]:
    """Tokens of reasoning in an answer, with its tags and the white space after it.

    Found in the text of the tokens, one by one: a tag may be one token or several, and its ends may have merged with
    what is beside them. A token that is partly reasoning is reasoning. What is not closed goes on to the end.
    """
    texts = [str(chat.tokenizer.decode([token])) for token in ids.tolist()]
    ends = np.cumsum([len(text) for text in texts])
    opening, closing = map(re.escape, chat.format.reasoning)
    for found in re.finditer(rf"{opening}.*?(?:{closing}\s*|\Z)", "".join(texts), re.DOTALL):
        first = int(np.searchsorted(ends, found.start(), side="right"))
        last = int(np.searchsorted(ends, found.end(), side="left")) + 1
        yield first, min(last, len(ids))
