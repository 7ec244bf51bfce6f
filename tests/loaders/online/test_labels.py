"""Labels of batches tokenized elsewhere: never a prompt's, and the same by search, by markers and by packing."""

import logging
from functools import lru_cache
from importlib import import_module
from itertools import product

import pytest
import torch
from conversations import tokenizer_of
from hypothesis import assume, given, settings, strategies as st
from places import DEMO_PROCESSOR, SHARED
from support.errors import logged
from transformers import AutoTokenizer

from neatpack.loaders.online import (
    PreTokenizedDatasetWrapper,
    _decode_single_token,
    _extract_assistant_text,
    _find_pattern_indices,
    _get_assistant_marker,
    _get_stop_token_id,
    build_labels,
    build_labels_from_template,
    labels as module,
)

pytestmark = pytest.mark.net

OURS = ["default", "gemma4", "internvl", "kimi_k25", "kimi_vl", "llava_onevision", "phi4_mm", "qwen2_vl", "qwen3_omni",
        "qwen3_vl"]  # fmt: skip
REAL = ["gemma4", "internvl3", "kimi-k2.5", "kimi-vl", "llava-onevision", "phi4-mm", "qwen2-vl", "qwen2.5-vl",
        "qwen3-omni", "qwen3-vl", "qwen3.5"]  # fmt: skip
# What templates write before an answer by themselves. Packing trains on it; `build_labels` only on the answer.
TEMPLATES_OWN = {"kimi-k2.5": "<think></think>", "qwen3.5": "<think>\n\n</think>\n\n"}


def talk(*turns, system=""):
    """User and assistant in turn."""
    said = [("system", system)] if system else []
    said += [(("user", "assistant")[number % 2], text) for number, text in enumerate(turns)]
    return [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in said]


@pytest.fixture(autouse=True)
def nothing_counted(monkeypatch):
    monkeypatch.setattr(module, "unlabelled", type(module.unlabelled)())


def templated(tokenizer, conversation):
    return tokenizer(tokenizer.apply_chat_template(conversation, tokenize=False), return_tensors="pt")["input_ids"]


def trained(labels, tokenizer) -> str:
    return tokenizer.decode(labels[labels != -100])


# ---------------------------------------------------------------- never the prompt


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (("Hi", "Hello\n"), "Hello\n<|im_end|>"),
        (("a big house", "the house"), "the house<|im_end|>"),
        (("user", "user", "assistant", "assistant"), "user<|im_end|>assistant<|im_end|>"),
        (("Say it: no.", "no.", "no.", "Say it"), "no.<|im_end|>Say it<|im_end|>"),
        (("And?", "\n Well."), " Well.<|im_end|>"),
    ],
)
def test_answers_that_repeat_the_prompt(tokenizer, turns, expected):
    conversation = talk(*turns)
    ids = templated(tokenizer, conversation)
    assert trained(build_labels(ids, [conversation], tokenizer)[0], tokenizer) == expected
    assert trained(build_labels_from_template(ids, [conversation], tokenizer)[0], tokenizer) == expected


def test_a_stop_token_is_trained_on_only_where_it_follows(tokenizer):
    conversation = talk("Who?", "Me.")
    for text, expected in (("Who?\nMe.<|im_end|>", "Me.<|im_end|>"), ("Who?\nMe. What<|im_end|>", "Me.")):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        assert trained(build_labels(ids, [conversation], tokenizer)[0], tokenizer) == expected


@pytest.mark.parametrize("stop", ["<end_of_turn>", "<|eot_id|>", "</own>"])
def test_every_stop_token(stop):
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))
    tokenizer.add_special_tokens({"additional_special_tokens": [stop]}, replace_extra_special_tokens=False)
    tokenizer.chat_template = None
    if stop == "</own>":
        tokenizer.eos_token = stop
    ids = tokenizer(f"Who?\nMe.{stop}\n", return_tensors="pt")["input_ids"]
    assert trained(build_labels(ids, [talk("Who?", "Me.")], tokenizer)[0], tokenizer) == f"Me.{stop}"


# ---------------------------------------------------------------- what is not found


def test_an_answer_that_is_not_there_is_counted_and_the_others_are_found(tokenizer, caplog):
    said, asked = talk("Who?", "Me.", "And?", "You."), talk("Who?", "Somebody else.", "And?", "You.")
    ids = templated(tokenizer, said)
    with caplog.at_level(logging.WARNING):
        labels = build_labels(ids, [asked], tokenizer)[0]
    assert trained(labels, tokenizer) == "You.<|im_end|>"
    assert module.unlabelled == {"not_found": 1}
    assert logged(caplog, "loaders.online.labels") == [(0, 0, "Somebody else.")]


