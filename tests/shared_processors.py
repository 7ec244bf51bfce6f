"""Processors that tests share. A run has one or two; the suite has dozens, and a real tokenizer takes one to five
seconds to load and to prove.

`family_for` keeps every family. Those of one folder of ../shared, and the families of the online API, have one
tokenizer: each its own copy of what is Python in it, around one vocabulary, with one proof. Nobody adds tokens to it:
`unchanged` says so at the end. Others that describe themselves alike have one proof, too. `load_family` and
AutoTokenizer load anew, for tests of loading, or that change what they load.
"""

import copy
import hashlib
import os
import pickle
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from places import PROOFS, SHARED

from neatpack.loaders.online import processor as online
from neatpack.pipeline.families import chat, registry
from neatpack.pipeline.families.tokens import Described, Encoder, Own, encoder_of, fast, proved

_load = registry._load_tokenizer
_sharing: ContextVar[bool] = ContextVar("sharing", default=False)
_sizes: dict[int, tuple[Any, int]] = {}  # by the vocabulary: the tokenizer that was loaded, and its tokens
_encoders: dict[int, Encoder] = {}
_proofs: dict[tuple[object, ...], Described | None] = {}


def share() -> None:
    registry._load_tokenizer = _tokenizer
    registry.family_for = lru_cache(maxsize=None)(_with_shared(registry.family_for.__wrapped__))
    vars(online)["processor_files"] = _with_shared(registry.processor_files)
    vars(chat)["encoder_of"] = shared_encoder


def unchanged() -> bool:
    return all(len(tokenizer) == size for tokenizer, size in _sizes.values())


def _with_shared(function: Callable[..., Any]) -> Callable[..., Any]:
    def sharing(*args: Any, **keys: Any) -> Any:
        before = _sharing.set(True)
        try:
            return function(*args, **keys)
        finally:
            _sharing.reset(before)

    return sharing


def _tokenizer(processor: str, trust_remote_code: bool) -> Any:
    if not _sharing.get() or not Path(processor).resolve().is_relative_to(SHARED):
        return _load(processor, trust_remote_code)
    return copy.copy(_loaded(processor, trust_remote_code))


@cache
def _loaded(processor: str, trust_remote_code: bool) -> Any:
    tokenizer = _load(processor, trust_remote_code)
    if hasattr(tokenizer, "backend_tokenizer"):
        _sizes[id(tokenizer.backend_tokenizer)] = tokenizer, len(tokenizer)
    return tokenizer


def shared_encoder(tokenizer: Any) -> Encoder:
    """As `encoder_of`; for a tokenizer that is shared, what that gave the first time."""
    if not hasattr(tokenizer, "backend_tokenizer"):
        return encoder_of(tokenizer)
    vocabulary = id(tokenizer.backend_tokenizer)
    if vocabulary not in _sizes:
        return _encoder_by_proof(tokenizer)
    if vocabulary not in _encoders:
        _encoders[vocabulary] = _encoder_by_proof(tokenizer)
    return _encoders[vocabulary]


def _encoder_by_proof(tokenizer: Any) -> Encoder:
    """As `encoder_of`; what is proved of a description is proved: it takes 0.14 s of the demo's, and 2 s of a real one.
    Processes of one run tell each other, by files in a folder of that run."""
    description = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    key = type(tokenizer), description, tokenizer.split_special_tokens
    if key not in _proofs:
        _proofs[key] = _proof(tokenizer, f"{type(tokenizer).__name__}-{description}-{tokenizer.split_special_tokens}")
    found, own = _proofs[key], Own(tokenizer)
    return own if found is None else fast(found, own)


def _proof(tokenizer: Any, name: str) -> Described | None:
    if PROOFS not in os.environ:
        return proved(tokenizer)
    file = Path(os.environ[PROOFS]) / name
    if not file.exists():
        made = file.with_suffix(f".{os.getpid()}")
        made.write_bytes(pickle.dumps(proved(tokenizer)))
        made.replace(file)
    found: Described | None = pickle.loads(file.read_bytes())
    return found
