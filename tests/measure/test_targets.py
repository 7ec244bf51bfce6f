"""Which tokens are trained on: by the config, by what rows ask for; and what `verify` makes of it."""

import dataclasses
import json
import shutil
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import DEMO_PROCESSOR, SHARED, TinyData, assert_verified, packs_of, picture, tiny_config
from support.errors import assert_skipped

from neatpack.format.layout import IGNORE
from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.families.registry import family_for, load_family
from neatpack.pipeline.labels import TrainOn
from neatpack.pipeline.measure.length import measure, truncated
from neatpack.pipeline.records import Example, Measured, MediaRef, Skip, Turn
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.check import check_pack

# As templates of reasoning models that call tools are: reasoning of the last answer only, tools in the system turn.
TEMPLATE = """
{%- if tools %}<|im_start|>system
Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{% if message.reasoning_content and loop.last %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type == 'text' %}{{ part.text }}{% else %}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>{% endif %}
{%- endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}"""
CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "the <|im_end|> sky"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tmp_path_factory.mktemp("talkative") / "processor"
    shutil.copytree(DEMO_PROCESSOR, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return load_family(ProcessorKey(processor=str(folder)))


def user(text: str = "Why?", **more) -> Turn:
    return Turn(role="user", parts=(text,), **more)


def assistant(text: str, **more) -> Turn:
    return Turn(role="assistant", parts=(text,), **more)


def trained(said, family: Family, *, tools=(), **train_on) -> Any:
    """The texts that are trained on, as runs of labels."""
    (result,) = measure([Example(turns=tuple(said), tools=tools)], family, train_on=TrainOn(**train_on))
    return result if isinstance(result, Skip) else runs(result, family)


def runs(measured: Measured, family: Family) -> list[str]:
    sample = render_whole(measured, family, "torch")
    edges = np.flatnonzero(np.diff(np.concatenate([[0], sample.labels != IGNORE, [0]])))
    assert np.array_equal(sample.labels[sample.labels != IGNORE], sample.input_ids[sample.labels != IGNORE])
    return [str(family.chat.tokenizer.decode(sample.input_ids[a:b])) for a, b in edges.reshape(-1, 2)]


TALK = [user(), assistant("Because."), user("And?"), assistant("So.")]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ("all-assistant", ["Because.<|im_end|>", "So.<|im_end|>"]),
        ("last-assistant", ["So.<|im_end|>"]),
        (
            "all",
            [
                "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\nBecause.<|im_end|>\n"
                "<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\nSo.<|im_end|>\n"
            ],
        ),
    ],
)
def test_train_on(demo_family, turns, expected):
    assert trained(TALK, demo_family, turns=turns) == expected


@pytest.mark.parametrize("turns", ["all-assistant", "last-assistant"])
def test_what_a_row_asks_for_wins(demo_family, turns):
    asked = [user(), assistant("One.", loss=True), user(), assistant("Two.", loss=False), user(), assistant("Three.")]
    assert trained(asked, demo_family, turns=turns) == ["One.<|im_end|>", "Three.<|im_end|>"]
    (skip,) = measure([Example(turns=(user(), assistant("Two.", loss=False)))], demo_family)
    assert_skipped(skip, "no_target")


def test_an_answer_without_words_is_no_target(demo_family):
    assert trained([user(), assistant("")], demo_family).reason == "no_target"
    assert trained([*TALK, user(), assistant("")], demo_family, turns="last-assistant").reason == "no_target"
    assert trained([user(), assistant("")] + TALK, demo_family)[0] == "<|im_end|>", (
        "an empty answer among others is one"
    )


def test_wishes_that_cannot_be_met_are_refused(demo_family):
    skip = trained([user(loss=True), assistant("Because.")], demo_family)
    assert skip.reason == "bad_row"
    assert_skipped(skip, "bad_row", "--train-on", turn=0)
    assert trained([user(loss=False), assistant("Because.")], demo_family) == ["Because.<|im_end|>"]
    assert trained([user(loss=False), assistant("Because.")], demo_family, turns="all").reason == "bad_row"


def test_reasoning_apart_and_in_the_text(talkative):
    thought = [user(), assistant("Yes.", reasoning="Hm, <|im_end|> well.")]
    whole = "<think>\nHm, <|im_end|> well.\n</think>\n\nYes.<|im_end|>"
    assert trained(thought, talkative) == [whole]
    assert trained(thought, talkative, reasoning="mask") == ["Yes.<|im_end|>"]
    assert trained(thought, talkative, reasoning="drop") == ["Yes.<|im_end|>"]
    inline = [user(), assistant("<think>Hm.</think> Yes.")]
    assert trained(inline, talkative) == ["<think>Hm.</think> Yes.<|im_end|>"]
    (masked,) = trained(inline, talkative, reasoning="mask")
    assert masked.strip() == "Yes.<|im_end|>"
    assert trained([user(), assistant("", reasoning="Hm.")], talkative, reasoning="drop").reason == "no_target"


def test_tools_are_written_by_the_template_and_their_results_masked(talkative):
    turns = [user(), assistant("", tool_calls=(CALL,)), Turn(role="tool", parts=("blue",), name="look", call_id="1"),
             assistant("It is blue.")]  # fmt: skip
    calls, answer = trained(turns, talkative, tools=(TOOL,))
    assert calls == '<tool_call>{"name": "look", "arguments": {"at": "the <|im_end|> sky"}}</tool_call><|im_end|>'
    assert answer == "It is blue.<|im_end|>"
    (measured,) = measure([Example(turns=tuple(turns), tools=(TOOL,))], talkative)
    text = talkative.chat.tokenizer.decode(measured.ids)
    assert text.startswith("<|im_start|>system\nTools: {") and "<tool_response>blue</tool_response>" in text


