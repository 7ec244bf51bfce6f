"""A chat format, and conversations as token ids by it: one placeholder per medium, literal tokens kept as text."""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..config import UserError
from ..labels import TurnMarkers
from ..records import TEXT, TOKEN_TYPES, Example, MeasuredMedia, MediaKind, MediaRef, Skip, Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatFormat:
    """What the chat template of a family writes around turns and media."""

    assistant_header: str
    header_tail: int = 1  # tokens at its end that may merge with the answer's first: a line break
    end_of_turn: str
    placeholders: Mapping[MediaKind, str]  # the token that stands for a medium
    opening: Mapping[MediaKind, tuple[str, ...]] = field(default_factory=dict)  # right before it, nothing without it
    closing: Mapping[MediaKind, tuple[str, ...]] = field(default_factory=dict)
    # Tokens that give a sequence its structure. Where a text contains one literally, it is encoded as plain text:
    # a user who writes <|image_pad|> must not shift the pictures, nor <|im_start|> open a turn.
    structural_tokens: tuple[str, ...] = ()


class Chat:
    """A chat format together with a tokenizer."""

    def __init__(
        self,
        format_: ChatFormat,
        tokenizer: PreTrainedTokenizerBase,
        *,
        source: str,
        takes: Sequence[MediaKind],
    ) -> None:
        self.format, self.tokenizer, self.source, self.takes = format_, tokenizer, source, tuple(takes)

    # Tokens

    def token_id(self, token: str) -> int:
        ids = self.ids(token)
        if len(ids) != 1:
            raise UserError(f"{self.source}: the tokenizer does not know {token} as one token, and its family needs it")
        return ids[0]

    def ids(self, *texts: str) -> list[int]:
        """Of each text by itself, end to end."""
        return [token for text in texts for token in self.tokenizer.encode(text, add_special_tokens=False)]

    @cached_property
    def placeholder_ids(self) -> dict[MediaKind, int]:
        return {kind: self.token_id(token) for kind, token in self.format.placeholders.items() if kind in self.takes}

    def places(self, ids: np.ndarray) -> list[tuple[int, MediaKind]]:
        """Where media stand in ids with one placeholder each, in order."""
        found = [(int(at), kind) for kind, token in self.placeholder_ids.items() for at in np.flatnonzero(ids == token)]
        return sorted(found)

    def token_types(self, ids: np.ndarray) -> np.ndarray:
        types = np.full(len(ids), TEXT, dtype=np.uint8)
        for kind, token in self.placeholder_ids.items():
            types[ids == token] = TOKEN_TYPES[kind]
        return types

    @property
    def padding_id(self) -> int:
        padding = self.tokenizer.pad_token_id
        return 0 if padding is None else int(padding)

    @cached_property
    def markers(self) -> TurnMarkers:
        ids, tail = self.ids(self.format.assistant_header), self.format.header_tail
        header, merging = ids[: len(ids) - tail], ids[len(ids) - tail :]
        assert str(self.tokenizer.decode(merging)).strip() == "", self.format.assistant_header
        return TurnMarkers(header=tuple(header), end=self.token_id(self.format.end_of_turn), tail=tail)

    def marker_ids(self, kind: MediaKind) -> tuple[list[int], list[int]]:
        """Ids that the template writes before and after the placeholder of a medium."""
        return self.ids(*self.format.opening.get(kind, ())), self.ids(*self.format.closing.get(kind, ()))

    # Conversations

    def encode(
        self, examples: Sequence[Example], media: Sequence[Sequence[MeasuredMedia]]
    ) -> Sequence[np.ndarray | Skip]:
        """Token ids of each conversation by the processor's own chat template, one placeholder per medium.

        int32 arrays. A Skip in the place of one says that the family cannot take the conversation.
        """
        ids: dict[int, np.ndarray] = {}
        texts: dict[int, str] = {}
        for index, example in enumerate(examples):
            turns = self.prepared(example.turns, media[index])
            if any(self._structural.search(text) for text in _texts(turns)):
                ids[index] = self._encode_guarded(turns)
            else:
                texts[index] = self.template(turns)
        if texts:
            for index, encoded in zip(texts, self.tokenizer(list(texts.values()))["input_ids"], strict=True):
                ids[index] = np.array(encoded, dtype=np.int32)
        return [ids[index] for index in range(len(examples))]

    def prepared(self, turns: Sequence[Turn], media: Sequence[MeasuredMedia]) -> Sequence[Turn]:
        """The turns as the template is to see them, where a family changes them first."""
        return turns

    def template(self, turns: Sequence[Turn]) -> str:
        """A conversation as text, by the processor's chat template."""
        text = self.tokenizer.apply_chat_template(self.messages(turns), tokenize=False)
        assert isinstance(text, str)
        return text

    def messages(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        """A conversation in the form that chat templates take."""
        return [
            {
                "role": turn.role,
                "content": [
                    {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind}
                    for part in turn.parts
                ],
            }
            for turn in turns
        ]

    @cached_property
    def _structural(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.format.structural_tokens)) or r"(?!)")

    def _encode_guarded(self, turns: Sequence[Turn]) -> np.ndarray:
        """As `encode`, for a conversation whose text contains structural tokens literally.

        Each of them is exchanged for a mark before templating; the text between the marks is encoded as usual, and a
        literal token in two halves, neither of which is special.
        """
        mark = "\ue000"
        while any(mark in text for text in _texts(turns)):
            mark += "\ue000"
        literals: list[str] = []

        def guard(part: str | MediaRef) -> str | MediaRef:
            if not isinstance(part, str):
                return part
            literals.extend(self._structural.findall(part))
            return self._structural.sub(mark, part)

        guarded = [Turn(role=turn.role, parts=tuple(map(guard, turn.parts))) for turn in turns]
        pieces = self.template(guarded).split(mark)
        ids: list[int] = list(self.tokenizer(pieces[0])["input_ids"])
        for literal, piece in zip(literals, pieces[1:], strict=True):
            ids += self.ids(literal[:2], literal[2:], piece)
        return np.array(ids, dtype=np.int32)

    # Identity

    def identity(self) -> list[Any]:
        """Everything that shapes ids: format, class, tokenizer and template."""
        return [type(self).__name__, self.format, _tokenizer_identity(self.tokenizer), self.tokenizer.chat_template]


def _tokenizer_identity(tokenizer: PreTrainedTokenizerBase) -> Any:
    """The whole of a fast tokenizer; of one in Python its vocabulary and its code."""
    if not hasattr(tokenizer, "backend_tokenizer"):
        return [tokenizer.get_vocab(), inspect.getsource(type(tokenizer))]
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    for setting in ("truncation", "padding"):  # left there by whoever called the tokenizer last
        backend.pop(setting)
    return backend


def _texts(turns: Sequence[Turn]) -> list[str]:
    return [part for turn in turns for part in turn.parts if isinstance(part, str)]
