"""What was proved about a tokenizer, kept in a folder: every worker of a job needs it, and one process finds it out.

A file is named by all that the proof depends on: the tokenizer itself, the packages, and the code that proves. It has
what tiktoken is told, which takes a worker a fifth of the time to read that it takes to make and to prove it. A file
that is not whole is as good as none.
"""

import dataclasses
import hashlib
import importlib.metadata
import inspect
import json
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np

from neatpack.format.manifest import fingerprint
from neatpack.storage.files import write_whole
from neatpack.storage.location import Location

from . import hard_strings, merges, tokens
from .chat import tokenizer_identity
from .tokens import Described, Encoder, Own, fast, proved

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LISTS = ("stripping", "before", "after")


def kept_encoder(tokenizer: "PreTrainedTokenizerBase", folder: Location) -> Encoder:
    """As `encoder_of`, by what another process has left in the folder, or leaving it there."""
    own = Own(tokenizer)
    if own.engine != "tokenizers":
        return own  # there is nothing to prove
    path = folder / f"{_name(tokenizer)}.proof"
    try:
        found = _read(path.read_bytes())
    except (FileNotFoundError, ValueError):
        found = proved(tokenizer)
        with write_whole(path, durable=False) as file:
            file.write(_written(found))
    return own if found is None else fast(found, own)


def _name(tokenizer: "PreTrainedTokenizerBase") -> str:
    versions = [importlib.metadata.version(name) for name in ("tiktoken", "tokenizers", "transformers")]
    code = [inspect.getsource(module) for module in (tokens, merges, hard_strings)]
    special = bool(tokenizer.split_special_tokens)
    return fingerprint(tokenizer_identity(tokenizer), special, versions, unicodedata.unidata_version, code)


def _written(found: Described | None) -> bytes:
    """A line of JSON, and behind it the tokens: how long each is, their ids, and themselves, end to end."""
    rest, head = b"", None
    if found is not None:
        numbers = np.array([[len(token), number] for token, number in found.ranks.items()], dtype="<i4")
        rest = numbers.T.tobytes() + b"".join(found.ranks)
        fields = [field.name for field in dataclasses.fields(found) if field.name != "ranks"]
        head = {name: getattr(found, name) for name in fields} | {"tokens": len(numbers)}
    line = json.dumps(head).encode()
    return b"%s %s\n%s" % (hashlib.sha256(line + rest).hexdigest().encode(), line, rest)


def _read(content: bytes) -> Described | None:
    """Raises ValueError where it is not what was written."""
    first, _, rest = content.partition(b"\n")
    digest, _, line = first.partition(b" ")
    if hashlib.sha256(line + rest).hexdigest().encode() != digest:
        raise ValueError("not whole")
    head = json.loads(line)
    if head is None:
        return None
    count = head.pop("tokens")
    sizes, ids = np.frombuffer(rest, "<i4", 2 * count).reshape(2, count)
    ends = (sizes.cumsum() + 8 * count).tolist()
    starts = [8 * count, *ends[:-1]]
    ranks = {rest[start:end]: number for start, end, number in zip(starts, ends, ids.tolist(), strict=True)}
    fields: dict[str, Any] = {name: tuple(value) if name in _LISTS else value for name, value in head.items()}
    return Described(ranks=ranks, **fields)