@pytest.mark.parametrize(
    ("example", "what"),
    [
        (Example(turns=(user(), assistant("Yes.")), tools=(TOOL,)), "tools"),
        (Example(turns=(user(), assistant("", tool_calls=(CALL,)))), "tool_calls"),
        (Example(turns=(user(), assistant("Yes.", reasoning="Hm."))), "reasoning_content"),
    ],
)
def test_what_a_template_would_leave_out_in_silence_is_refused(demo_family, example, what):
    (skip,) = measure([example], demo_family)
    assert skip.reason == "bad_row"
    assert_skipped(skip, "bad_row", f"{what}: ")
    assert ("--reasoning" in skip.detail) == (what == "reasoning_content")


def test_a_template_that_joins_turns_is_refused_not_guessed(demo_family, monkeypatch):
    monkeypatch.setattr(type(demo_family.chat), "template", lambda *_: "<|im_start|>assistant\nA B<|im_end|>\n")
    skip = trained([user(), assistant("A"), assistant("B")], demo_family)
    assert_skipped(skip, "bad_row", got=1, expected=2)


def test_documents(demo_family, tmp_path):
    picture(tmp_path / "a.png", 56, 56)
    image = MediaRef(kind="image", path=str(tmp_path / "a.png"))
    parts = ("A cat. ", image, " And <|im_end|> a dog.")
    (measured,) = measure([Example(turns=(Turn(role="document", parts=parts),))], demo_family)
    eos = demo_family.chat.tokenizer.eos_token
    assert (measured.form, runs(measured, demo_family)) == ("document", ["A cat. ", f" And <|im_end|> a dog.{eos}"])
    assert np.count_nonzero(measured.ids == demo_family.chat.tokenizer.eos_token_id) == 1, "the literal one is text"
    cut = truncated(measured, 3, demo_family)
    assert cut is not None and cut.form == "document" and len(cut.ids) == 4


# Whole outputs


def rows_of_all_kinds(data: TinyData) -> TinyData:
    for number in range(6):
        data.row([("user", f"Q{number}"), ("assistant", "One."), ("user", "And?"), ("assistant", f"Two {number}.")])
        data.image(56, 84)
    for row in data.rows[::3]:
        row["id"] = f"row {len(row['messages'])}"
    return data


@pytest.mark.parametrize("train_on", ["all-assistant", "last-assistant", "all"])
def test_outputs_are_verified_and_a_changed_mask_is_found(tmp_path, train_on):
    config = tiny_config(rows_of_all_kinds(TinyData(tmp_path / "data")).write(), tmp_path / "out", train_on=train_on)
    manifest = run_pack(config).manifest
    assert_verified(tmp_path / "out")
    packs = list(packs_of(tmp_path / "out"))
    for pack in packs:
        documents = pack.documents
        at = next(index for index, document in enumerate(documents) if document.row >= 0)
        (start, stop), *rest = documents[at].targets
        begins = sum(document.tokens for document in documents[:at])
        pack.arrays["labels"] = pack.arrays["labels"].copy()
        pack.arrays["labels"][begins + start] = IGNORE
        changed = dataclasses.replace(documents[at], targets=((start + 1, stop), *rest))
        told = check_pack(pack, manifest)
        assert "document-labels" in {problem.code for problem in told}, "not as the JSON says"
        consistent = dataclasses.replace(pack, documents=(*documents[:at], changed, *documents[at + 1 :]))
        told = check_pack(consistent, manifest)
        assert "document-targets" in {problem.code for problem in told}, "nor as was asked"


def test_ids_are_in_the_ledger_and_in_the_packs(tmp_path):
    data = rows_of_all_kinds(TinyData(tmp_path / "data"))
    data.rows.append({"id": 17, "messages": []})
    run_pack(tiny_config(data.write(), tmp_path / "out"))
    ledger = {line["row"]: line["id"] for line in pq.read_table(tmp_path / "out" / "ledger").to_pylist()}
    assert ledger == {row: str(value.get("id", "")) for row, value in enumerate(data.rows)}
    in_packs = {doc.row: doc.id for pack in packs_of(tmp_path / "out") for doc in pack.documents if doc.row >= 0}
    assert in_packs == {row: id_ for row, id_ in ledger.items() if row != len(data.rows) - 1}


# Real templates


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/processors")
@pytest.mark.parametrize("name", ["qwen3-vl", "qwen3-omni"])
def test_tools_as_transformers_renders_them(name):
    family = family_for(str(SHARED / "processors" / name))
    said = {"name": "look", "arguments": {"at": "the sky"}}
    messages = [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": said}]},
        {"role": "tool", "content": "blue"},
        {"role": "assistant", "content": "It is blue."},
    ]
    whole: Any = family.chat.tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=True, return_dict=True)
    turns = (user(), assistant("", tool_calls=({"type": "function", "function": said},)),
             Turn(role="tool", parts=("blue",)), assistant("It is blue."))  # fmt: skip
    (measured,) = measure([Example(turns=turns, tools=(TOOL,))], family)
    assert measured.ids.tolist() == whole["input_ids"]
    assert runs(measured, family) == [
        f"<tool_call>\n{json.dumps(said)}\n</tool_call><|im_end|>",
        "It is blue.<|im_end|>",
    ]
