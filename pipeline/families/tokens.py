"""Text -> token ids, as the processor's own tokenizer gives them, by the fastest way that is proved to give them.

tiktoken takes a fifth of the time of `tokenizers` for byte-level BPE. It merges by the rank of what comes out, not by a
list of merges, and splits text with another regex engine. So it is used only where
- every component of the tokenizer is one that is known here,
- its merges are such that both ways give the same tokens of any bytes (`merges.py`: a proof), and
- both give the same ids of strings chosen to be hard (`hard_strings.py`): splits, normalization, special tokens.
Everything else is left to the tokenizer itself, and so is a text that tiktoken cannot take.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from .hard_strings import hard_strings
from .merges import are_ranked

if TYPE_CHECKING:  # a loader that renders pictures imports families, and no tokenizer
    import tiktoken
    from transformers import PreTrainedTokenizerBase

Engine = Literal["tiktoken", "tokenizers", "python"]
NUM_BYTES = 256
# What ByteLevel splits by where it is told to split: the pattern of GPT-2.
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# White space leaves its last character to the word behind it. The patterns of nearly all byte-level BPEs end so, which
# is what an automaton cannot do: see `_grouped`.
LOOKING_AHEAD = r"|\s+(?!\S)|\s+"
TOGETHER = 1 << 20  # characters of texts that tiktoken gets in one call, at most: another copy of them
WHITE_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # the Unicode property, as Rust has it


class TextRefused(ValueError):
    """A text that the tokenizer gives up on."""


class Encoder(Protocol):
    """Texts as ids. Raises `TextRefused`."""

    @property
    def engine(self) -> Engine: ...

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of each, with what the tokenizer adds to a text: a bos token, mostly."""

    def bare(self, text: str) -> list[int]:
        """Without what it adds."""


def encoder_of(tokenizer: "PreTrainedTokenizerBase") -> Encoder:
    """tiktoken where it is proved to give the same ids, else the tokenizer."""
    own, found = Own(tokenizer), proved(tokenizer)
    return own if found is None else fast(found, own)


def proved(tokenizer: "PreTrainedTokenizerBase") -> "Described | None":
    """What tiktoken is to be told so that its ids are the tokenizer's; None where it cannot, or that is not proved."""
    own = Own(tokenizer)
    try:
        found = _described(tokenizer) if own.engine == "tokenizers" and not tokenizer.split_special_tokens else None
        return found if found is not None and agree(fast(found, own), own, found.special) else None
    except (_Unknown, ValueError):  # ValueError: a pattern that tiktoken's regex engine does not take
        return None


def agree(one: Encoder, other: Encoder, special_tokens: Iterable[str]) -> bool:
    texts = hard_strings(special_tokens)
    return all(map(np.array_equal, one.encode(texts), other.encode(texts)))


@dataclass(frozen=True)
class Own:
    """The tokenizer of transformers itself."""

    tokenizer: "PreTrainedTokenizerBase"

    @property
    def engine(self) -> Engine:
        return "tokenizers" if hasattr(self.tokenizer, "backend_tokenizer") else "python"

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        with _panics_refused():
            encoded = self.tokenizer(list(texts), return_attention_mask=False)["input_ids"]
        return [np.array(ids, dtype=np.int32) for ids in encoded]

    def bare(self, text: str) -> list[int]:
        with _panics_refused():
            return list(self.tokenizer.encode(text, add_special_tokens=False))


