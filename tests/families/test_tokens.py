"""Ids by tiktoken are those of the tokenizer itself, for every tokenizer that it is used for."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers import DEMO_PROCESSOR, SHARED
from hypothesis import given, settings, strategies as st
from shared_processors import shared_encoder
from transformers import AutoTokenizer

from neatpack.pipeline.families.hard_strings import hard_strings
from neatpack.pipeline.families.merges import are_ranked
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.families.template import template_of
from neatpack.pipeline.families.tokens import Fast, Own, _grouped, agree, encoder_of

BYTES = list(range(256))
# One of each vocabulary and split; what else is in ../shared has one of them.
REAL = ("qwen3-vl", "qwen3.5", "kimi-k2.5", "phi4-mm", "mistral3")


@cache
def loaded(name: str):
    folder = DEMO_PROCESSOR if name == "demo" else SHARED / "processors" / name
    if not folder.is_dir():
        pytest.skip(f"../shared/processors/{name} is not here")
    return family_for(str(folder)).chat.tokenizer


@cache
def encoder(name: str):
    return shared_encoder(loaded(name))


def assert_same(name: str, *texts: str) -> None:
    tokenizer = loaded(name)
    own = tokenizer(list(texts))["input_ids"]
    assert [ids.tolist() for ids in encoder(name).encode(texts)] == own
    assert [encoder(name).bare(text) for text in texts] == tokenizer(list(texts), add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module", params=["demo", *REAL])
def name(request) -> str:
    loaded(request.param)
    return request.param


def test_byte_level_tokenizers_are_tiktokens(name):
    assert encoder(name).engine == "tiktoken"
    assert encoder(name).encode(["a b"])[0].dtype == np.int32


def test_other_tokenizers_encode_by_themselves():
    assert encoder("gemma4").engine == "tokenizers"
    assert_same("gemma4", "Hello  world", "<start_of_turn>user\n中文")


# Text of any kind, with what is hard among it more often than chance would have it
HARD = st.sampled_from(
    [*"'a1!<| \n\t\x00é中アß한", "'s", "'LL", "  ", "\r\n", "\u3000", "\u2028", "１２", "٣", "Ab", "e\u0301", "\u0338",
     "|>", "\u1112\u1161\u11ab", "👩‍👧", "...", "//", "\u0378", "\U000105c9", "\U0001e5d0", "\U000323b0"]
)  # fmt: skip


@settings(max_examples=150)
@given(data=st.data())
def test_any_text(data, name):
    tokenizer = loaded(name)
    special = st.sampled_from(sorted(token.content for token in tokenizer.added_tokens_decoder.values()))
    pieces = st.lists(st.one_of(HARD, HARD, special, st.text(max_size=20)), max_size=40)
    assert_same(name, "".join(data.draw(pieces)))


@settings(max_examples=50)
@given(data=st.data())
def test_any_texts_together(data, name):
    """None sees its neighbours: each has the ids that it has alone."""
    special = st.sampled_from(sorted(token.content for token in loaded(name).added_tokens_decoder.values()))
    texts = data.draw(st.lists(st.lists(st.one_of(HARD, special), max_size=5).map("".join), max_size=6))
    alone = [encoder(name).encode([text])[0].tolist() for text in texts]
    assert [ids.tolist() for ids in encoder(name).encode(texts)] == alone


def test_texts_that_say_what_stands_between_them(name):
    """All special tokens but the last; all of them; and, at the end of one, the beginning of what comes behind it."""
    special = sorted(token.content for token in loaded(name).added_tokens_decoder.values())
    for texts in ([*special[:-1], "a  ", "  b"], [*special, "a"], ["a" + special[0][:-1], "", special[0][1:], "b"]):
        assert_same(name, *texts)


def test_another_special_token_made_by_what_stands_between():
    """`<a` and `!b>` behind it are `<a!b>`, which would be found first."""
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))
    tokenizer.add_special_tokens({"additional_special_tokens": ["!b>", "<a!b>"]})
    found = encoder_of(tokenizer)
    assert found.engine == "tiktoken"
    assert [ids.tolist() for ids in found.encode(["<a", "c"])] == tokenizer(["<a", "c"])["input_ids"]


def test_alternatives_in_a_group_are_the_same_alternatives():
    assert _grouped(r"a|b|\s+(?!\S)|\s+") == r"(?:a|b)|\s+(?!\S)|\s+"
    assert _grouped(r"a|\s+(?!\S)|b") == r"a|\s+(?!\S)|b"


def test_the_vocabulary_itself(name):
    """Every token that is text: alone, and among others."""
    tokenizer = loaded(name)
    texts = [
        text for text in tokenizer.batch_decode([[id_] for id_ in range(0, len(tokenizer), 7)]) if "\ufffd" not in text
    ]
    assert len(texts) > len(tokenizer) / 20
    assert_same(name, *texts[::5], "".join(texts[:3000]), " ".join(texts[-3000:]))


@pytest.mark.slow
def test_runs_that_are_too_long_for_tiktokens_regex(name):
    """A million spaces: more than its engine goes back for, and a second of work for each who does."""
    spaces = "x" + " " * 1_000_000
    with pytest.raises(ValueError, match="(?i)regex"):
        encoder(name).encoding.encode(spaces)
    assert encoder(name).encode([spaces])[0].tolist() == loaded(name)(spaces)["input_ids"]
    assert_same(name, "a" * 100_000, "\n" * 100_000)


def test_half_a_character_is_refused_as_by_the_tokenizer(name):
    with pytest.raises((TypeError, UnicodeError)) as own:
        Own(loaded(name)).bare("a\ud800b")
    with pytest.raises(own.type):
        encoder(name).bare("a\ud800b")


def test_a_special_token_of_combined_letters_is_not_made_by_normalizing():
    """The Kelvin sign becomes a K, and then there is a special token where there was none."""
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|Kelvin|>"]})
    found = encoder_of(tokenizer)
    for text in ("<|Kelvin|>", "<|\u212aelvin|>", "e\u0301<|Kelvin|>\u0338"):
        assert found.encode([text])[0].tolist() == tokenizer(text)["input_ids"]


# What is not proved is not used


def changed(**changes):
    """The demo's tokenizer with other components."""
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    described |= {key: value for key, value in changes.items() if key != "model"}
    described["model"] |= changes.get("model", {})
    tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(described))
    return tokenizer


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"model": {"dropout": 0.1}},
        {"model": {"unk_token": "a"}},
    ],
    ids=str,
)
def test_an_unknown_component_leaves_it_to_the_tokenizer(changes):
    assert encoder_of(changed(**changes)).engine == "tokenizers"


