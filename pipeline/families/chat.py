"""A chat format, and conversations as token ids by it: one placeholder per medium, literal tokens kept as text."""

import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from neatpack.format.layout import MediaKind
from neatpack.format.manifest import fingerprint

from ..config import UserError
from ..labels import TurnMarkers, as_bytes, assistant_spans, token_at
from ..records import Example, MeasuredMedia, Skip, Turn
from ..token_types import token_types
from .template import template_of
from .tokens import Encoder, TextRefused, encoder_of

if TYPE_CHECKING:  # a loader that renders pictures imports families, and no tokenizer
    from transformers import PreTrainedTokenizerBase

_SENTINEL = "Sentinelword"  # that no template writes by itself
_MARK = "\ue000"
_RUNS_OF_MARKS = re.compile(f"{_MARK}+")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatFormat:
    """What the chat template of a family writes around turns and media."""

    assistant_header: str
    header_tail: int = 1  # tokens at its end that may merge with the answer's first: a line break
    end_of_turn: str
    other_ends: tuple[str, ...] = ()  # of a turn: where the next role's token closes it, there are several
    placeholders: Mapping[MediaKind, str]  # the token that stands for a medium
    opening: Mapping[MediaKind, tuple[str, ...]] = field(default_factory=dict)  # right before it, nothing without it
    closing: Mapping[MediaKind, tuple[str, ...]] = field(default_factory=dict)
    video_span: tuple[str, ...] = ()  # two tokens between which pictures are frames of a video, and written like them
    reasoning: tuple[str, str] = ("<think>", "</think>")  # what stands around reasoning in an assistant turn
    # Tokens that give a sequence its structure. Where a text contains one literally, it is encoded as plain text:
    # a user who writes <|image_pad|> must not shift the pictures, nor <|im_start|> open a turn.
    structural_tokens: tuple[str, ...] = ()