@contextmanager
def _panics_refused() -> Iterator[None]:
    """Raise TextRefused where Rust code panics. Its regex engine does so after 10 million steps of one match, as of a
    run of so many spaces. A panic is no Exception, and its class has no name that can be imported."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TextRefused(f"the tokenizer gives up on the text: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Fast:
    """Byte-level BPE by tiktoken."""

    encoding: "tiktoken.Encoding"
    own: Own
    special_tokens: frozenset[str]
    stripping: frozenset[str]  # special tokens that take the white space after them along
    normalize: Callable[[str], str] | None  # NFC, or nothing
    before: tuple[int, ...]  # what the tokenizer adds to a text
    after: tuple[int, ...]
    engine: Engine = "tiktoken"
    _special: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        alternatives = "|".join(map(re.escape, sorted(self.special_tokens))) or "(?!)"
        object.__setattr__(self, "_special", re.compile(f"({alternatives})"))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        encoded = self._together(texts) or [self._ids(text) for text in texts]
        if not self.before and not self.after:
            return encoded
        return [np.array([*self.before, *ids, *self.after], dtype=np.int32) for ids in encoded]

    def _together(self, texts: Sequence[str]) -> list[np.ndarray] | None:
        """All in one call, with a special token between any two: text is cut at those before all else, so that none
        sees its neighbours. A call takes 4 us by itself, a short text as long. None: each is to be encoded by itself.
        """
        if len(texts) < 2 or self.stripping or sum(map(len, texts)) > TOGETHER:
            return None
        end_to_end = "".join(texts)
        between = next((token for token in sorted(self.special_tokens) if token not in end_to_end), None)
        if between is None or not self._is_normal(joined := between.join(texts)):
            return None
        try:
            ids = self._encoded(joined)
        except (ValueError, UnicodeError):
            return None
        places = (ids == self.encoding.encode_single_token(between)).nonzero()[0].tolist()
        if len(places) != len(texts) - 1:
            return None  # the end of a text and its beginning are another special token
        starts, ends = [0, *(place + 1 for place in places)], [*places, len(ids)]
        return [ids[start:end] for start, end in zip(starts, ends, strict=True)]

    def bare(self, text: str) -> list[int]:
        found: list[int] = self._ids(text).tolist()
        return found

    def _ids(self, text: str) -> np.ndarray:
        try:
            return self._piece_by_piece(text) if self.stripping or not self._is_normal(text) else self._encoded(text)
        except (ValueError, UnicodeError):  # a run of a million spaces is too much for its regex; half a character
            return np.array(self.own.bare(text), dtype=np.int32)

    def _is_normal(self, text: str) -> bool:
        """Whether normalizing would change nothing, neither of the text nor of any piece of it."""
        return not self.normalize or text.isascii() or unicodedata.is_normalized("NFC", text)

    def _encoded(self, text: str) -> np.ndarray:
        found = self.encoding.encode_to_numpy(text, allowed_special=self.special_tokens, disallowed_special=())
        return found.view(np.int32)

    def _piece_by_piece(self, text: str) -> np.ndarray:
        """Special tokens are found in the text as it is, and each stretch between them is normalized by itself."""
        ids: list[int] = []
        stretches = self._special.split(text)
        for number, stretch in enumerate(stretches):
            if number % 2:
                ids.append(self.encoding.encode_single_token(stretch))
                continue
            if number and stretches[number - 1] in self.stripping:
                stretch = _LEADING_SPACE.sub("", stretch)
            # Not by encode_ordinary, which panics where its regex gives up, nor by encode, which mends half characters.
            words = self.normalize(stretch) if self.normalize else stretch
            ids += self.encoding.encode_to_numpy(words, disallowed_special=()).tolist()
        return np.array(ids, dtype=np.int32)


_LEADING_SPACE = re.compile(f"^[{WHITE_SPACE}]+")


def _grouped(pattern: str) -> str:
    """The same alternatives, those that need no looking ahead as one group: a|b|c -> (?:a|b)|c.

    tiktoken's regex engine asks an automaton about each alternative in turn if one of them looks ahead, and once about
    a group in which none does: encoding takes a sixth less.
    """
    before = pattern.removesuffix(LOOKING_AHEAD)
    return f"(?:{before}){LOOKING_AHEAD}" if before != pattern else pattern


# From a tokenizer's own description of itself


class _Unknown(Exception):
    """A component that is not known here, or merges that tiktoken would do otherwise."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """A byte-level BPE, as tiktoken is told of it."""

    pattern: str  # by which text is split first
    ranks: dict[bytes, int]  # the ids of tokens
    special: dict[str, int]  # and of those that stand for themselves
    stripping: tuple[str, ...]
    normalizes: bool
    before: tuple[int, ...]
    after: tuple[int, ...]


def fast(found: Described, own: Own) -> Fast:
    import tiktoken

    encoding = tiktoken.Encoding(
        "", pat_str=_grouped(found.pattern), mergeable_ranks=found.ranks, special_tokens=found.special
    )
    return Fast(
        encoding=encoding,
        own=own,
        special_tokens=frozenset(found.special),
        stripping=frozenset(found.stripping),
        normalize=own.tokenizer.backend_tokenizer.normalizer.normalize_str if found.normalizes else None,
        before=found.before,
        after=found.after,
    )


def _described(tokenizer: "PreTrainedTokenizerBase") -> Described:
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    special = _special_tokens(described["added_tokens"], described["normalizer"])
    before, after = _added_around(described["post_processor"])
    return Described(
        pattern=_split(described["pre_tokenizer"]),
        ranks=_ranks(described["model"], special),
        special={name: token["id"] for name, token in special.items()},
        stripping=tuple(name for name, token in special.items() if token["rstrip"]),
        normalizes=bool(described["normalizer"]),
        before=before,
        after=after,
    )


def _special_tokens(added: Sequence[dict[str, Any]], normalizer: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """By their text. Those that may begin like another are not known here: which of them is found first differs."""
    if normalizer not in (None, {"type": "NFC"}):
        raise _Unknown
    for token in added:
        if token["single_word"] or token["lstrip"] or (token["normalized"] and normalizer) or not token["content"]:
            raise _Unknown
    special = {token["content"]: token for token in added}
    names = sorted(special)
    if any(longer.startswith(shorter) for shorter, longer in zip(names, names[1:], strict=False)):
        raise _Unknown
    return special


def _split(pre_tokenizer: dict[str, Any] | None) -> str:
    """The pattern that text is split by before it is encoded."""
    match pre_tokenizer:
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return GPT2_SPLIT
    raise _Unknown


def _added_around(post_processor: dict[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that are added before and after a text."""
    match post_processor:
        case None | {"type": "ByteLevel"}:
            return (), ()
        case {"type": "Sequence", "processors": [*several]}:
            around = [_added_around(each) for each in several]
            return tuple(i for before, _ in reversed(around) for i in before), tuple(i for _, a in around for i in a)
        case {"type": "TemplateProcessing", "single": [*pieces], "special_tokens": tokens}:
            before: list[int] = []
            after: list[int] = []
            into = before
            for piece in pieces:
                if "Sequence" in piece:
                    into = after
                else:
                    into += tokens[piece["SpecialToken"]["id"]]["ids"]
            return tuple(before), tuple(after)
    raise _Unknown