def test_without_markers_what_could_be_two_places_is_neither(tokenizer):
    """The user's "no" and the assistant's cannot be told apart where the user's turn is not found."""
    ids = tokenizer("no, no", return_tensors="pt")["input_ids"]
    assert (build_labels(ids, [talk("(a picture)", "no")], tokenizer) == -100).all()
    assert (build_labels(ids, [talk("", "no")], tokenizer) == -100).all()
    assert module.unlabelled == {"not_found": 2}
    assert trained(build_labels(ids, [talk("no,", "no")], tokenizer)[0], tokenizer).strip() == "no"


def test_a_sequence_that_is_cut_off(tokenizer):
    """Two turns are asked for and one is there: it is found. The half of the other is no turn that could be found."""
    conversation = talk("Who?", "It was me.", "And?", "You, too.")
    whole = templated(tokenizer, conversation)
    cut = whole[:, : whole[0].tolist().index(tokenizer.convert_tokens_to_ids("<|im_end|>"), 25) - 2]
    assert trained(build_labels(cut, [conversation], tokenizer)[0], tokenizer) == "It was me.<|im_end|>"
    assert module.unlabelled == {"not_found": 1}


@pytest.mark.parametrize("function", [build_labels, build_labels_from_template])
def test_nobody_says_anything(tokenizer, function):
    """As packing skips the row: `no_target`. Beside an answer, an empty one is trained to end at once."""
    empty, half = talk("Who?", ""), talk("Who?", "", "And?", "You.")
    assert (function(templated(tokenizer, empty), [empty], tokenizer) == -100).all()
    assert module.unlabelled == {"no_target": 1}
    labels = function(templated(tokenizer, half), [half], tokenizer)[0]
    assert trained(labels, tokenizer) == "<|im_end|>You.<|im_end|>"


# ---------------------------------------------------------------- the same three ways


WORDS = ["Hi", "user", "assistant", "system", "model", "the", " house", "a big", "no", ".", ",", "?", " ", "\n", "\n\n",
         "\t", "é", "e\u0301", "这个", "😀", "👩‍👩‍👧", "1", "12", "'s", "<b>", "```", "Ünï", "ß", "\u00a0",
         "ا"]  # fmt: skip
TEXTS = st.lists(st.sampled_from(WORDS), max_size=6).map("".join) | st.text(max_size=12)


@st.composite
def conversations(draw):
    """Answers that repeat parts of what was said before, empty ones, white space at both ends."""
    turns: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        turns.append(draw(TEXTS))
        known = "".join(turns)
        first = draw(st.integers(0, len(known)))
        part = st.just(known[first : first + draw(st.integers(0, 12))])
        turns.append(
            draw(st.sampled_from(["", " ", "\n", "\n\n"])) + draw(TEXTS | part) + draw(st.sampled_from(["", " ", "\n"]))
        )
    return talk(*turns, system=draw(st.just("") | TEXTS))


@lru_cache
def our_processor(name, folder):
    return str(DEMO_PROCESSOR if name == "demo" else import_module(f"processors.{name}").make(folder / name))


@pytest.fixture(scope="module", params=["demo", *OURS, *(f"../shared/{name}" for name in REAL)])
def any_processor(request, tmp_path_factory):
    name = request.param.rpartition("/")[2]
    if not request.param.startswith(".."):
        return name, our_processor(name, tmp_path_factory.getbasetemp())
    path = SHARED / "processors" / name
    if not path.is_dir():
        pytest.skip(f"../shared/processors/{name} is not here")
    return name, str(path)