def test_the_same_components_do_not():
    assert encoder_of(changed()).engine == "tiktoken"


def test_special_tokens_that_begin_alike_leave_it_to_the_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|a", "<|a|>"]})
    assert encoder_of(tokenizer).engine == "tokenizers"


def test_hard_strings_tell_other_splits_apart():
    """An encoder that splits digits otherwise, or does not normalize, is found out."""
    fast = encoder("qwen3-vl")
    assert isinstance(fast, Fast)
    assert agree(fast, fast.own, fast.special_tokens)
    unnormalized = Fast(**{**fields(fast), "normalize": None})
    assert not agree(unnormalized, fast.own, fast.special_tokens)
    stripping = Fast(**{**fields(fast), "stripping": frozenset(["<|im_end|>"])})
    assert not agree(stripping, fast.own, fast.special_tokens)
    assert len(hard_strings([])) > 250


def fields(fast: Fast) -> dict[str, Any]:
    names = ("encoding", "own", "special_tokens", "stripping", "normalize", "before", "after")
    return {name: getattr(fast, name) for name in names}


# The proof


def merges(*rows: tuple[int, int, int]) -> np.ndarray:
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


A, B, C = 97, 98, 99


def test_merges_that_both_ways_do_alike():
    assert are_ranked(merges((A, B, 256), (256, C, 257)), BYTES)  # ab, abc
    assert are_ranked(merges((A, B, 256), (A, 256, 257)), BYTES)  # aab


def test_merges_in_another_order_than_their_ids():
    assert not are_ranked(merges((A, B, 257), (B, C, 256)), BYTES)


def test_a_token_that_its_own_bytes_do_not_become():
    """abc of a + bc: but ab comes first, and of ab and c nothing is made. tiktoken, which knows abc, would make it."""
    assert not are_ranked(merges((A, B, 256), (B, C, 257), (A, 257, 258)), BYTES)
    # With a second way to make it, it can be made.
    assert are_ranked(merges((A, B, 256), (B, C, 257), (A, 257, 258), (256, C, 258)), BYTES)


def test_a_token_of_a_younger_part():
    """ab is made of what comes later: bc (257) before abc (256)."""
    assert are_ranked(merges((A, 257, 256), (B, C, 257)), BYTES)
    assert not are_ranked(merges((A, 258, 256), (A, B, 257), (B, C, 258)), BYTES)


def test_equal_pairs_merge_from_the_left():
    assert are_ranked(merges((A, A, 256), (256, A, 257)), BYTES)  # aaa = aa + a
    assert not are_ranked(merges((A, A, 256), (A, 256, 257)), BYTES)  # a + aa: never, aa comes first from the left


# Templates


def test_a_template_called_directly_writes_the_same(name):
    tokenizer = loaded(name)
    if not tokenizer.chat_template:
        pytest.skip("has no chat template of its own")
    written = template_of(tokenizer)
    asked, answer = {"role": "user", "content": "Why <b>?\n"}, {"role": "assistant", "content": " Because & so"}
    parts = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Who?"}]}
    for messages in ([asked, answer], [{"role": "system", "content": "Be brief"}, asked, answer, asked, answer],
                     [parts, answer], [asked, {**answer, "reasoning_content": "Hm"}]):  # fmt: skip
        assert written(messages, ()) == tokenizer.apply_chat_template(messages, tokenize=False)