# The vocabulary

_EXPECTED = {"type": "BPE", "dropout": None, "byte_fallback": False, "fuse_unk": False, "unk_token": None}


def _ranks(model: dict[str, Any], special: Iterable[str]) -> dict[bytes, int]:
    """Tokens of a byte-level BPE as tiktoken has them: their bytes, ranked by their ids."""
    if any(model.get(name) != value for name, value in _EXPECTED.items()):
        raise _Unknown
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise _Unknown
    vocabulary: dict[str, int] = model["vocab"]
    letters = byte_letters()
    try:
        byte_ids = [vocabulary[letter] for letter in letters]
        merges = _ids_of_merges(model["merges"], vocabulary)
    except KeyError:  # a byte that is no token, or a merge of what is none
        raise _Unknown from None
    made = {*byte_ids, *merges[:, 2].tolist()}
    unmade = {name for name, id_ in vocabulary.items() if id_ not in made}
    # A token that no merges lead to is never given (Qwen3.5 has 201), unless a whole word is looked up first.
    if not (unmade <= set(special) or not model["ignore_merges"]) or not are_ranked(merges, byte_ids):
        raise _Unknown
    table = str.maketrans(dict(zip(letters, map(chr, range(NUM_BYTES)), strict=True)))
    tokens = ((name, id_) for name, id_ in vocabulary.items() if id_ in made)
    return {name.translate(table).encode("latin-1"): id_ for name, id_ in tokens}


def byte_letters() -> list[str]:
    """What each byte is written as in a byte-level vocabulary: itself if it can be seen, else a letter from 256 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unseen = (byte for byte in range(NUM_BYTES) if byte not in seen)
    moved = {byte: NUM_BYTES + place for place, byte in enumerate(unseen)}
    return [chr(moved.get(byte, byte)) for byte in range(NUM_BYTES)]


def _ids_of_merges(merges: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> np.ndarray:
    """[n, 3]: left, right, and what they become."""
    found = np.empty((len(merges), 3), dtype=np.int64)
    found[:, :2] = np.array([vocabulary[part] for pair in merges for part in pair], dtype=np.int64).reshape(-1, 2)
    found[:, 2] = [vocabulary[merged] for merged in map("".join, merges)]
    return found