def packed_labels(conversation, processor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels by the functions of packing."""
    samples = PreTokenizedDatasetWrapper(
        [{"conversation": conversation}], processor, inject_fake_images=False, max_retries=0
    )
    try:
        sample = samples[0]
    except RuntimeError:  # a template that wants something in every turn, say
        assume(False)
    return sample["input_ids"][None], sample["labels"]


def answers_only(labels, tokenizer, templates_own):
    """Labels less those of words that a template writes before an answer, and of white space, which may be its own."""
    if not templates_own:
        return labels
    unwanted, result = tokenizer.encode(templates_own, add_special_tokens=False), labels.clone()
    for start in range(len(labels)):
        if labels[start : start + len(unwanted)].tolist() == unwanted:
            result[start : start + len(unwanted)] = -100
    for place in torch.nonzero(result != -100).flatten().tolist():
        if not tokenizer.decode([int(result[place])]).strip():
            result[place] = -100
    return result


def test_search_markers_and_packing_agree(any_processor):
    name, processor = any_processor
    tokenizer, own = tokenizer_of(processor), TEMPLATES_OWN.get(name, "")

    @given(conversations())
    @settings(max_examples=30)
    def agree(conversation):
        ids, expected = packed_labels(conversation, processor)
        assert torch.equal(build_labels_from_template(ids, [conversation], processor)[0], expected)
        answers = answers_only(expected, tokenizer, own)
        for known in (processor, tokenizer):
            assert torch.equal(answers_only(build_labels(ids, [conversation], known)[0], tokenizer, own), answers)
        if name != "gemma4":  # whose tokenizer alone does not know of the empty thought that packing writes
            by_template = build_labels_from_template(ids, [conversation], tokenizer)[0]
            assert torch.equal(answers_only(by_template, tokenizer, own), answers)
        assert not module.unlabelled["not_found"]

    agree()


@pytest.mark.parametrize("name", ["glm4.5v", "mistral3", "qwen2.5-omni"])
def test_search_and_markers_agree_for_tokenizers_alone(shared, name):
    """Of processors that transformers loads with torchvision only."""
    tokenizer = tokenizer_of(str(shared / "processors" / name))
    conversation = talk("a big house\n", "the house", "Say assistant", "assistant", "\nuser", " user 这个")
    ids = templated(tokenizer, conversation)
    by_search, by_template = (
        function(ids, [conversation], tokenizer)[0] for function in (build_labels, build_labels_from_template)
    )
    assert torch.equal(by_search, by_template)
    assert "".join(trained(by_search, tokenizer).split()).count("house") == 1
    assert not module.unlabelled


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3))
def test_without_markers_no_token_of_a_prompt_is_trained_on(tokenizer, pairs):
    text, spans = "You are an assistant, a big house, Hi. ", []
    for question, answer in pairs:
        start = len(text) + len(f"Q: {question}\nA: ")
        text += f"Q: {question}\nA: {answer}<|im_end|>\n"
        spans.append((start, start + len(answer + "<|im_end|>")))
    assume(
        tokenizer.backend_tokenizer.normalizer is None
        or tokenizer.backend_tokenizer.normalizer.normalize_str(text) == text
    )
    encoded = tokenizer(text, return_offsets_mapping=True)
    said = [any(first < stop and last > start for start, stop in spans) for first, last in encoded["offset_mapping"]]
    ids = torch.tensor([encoded["input_ids"]])
    labels = build_labels(ids, [talk(*(turn for pair in pairs for turn in pair))], tokenizer)[0]
    assert not (labels != -100)[~torch.tensor(said)].any()


# ---------------------------------------------------------------- what is exported is what is called


NEVER_THE_SAME = product("abcdefgh", repeat=4)


@pytest.mark.parametrize(
    ("name", "stand_in"),
    [
        ("_extract_assistant_text", lambda message: "Who"),
        ("_find_pattern_indices", lambda *args, **kwargs: (-1, -1)),
        ("_decode_single_token", lambda tokenizer, token: "".join(next(NEVER_THE_SAME))),
    ],
)
def test_patched_helpers_of_the_search_are_called(monkeypatch, tokenizer, name, stand_in):
    conversation = talk("Who?", "Me.")
    ids = tokenizer("Who?\nMe.<|im_end|>", return_tensors="pt")["input_ids"]
    before = build_labels(ids, [conversation], tokenizer)
    monkeypatch.setattr(module, name, stand_in)
    assert not torch.equal(build_labels(ids, [conversation], tokenizer), before)


@pytest.mark.parametrize(
    ("name", "stand_in"),
    [
        ("_get_assistant_marker", lambda tokenizer: tokenizer.encode("<|im_start|>user\n", add_special_tokens=False)),
        ("_get_stop_token_id", lambda tokenizer: tokenizer.encode("M", add_special_tokens=False)[0]),
    ],
)
def test_patched_markers_of_the_template_are_called(monkeypatch, tokenizer, name, stand_in):
    class Qwen2VLProcessor:
        def __init__(self):
            self.tokenizer = tokenizer

    conversation = talk("Who?", "Me.")
    ids = templated(tokenizer, conversation)
    before = build_labels_from_template(ids, [conversation], Qwen2VLProcessor())
    assert trained(before[0], tokenizer) == "Me.<|im_end|>"
    with monkeypatch.context() as patch:
        patch.setattr(module, name, stand_in)
        assert not torch.equal(build_labels_from_template(ids, [conversation], Qwen2VLProcessor()), before)


# ---------------------------------------------------------------- literally


def test_labels_three_ways_agree(tokenizer):
    conversations = [talk("Who?", "Me.", "And?", "You, too."), talk("A?", "B.")]
    texts = [tokenizer.apply_chat_template(conversation, tokenize=False) for conversation in conversations]
    ids = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
    by_family = build_labels_from_template(ids, conversations, str(DEMO_PROCESSOR))
    by_sentinel = build_labels_from_template(ids, conversations, tokenizer)
    by_search = build_labels(ids, conversations, tokenizer)
    assert torch.equal(by_family, by_sentinel)
    assert torch.equal(by_family, by_search)
    assert tokenizer.decode(by_family[0][by_family[0] != -100]) == "Me.<|im_end|>You, too.<|im_end|>"


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared (real processors) is not here")
def test_labels_of_a_real_tokenizer():
    tokenizer = tokenizer_of(str(SHARED / "processors" / "qwen2.5-vl"))
    conversations = [talk("Who?", "\n\nMe, 这个.\n", "And?", "You.")]
    ids = tokenizer(tokenizer.apply_chat_template(conversations[0], tokenize=False), return_tensors="pt")["input_ids"]
    labels = build_labels_from_template(ids, conversations, str(SHARED / "processors" / "qwen2.5-vl"))
    assert tokenizer.decode(labels[0][labels[0] != -100]) == "Me, 这个.\n<|im_end|>You.<|im_end|>"


def test_without_any_markers_the_answers_are_searched(tokenizer):
    class Bare:
        """A processor whose template cannot be read: `<|im_end|>` is all that it shares with the others."""

        def __init__(self):
            self.tokenizer = AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR))
            self.tokenizer.chat_template = None

    bare = Bare()
    conversations = [talk("Who?", "Me.")]
    ids = torch.tensor([tokenizer.encode("Q: Who?\nA: Me.<|im_end|>")])
    labels = build_labels_from_template(ids, conversations, bare)
    assert tokenizer.decode(labels[0][labels[0] != -100]).strip() == "Me.<|im_end|>"


def test_an_answer_that_is_not_there(tokenizer):
    labels = build_labels(torch.tensor([[1, 2, 3]]), [talk("Who?", "Something else entirely.")], tokenizer)
    assert labels.tolist() == [[-100, -100, -100]]


def test_finding_patterns():
    assert _find_pattern_indices([1, 2, 3, 2, 3], [2, 3]) == (1, 3)
    assert _find_pattern_indices([1, 2, 3, 2, 3], [2, 3], 2) == (3, 5)
    assert _find_pattern_indices([1, 2, 3], [9, 3]) == (-1, -1)
    assert _find_pattern_indices([1, 2, 3], [9, 3], allow_first_token_mismatch=True) == (1, 3)
    assert _find_pattern_indices([1, 2, 3], [9], allow_first_token_mismatch=True) == (-1, -1)
    assert _find_pattern_indices([1], []) == (-1, -1)


def test_small_pieces(tokenizer):
    assert _extract_assistant_text({"content": "a"}) == "a"
    assert _extract_assistant_text({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}) == "ab"
    assert _extract_assistant_text({"content": None}) == ""
    end = _get_stop_token_id(tokenizer)
    assert _decode_single_token(tokenizer, end) == "<|im_end|>"
    assert tokenizer.decode(_get_assistant_marker(tokenizer)) == "<|im_start|>assistant\n"

    class Lists:
        def decode(self, ids):
            if isinstance(ids, int):
                raise TypeError("give a list")
            return f"{ids[0]}"

        def encode(self, text, add_special_tokens):
            return [1, 2, 3]

    assert _decode_single_token(Lists(), 7) == "7"

    class Tensors:
        def decode(self, ids):
            return f"{ids.tolist()[0]}"

    assert _decode_single_token(Tensors(), 7) == "7"
    assert _get_assistant_marker(Lists()) is None and _get_stop_token_id(Lists()) is None