class Chat:
    """A chat format together with a tokenizer."""

    expands_media: ClassVar[bool] = False  # whether ids have all tokens of media already, and not a placeholder each

    def __init__(
        self,
        format_: ChatFormat,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        source: str,
        takes: Sequence[MediaKind],
    ) -> None:
        self.format, self.tokenizer, self.source, self.takes = format_, tokenizer, source, tuple(takes)

    # Tokens

    def token_id(self, token: str) -> int:
        ids = self.ids(token)
        if len(ids) != 1:
            raise UserError(
                f"{self.source}: the tokenizer does not know {token} as one token, and its family needs it",
                code="processor-unsupported",
                token=token,
            )
        return ids[0]

    def ids(self, *texts: str) -> list[int]:
        """Of each text by itself, end to end."""
        return [token for text in texts for token in self.tokenizer.encode(text, add_special_tokens=False)]

    @cached_property
    def encoder(self) -> Encoder:
        """For conversations. Chosen once, where there are any: that takes as long as loading the tokenizer."""
        return encoder_of(self.tokenizer)

    @cached_property
    def placeholder_ids(self) -> dict[MediaKind, int]:
        return {kind: self.token_id(token) for kind, token in self.format.placeholders.items() if kind in self.takes}

    def places(self, ids: np.ndarray) -> list[tuple[int, MediaKind]]:
        """Where media stand in ids with one placeholder each, in order."""
        content, found = as_bytes(ids), []
        for kind, token in self._placeholder_bytes:
            at = token_at(content, token, 0)
            while at >= 0:
                found.append((at, kind))
                at = token_at(content, token, at + 1)
        return sorted(found)

    @cached_property
    def _placeholder_bytes(self) -> list[tuple[MediaKind, bytes]]:
        return [(kind, as_bytes([token])) for kind, token in self.placeholder_ids.items()]

    def token_types(self, ids: np.ndarray) -> np.ndarray:
        return token_types(ids, self.placeholder_ids, self.video_span_ids)

    @cached_property
    def video_span_ids(self) -> list[int]:
        return [self.token_id(token) for token in self.format.video_span]

    @property
    def padding_id(self) -> int:
        padding = self.tokenizer.pad_token_id
        return 0 if padding is None else int(padding)

    @cached_property
    def markers(self) -> TurnMarkers:
        ids, tail = self.ids(self.format.assistant_header), self.format.header_tail
        header, merging = ids[: len(ids) - tail], ids[len(ids) - tail :]
        assert str(self.tokenizer.decode(merging)).strip() == "", self.format.assistant_header
        end, *others = map(self.token_id, (self.format.end_of_turn, *self.format.other_ends))
        return TurnMarkers(header=tuple(header), end=end, tail=tail, other_ends=tuple(others))

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
        from jinja2 import TemplateError

        ids: dict[int, np.ndarray | Skip] = {}
        texts: dict[int, str] = {}
        for index, example in enumerate(examples):
            if untold := self.untold(example):
                ids[index] = Skip(reason="bad_row", detail=untold)
                continue
            prepared = self.prepared(example, media[index])
            try:
                if any(map(self._structural.search, _texts(prepared))):
                    ids[index] = self._encode_guarded(prepared)
                else:
                    texts[index] = self.text(prepared)
            except TemplateError as error:
                ids[index] = Skip(reason="bad_row", detail=f"the chat template refuses it: {error}")
            except TextRefused as error:
                ids[index] = Skip(reason="bad_row", detail=str(error))
        if texts:
            ids.update(zip(texts, self._encode_texts(list(texts.values())), strict=True))
        return [ids[index] for index in range(len(examples))]

    def _encode_texts(self, texts: Sequence[str]) -> Sequence[np.ndarray | Skip]:
        try:
            return self.encoder.encode(texts)
        except TextRefused as error:
            if len(texts) == 1:
                return [Skip(reason="bad_row", detail=str(error))]
        return [found for text in texts for found in self._encode_texts([text])]

    def text(self, example: Example) -> str:
        """A conversation by the chat template; a document as it is, between what the tokenizer begins and ends one by.

        What the tokenizer writes itself when it encodes (a bos token, mostly) is left to it.
        """
        if not example.is_document:
            return self.template(example.turns, example.tools)
        (document,) = example.turns
        words = "".join(part if isinstance(part, str) else self.medium_text(part.kind) for part in document.parts)
        before, after = self._document_ends
        return before + words + after

    def medium_text(self, kind: MediaKind) -> str:
        """A medium outside of a conversation, as the template writes it inside."""
        markers = self.format.opening.get(kind, ()), self.format.closing.get(kind, ())
        return "".join((*markers[0], self.format.placeholders[kind], *markers[1]))

    @cached_property
    def _document_ends(self) -> tuple[str, str]:
        """bos and eos, where the tokenizer has them and does not write them by itself."""
        written = self.tokenizer("a")["input_ids"]
        bos, eos = self.tokenizer.bos_token, self.tokenizer.eos_token
        has_bos, has_eos = written[0] == self.tokenizer.bos_token_id, written[-1] == self.tokenizer.eos_token_id
        return "" if bos is None or has_bos else str(bos), "" if eos is None or has_eos else str(eos)

    # What a template writes

    def untold(self, example: Example) -> str:
        """What a conversation says that the chat template would leave out in silence, in words; "": nothing."""
        if not example.tools and not any(
            [turn.tool_calls or turn.reasoning or turn.role in ("tool", "system") for turn in example.turns]
        ):
            return ""  # nearly all
        said = {
            "tools": bool(example.tools),
            "tool_calls": any(turn.tool_calls for turn in example.turns),
            "reasoning_content": any(turn.reasoning for turn in example.turns),
            "a turn of role tool": any(turn.role == "tool" for turn in example.turns),
            "a turn of role system": any(turn.role == "system" for turn in example.turns),
        }
        untold = [name for name, is_said in said.items() if is_said and name not in self._written]
        if not untold:
            return ""
        remedy = "--reasoning drop leaves it out" if untold == ["reasoning_content"] else "take one that does"
        return f"{', '.join(untold)}: the chat template of {os.path.basename(self.source)} does not write it; {remedy}"

    @cached_property
    def _written(self) -> frozenset[str]:
        """Which of these the chat template writes, where the markers still find what the assistant says."""
        call = {"type": "function", "function": {"name": _SENTINEL, "arguments": {"a": "b"}}}
        parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "d"}}, "required": ["a"]}
        tool = {
            "type": "function",
            "function": {"name": _SENTINEL, "description": "d", "parameters": parameters},
        }
        asked, answer = Turn(role="user", parts=("Why",)), Turn(role="assistant", parts=("Because",))
        plain_call = replace(answer, tool_calls=({"type": "function", "function": {"name": "f", "arguments": {}}},))
        probes = {
            "tools": Example(turns=(asked, answer), tools=(tool,)),
            "tool_calls": Example(turns=(asked, replace(answer, tool_calls=(call,)))),
            "reasoning_content": Example(turns=(asked, replace(answer, reasoning=_SENTINEL))),
            "a turn of role tool": Example(
                turns=(asked, plain_call, Turn(role="tool", parts=(_SENTINEL,), name="f", call_id="1"), answer)
            ),
            # Pixtral's writes it before a last question, and so never before a last answer.
            "a turn of role system": Example(turns=(Turn(role="system", parts=(_SENTINEL,)), asked, answer)),
        }
        return frozenset(name for name, probe in probes.items() if self._writes(probe))

    def _writes(self, probe: Example) -> bool:
        from jinja2 import TemplateError

        try:
            text = self.text(self.prepared(probe, ()))
        except TemplateError:
            return False
        spans = assistant_spans(self.encoder.encode([text])[0], self.markers)
        return _SENTINEL in text and len(spans) == sum(turn.role == "assistant" for turn in probe.turns)

    def prepared(self, example: Example, media: Sequence[MeasuredMedia]) -> Example:
        """The conversation as the template is to see it, where a family changes it first."""
        return example

    def template(self, turns: Sequence[Turn], tools: Sequence[Any] = ()) -> str:
        """A conversation as text, by the processor's chat template.

        Where both the template and the tokenizer write a bos token, it is left to the tokenizer.
        """
        text = self.written(self.messages(turns), tools)
        return text.removeprefix(str(self.tokenizer.bos_token)) if self._adds_bos else text

    @cached_property
    def written(self) -> Callable[[list[dict[str, Any]], Sequence[Any]], str]:
        return template_of(self.tokenizer)

    @cached_property
    def _adds_bos(self) -> bool:
        bos = self.tokenizer.bos_token_id
        return bos is not None and bool(self.tokenizer("")["input_ids"][:1] == [bos])

    def messages(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        """A conversation in the form that chat templates take."""
        return [{"role": turn.role, "content": self.content(turn), **_asides(turn)} for turn in turns]

    def content(self, turn: Turn) -> str | list[dict[str, Any]]:
        """Parts, as templates of multimodal models take them.

        What a tool answers is a text, and so is what an assistant says beside calls: templates ask whether there is
        any, and a list of one empty text would be some.
        """
        if turn.role == "tool" or turn.tool_calls:
            texts = [part for part in turn.parts if isinstance(part, str)]
            if len(texts) == len(turn.parts):
                return "".join(texts)
        return [{"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind} for part in turn.parts]

    @cached_property
    def _structural(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.format.structural_tokens)) or r"(?!)")

    def _encode_guarded(self, example: Example) -> np.ndarray:
        """As `encode`, for a conversation whose text contains structural tokens literally.

        Each of them is exchanged for a numbered mark before templating; the text between the marks is encoded as usual,
        and a literal token in two halves, neither of which is special. A template may leave marks out (reasoning of
        earlier turns, in some).
        """
        runs = (run for text in _texts(example) for run in _RUNS_OF_MARKS.findall(text))
        mark = _MARK * (1 + max(map(len, runs), default=0))
        literals: list[str] = []

        def marked(found: re.Match[str]) -> str:
            literals.append(found[0])
            return f"{mark}{len(literals) - 1}{mark}"

        text = self.text(_with_texts(example, lambda text: self._structural.sub(marked, text)))
        first, *rest = re.split(f"{mark}([0-9]+){mark}", text)  # text, number, text, number, text
        ids: list[int] = self.encoder.encode([first])[0].tolist()
        for number, piece in zip(rest[::2], rest[1::2], strict=True):
            literal = literals[int(number)]
            ids += [token for text in (literal[:2], literal[2:], piece) for token in self.encoder.bare(text)]
        return np.array(ids, dtype=np.int32)

    # Identity

    def identity(self) -> list[Any]:
        """Everything that shapes ids: format, class, tokenizer and template."""
        return [type(self).__name__, self.format, tokenizer_identity(self.tokenizer), self.tokenizer.chat_template]


def tokenizer_identity(tokenizer: "PreTrainedTokenizerBase") -> Any:
    """The whole of a fast tokenizer; of one in Python its vocabulary and its code. As a digest: it has 150,000 entries.

    Truncation and padding are left there by whoever called the tokenizer last, and stand before all else:
    {"version":"1.0","truncation":null,"padding":null,"added_tokens":[…
    """
    if not hasattr(tokenizer, "backend_tokenizer"):
        return fingerprint(tokenizer.get_vocab(), inspect.getsource(type(tokenizer)))
    text = tokenizer.backend_tokenizer.to_str()
    head, found, rest = text.partition(',"added_tokens":')
    assert found and list(json.loads(head + "}")) == ["version", "truncation", "padding"], head[:100]
    return hashlib.sha256(rest.encode()).hexdigest()


def _asides(turn: Turn) -> dict[str, Any]:
    """What a turn has beside its content, by the names that chat templates have for it."""
    if not (turn.reasoning or turn.tool_calls or turn.name or turn.call_id):
        return {}  # nearly all
    asides = {
        "reasoning_content": turn.reasoning,
        "tool_calls": list(turn.tool_calls),
        "name": turn.name,
        "tool_call_id": turn.call_id,
    }
    return {name: value for name, value in asides.items() if value}


def _texts(example: Example) -> list[str]:
    """All texts that a template writes: those that `_with_texts` changes. Every row comes here, so without copies."""
    texts = [part for turn in example.turns for part in turn.parts if isinstance(part, str)]
    for turn in example.turns:
        texts += [text for text in (turn.reasoning, turn.name, turn.call_id) if text]
        if turn.tool_calls:
            texts += _texts_inside(turn.tool_calls)
    return texts + _texts_inside(example.tools) if example.tools else texts


def _texts_inside(value: Any) -> list[str]:
    """Keys and texts of JSON."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [*value, *(text for item in value.values() for text in _texts_inside(item))]
    return [text for item in value for text in _texts_inside(item)] if isinstance(value, list | tuple) else []


def _with_texts(example: Example, change: Callable[[str], str]) -> Example:
    """The same with every text changed; keys and texts inside of JSON, too."""

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, Mapping):
            return {change(key): changed(item) for key, item in value.items()}
        return [changed(item) for item in value] if isinstance(value, list | tuple) else value

    turns = (
        replace(
            turn,
            parts=tuple(change(part) if isinstance(part, str) else part for part in turn.parts),
            reasoning=change(turn.reasoning),
            tool_calls=tuple(map(changed, turn.tool_calls)),
            name=change(turn.name),
            call_id=change(turn.call_id),
        )
        for turn in example.turns
    )
    return replace(example, tools=tuple(map(changed, example.tools)), turns=tuple(turns))
