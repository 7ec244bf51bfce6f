"""Every format literally, which one rows are in, and no row that raises."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from format_rows import ASKED, TEXT_OF_PNG, USER, asked, dataset, turns_of
from hypothesis import given, strategies as st
from support.errors import assert_skipped

from neatpack.pipeline.ingest import convert as convert_module
from neatpack.pipeline.ingest.conversation import from_conversation, to_conversation
from neatpack.pipeline.ingest.convert import convert, first_rows, resolved
from neatpack.pipeline.ingest.formats import FORMATS
from neatpack.pipeline.ingest.formats.detect import detect
from neatpack.pipeline.ingest.holdout import row_hash
from neatpack.pipeline.ingest.lines import Part
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.media.inline import LastLine
from neatpack.pipeline.records import REASONS, Example, MediaRef, Skip, Turn


def image(name: str) -> MediaRef:
    return MediaRef(kind="image", path=f"/media/{name}")


def document(*parts: str | MediaRef) -> tuple[Turn]:
    return (Turn(role="document", parts=parts),)


SHAREGPT = [{"from": "human", "value": "<image>Who?"}, {"from": "gpt", "value": "Me."}]
VSFT = [
    {"role": "user", "content": [{"type": "image", "index": 1, "text": None}, {"type": "text", "text": "Who?"}]},
    {"role": "user", "content": [{"type": "image", "index": 0, "text": None, "image": None}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Me.", "index": None}]},
]
A, B = image("a.jpg"), image("b.jpg")
# Name -> the format that is told from the row, the row, and its turns.
GOOD: dict[str, tuple[str, dict[str, Any], tuple[Turn, ...]]] = {
    "messages": ("messages", {"messages": ASKED}, asked("Who?")),
    "messages with a picture": (
        "messages",
        {"messages": [{"role": "user", "content": "<image>Who?"}, ASKED[1]], "image": "a.jpg"},
        asked(A, "Who?"),
    ),
    "messages as text": ("messages", {"messages": json.dumps(ASKED)}, asked("Who?")),
    "messages as a Sequence of datasets": (
        "messages",
        {"messages": {"role": ["user", "assistant"], "content": ["Who?", "Me."], "loss": [None, None]}},
        asked("Who?"),
    ),
    "roles that need no tags": (
        "sharegpt",
        {"conversations": [{"from": "user", "value": "Who?"}, {"from": "chatgpt", "value": "Me."}]},
        asked("Who?"),
    ),
    "roles with capital letters": (
        "messages",
        {"messages": [{"role": "Human", "content": "Who?"}, {"role": "Assistant", "content": "Me."}]},
        asked("Who?"),
    ),
    "parts without a type": (
        "messages",
        {"messages": [{"role": "user", "content": [{"image": "a.jpg"}, {"text": "Who?"}]}, ASKED[1]]},
        asked(A, "Who?"),
    ),
    "pictures as a text that is JSON": (
        "messages",
        {"messages": [{"role": "user", "content": "<image><image>Who?"}, ASKED[1]], "images": '["a.jpg", "b.jpg"]'},
        asked(A, B, "Who?"),
    ),
    "messages as conversations": ("messages", {"conversations": ASKED, "id": 3}, asked("Who?")),
    "LLaMA-Factory's parts": (
        "messages",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "value": "a.jpg"}, {"type": "text", "value": "Who?"}],
                },
                {"role": "assistant", "content": [{"type": "text", "value": "Me."}]},
            ]
        },
        asked(A, "Who?"),
    ),
    "a system column": (
        "messages",
        {"messages": ASKED, "system": " Be brief."},
        (Turn(role="system", parts=(" Be brief.",)), *asked("Who?")),
    ),
    "sharegpt": ("sharegpt", {"conversations": SHAREGPT, "images": ["a.jpg"]}, asked(A, "Who?")),
    "sharegpt with a system column": (
        "sharegpt",
        {"system": "s", "conversations": [SHAREGPT[0] | {"value": "Who?"}, SHAREGPT[1]]},
        (Turn(role="system", parts=("s",)), *asked("Who?")),
    ),
    "llava": ("llava", {"id": "7", "image": "a.jpg", "conversations": SHAREGPT}, asked(A, "Who?")),
    "llava with a list": ("llava", {"image": ["a.jpg"], "conversations": SHAREGPT}, asked(A, "Who?")),
    "llava, a video at an <image>": (
        "llava",
        {"video": "a.mp4", "conversations": SHAREGPT},
        asked(MediaRef(kind="video", path="/media/a.mp4"), "Who?"),
    ),
    "Qwen-VL's pictures in the text": (
        "sharegpt",
        {
            "conversations": [
                {"from": "user", "value": "Picture 1: <img>a.jpg</img>\n<img>b.jpg</img>Who?"},
                {"from": "assistant", "value": "Me."},
            ]
        },
        asked("Picture 1: ", A, B, "Who?"),
    ),
    "XML in a question": (
        "messages",
        {"messages": [{"role": "user", "content": "<img>none</img> <b>a.png</b> <img>a.xyz</img>"}, ASKED[1]]},
        asked("<img>none</img> <b>a.png</b> <img>a.xyz</img>"),
    ),
    "XML in a document": ("document", {"text": "<img>a.jpg</img>"}, document("<img>a.jpg</img>")),
    "vsft": (
        "vsft",
        {"messages": VSFT, "images": ["a.jpg", "b.jpg"]},
        (Turn(role="user", parts=(B, "Who?")), Turn(role="user", parts=(A,)), asked("")[1]),
    ),
    "cauldron": (
        "cauldron",
        {"images": ["a.jpg", "b.jpg"], "texts": [{"user": "Who?", "assistant": "Me.", "source": "x"}] * 2},
        (*asked(A, B, "Who?"), *asked("Who?")),
    ),
    "prompt and response": ("prompt_response", {"prompt": "Who?", "response": "Me."}, asked("Who?")),
    "prompt and completion": ("prompt_response", {"prompt": "Who?", "completion": "Me."}, asked("Who?")),
    "question and answer": ("prompt_response", {"question": "Who?", "answer": "Me."}, asked("Who?")),
    "question and response": ("prompt_response", {"question": "Who?", "response": "Me."}, asked("Who?")),
    "a pair with a history": (
        "prompt_response",
        {"query": "Who?", "response": "Me.", "history": [["Hi.", "Me."]]},
        (*asked("Hi."), *asked("Who?")),
    ),
    "a history as a text that is JSON": (
        "prompt_response",
        {"prompt": "Who?", "response": "Me.", "history": '[["Hi.", "Me."]]'},
        (*asked("Hi."), *asked("Who?")),
    ),
    "a history of another kind": (
        "prompt_response",
        {"question": "Who?", "answer": "Me.", "history": "Two knees."},
        asked("Who?"),
    ),
    "a picture without a tag": (
        "prompt_response",
        {"query": "Who?", "response": "Me.", "image": "a.jpg"},
        asked(A, "Who?"),
    ),
    "a picture with a tag": (
        "prompt_response",
        {"system": "s", "prompt": "Who is <image>?", "response": "Me.", "images": ["a.jpg"]},
        (Turn(role="system", parts=("s",)), *asked("Who is ", A, "?")),
    ),
    "alpaca": ("alpaca", {"instruction": "Who?", "input": "", "output": "Me."}, asked("Who?")),
    "alpaca, all of it": (
        "alpaca",
        {"instruction": "Who", "input": "is it?", "output": "Me.", "system": "s", "history": [["Hi.", "Me."]]},
        (Turn(role="system", parts=("s",)), *asked("Hi."), *asked("Who\nis it?")),
    ),
    "text": ("document", {"text": " Once \n"}, document(" Once \n")),
    "text with tags": (
        "document",
        {"text": "a <image>\nb<IMAGE>", "images": ["a.jpg", "b.jpg"]},
        document("a ", A, "\nb", B),
    ),
    "text without tags": ("document", {"text": "ab", "image": "a.jpg"}, document(A, "ab")),
    "a web page": ("document", {"text": "A page.", "url": "https://a.org/b"}, document("A page.")),
    "a caption": ("document", {"url": "a.jpg", "caption": "A cat."}, document(A, "A cat.")),
    "a caption of a video": (
        "document",
        {"video": "a.mp4", "caption": "A cat."},
        document(MediaRef(kind="video", path="/media/a.mp4"), "A cat."),
    ),
    "OBELICS": (
        "document",
        {"images": [None, "a.jpg", None, "b.jpg"], "texts": ["x <image>", None, "y", None]},
        document("x <image>", A, "y", B),
    ),
    "MMC4": (
        "document",
        {
            "text_list": ["One.", "Two.", "Three."],
            "image_info": [
                {"image_name": "a.jpg", "matched_text_index": 2, "raw_url": "http://x/y"},
                {"image_name": "b.jpg", "matched_text_index": 0},
            ],
        },
        document(B, "One. Two.", A, "Three."),
    ),
    "content in parts": (
        "document",
        {"content": [{"type": "text", "text": "x "}, {"type": "image"}], "images": "a.jpg"},
        document("x ", A),
    ),
}


@pytest.mark.parametrize(("name", "row", "turns"), GOOD.values(), ids=GOOD)
def test_each_format(name: str, row: dict[str, Any], turns: tuple[Turn, ...]) -> None:
    assert detect([row]) == name
    example = convert(row, dataset(name))
    assert example == Example(turns=turns)
    assert from_conversation(to_conversation(example)) == Example(turns=turns)  # as it is handed on online


def test_an_alias() -> None:
    assert "openai" not in FORMATS  # `read_meta` makes messages of it, see test_meta.py


# Name -> format, row, reason, and what the detail names.
BAD: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...]]] = {
    "nothing known": (
        "messages",
        {"foo": 1, "bar": 2},
        "bad_row",
        ("'messages'", "'foo'", "'bar'"),
    ),
    "messages as broken text": ("messages", {"messages": "[{"}, "bad_row", ("text",)),
    "two systems": (
        "messages",
        {"system": "s", "messages": [{"role": "system", "content": "t"}, *ASKED]},
        "bad_row",
        ("'system'",),
    ),
    "an unknown key before all else": (
        "messages",
        {"messages": [{"role": "user", "content": "<image>", "lable": 1}, ASKED[1]]},
        "bad_row",
        ("turn 0", "'lable'"),
    ),
    "system is a number": ("messages", {"system": 3, "messages": ASKED}, "bad_row", ("'system'", "number")),
    "index out of range": (
        "vsft",
        {"messages": VSFT, "images": ["a.jpg"]},
        "bad_placeholders",
        ("index 1", "1 image"),
    ),
    "a picture that no index names": (
        "vsft",
        {"messages": VSFT, "images": ["a.jpg", "b.jpg", "c.jpg"]},
        "bad_placeholders",
        ("'image'", "1 image"),
    ),
    "index is a text": (
        "vsft",
        {"messages": [{"role": "user", "content": [{"type": "image", "index": "0"}]}, ASKED[1]], "images": ["a.jpg"]},
        "bad_row",
        ("'image'",),
    ),
    "llava, two videos at an <image>": (
        "llava",
        {"video": ["a.mp4", "b.mp4"], "conversations": SHAREGPT},
        "bad_placeholders",
        ("1 <image>", "0 image"),
    ),
    "lists of two lengths": (
        "messages",
        {"messages": {"role": ["user", "assistant"], "content": ["Who?"]}},
        "bad_row",
        ("'messages'", "object"),
    ),
    "texts are texts": ("cauldron", {"texts": ["a"]}, "bad_row", ("pair 0", "text")),
    "a pair without an answer": (
        "cauldron",
        {"texts": [{"user": "a"}]},
        "bad_row",
        ("pair 0", "'assistant'", "null"),
    ),
    "an unknown key of a pair": (
        "cauldron",
        {"texts": [{"user": "a", "assistant": "b", "weigth": 0}]},
        "bad_row",
        ("pair 0", "'weigth'"),
    ),
    "no response": (
        "prompt_response",
        {"prompt": "a"},
        "bad_row",
        ("'response'",),
    ),
    "no output": ("alpaca", {"instruction": "a"}, "bad_row", ("'output'",)),
    "tags and pictures": (
        "prompt_response",
        {"prompt": "<image><image>", "response": "b", "image": "a.jpg"},
        "bad_placeholders",
        ("2 <image>", "1 image"),
    ),
    "history": (
        "alpaca",
        {"instruction": "a", "output": "b", "history": [["a"]]},
        "bad_row",
        ("entry 0",),
    ),
    "a history of halves": (
        "prompt_response",
        {"query": "a", "response": "b", "history": [["a"]]},
        "bad_row",
        ("'history'", "entry 0"),
    ),
    "an empty answer": ("alpaca", {"instruction": "a", "output": ""}, "no_target", ()),
    "half of a pair": (
        "prompt_response",
        {"question": "a"},
        "bad_row",
        ("'answer'", "'question'"),
    ),
    "a tag of others": (
        "prompt_response",
        {"prompt": "What is in <image 1>?", "response": "a", "image": "a.jpg"},
        "bad_placeholders",
        ("0 <image>", "1 image", "'<image 1>'"),
    ),
    "a tag of others, in a document": (
        "document",
        {"text": "<img>a.jpg</img> A cat.", "image": "a.jpg"},
        "bad_placeholders",
        ("'<img>a.jpg</img>'",),
    ),
    "an empty document": ("document", {"text": ""}, "no_target", ()),
    "only a picture": ("document", {"image": "a.jpg"}, "no_target", ()),
    "no document": ("document", {"foo": 1}, "bad_row", ("'text'", "'foo'")),
    "OBELICS, of two lengths": ("document", {"texts": ["a"], "images": []}, "bad_row", ()),
    "OBELICS, both": (
        "document",
        {"texts": ["a"], "images": ["b"]},
        "bad_row",
        ("place 0", "'texts'", "'images'"),
    ),
    "MMC4, no such text": (
        "document",
        {"text_list": ["a"], "image_info": [{"image_name": "b", "matched_text_index": 1}]},
        "bad_row",
        ("matched_text_index",),
    ),
}


@pytest.mark.parametrize(("name", "row", "reason", "named"), BAD.values(), ids=BAD)
def test_bad_rows(name: str, row: dict[str, Any], reason: str, named: tuple[str, ...]) -> None:
    assert_skipped(convert(row, dataset(name)), reason, *named)


@pytest.mark.parametrize(
    "tag",
    ["<|image|>", "<|vision_start|><|image_pad|><|vision_end|>", "<image_placeholder>", "<ImageHere>", "<|img_2|>"],
)
def test_tags_of_others(tag: str) -> None:
    """Media that come first would leave them behind as text, to be asked about."""
    row = {"prompt": f"Who is {tag}?", "response": "Me."}
    assert turns_of(convert(row, dataset("prompt_response"))) == asked(f"Who is {tag}?"), "without a picture it is text"
    skip = convert({**row, "image": "a.jpg"}, dataset("prompt_response"))
    assert_skipped(skip, "bad_placeholders", tag.removeprefix("<|vision_start|>")[:11], kind="image", tags=0, media=1)


@pytest.mark.parametrize(
    ("name", "media"),
    [
        ("prompt_response", {"images": [], "image": "a.jpg"}),
        ("prompt_response", {"images": None, "image": "a.jpg"}),
        ("llava", {"images": ["a.jpg"]}),
        ("llava", {"image": [], "images": "a.jpg"}),
        ("llava", {"image": "", "images": "a.jpg"}),
        ("llava", {"image": [{"bytes": None, "path": ""}], "images": "a.jpg"}),
    ],
)
def test_the_other_name_of_a_column_of_media(name: str, media: dict[str, Any]) -> None:
    """A picture under it is not left behind, whichever of the two the format begins with, and what tables fill in."""
    turns = {"prompt": "Who?", "response": "Tom.", "conversations": SHAREGPT}
    example = convert({**turns, **media}, dataset(name))
    assert isinstance(example, Example)
    assert [ref.path for ref in example.media] == ["/media/a.jpg"]


# ---------------------------------------------------------------- which format


def test_the_format_is_that_of_most_rows() -> None:
    text = [{"from": "human", "value": "Who?"}, SHAREGPT[1]]
    assert detect([{"conversations": text}] * 9) == "sharegpt"
    assert detect([{"conversations": text}] * 9 + [{"conversations": SHAREGPT, "image": "a.jpg"}]) == "llava"
    assert detect([{"foo": 1}, {"text": "a"}]) == "document"
    assert detect([{"foo": 1}]) is None
    assert detect([]) is None


def test_a_data_set_gets_its_format_and_what_it_uses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    given = Dataset(name="coco", format="auto")
    row = {"id": 1, "image": "a.jpg", "conversations": SHAREGPT, "source": "web", "system": None}
    with caplog.at_level(logging.INFO):
        found = resolved(given, [row])
    assert (found.format, found.columns, found.tags) == ("llava", FORMATS["llava"].columns, FORMATS["llava"].tags)
    assert found.described()["format"] == "llava"
    (message,) = caplog.messages
    assert message.startswith("coco: ") and "llava" in message and "id, image, conversations" in message
    assert message.endswith(" source"), "what is not used"
    assert resolved(found, [row]) == found  # what is given stays
    assert resolved(given, [{"foo": 1}]).format == "messages"
    assert caplog.records[-1].levelname == "WARNING"
    assert "messages" in caplog.messages[-1] and caplog.messages[-1].endswith(" foo")
    assert resolved(given, []).format == "messages"
    assert len(caplog.records) == 2  # nothing to warn of


def test_first_rows_leave_out_what_is_no_row(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1}\n{broken\n[]\n{"a": 2}\n')
    part = Part(file=str(file), start=0, end=file.stat().st_size, first_row=0, num_rows=4, first_line=1)
    assert first_rows([part]) == [{"a": 1}, {"a": 2}]
    assert first_rows([]) == []


def test_long_rows_are_not_all_read_for_their_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1}\n' * 200)
    part = Part(file=str(file), start=0, end=file.stat().st_size, first_row=0, num_rows=200, first_line=1)
    assert len(first_rows([part])) == 100
    monkeypatch.setattr(convert_module, "FIRST_BYTES", 20)  # a row has 9
    assert len(first_rows([part])) == 3


# ---------------------------------------------------------------- holding out


def test_a_copy_in_another_format_is_held_out_with_the_row() -> None:
    def hash_of(row: dict[str, Any], name: str) -> int:
        return row_hash(json.dumps(row).encode(), dataset(name))

    copies = [
        GOOD[name] for name in ("messages", "messages as text", "prompt and response", "question and answer", "alpaca")
    ]
    assert len({hash_of(row, name) for name, row, _ in copies}) == 1
    said_by_hash: dict[int, tuple[Turn, ...]] = {}
    for name, row, turns in GOOD.values():
        assert said_by_hash.setdefault(hash_of(row, name), turns) == turns  # what says something else is another row
    calls = [
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [{"name": name}]}]} for name in "ab"
    ]
    assert hash_of(calls[0], "messages") != hash_of(calls[1], "messages")
    tools = [{"messages": ASKED, "tools": [{"name": name}]} for name in "ab"]
    assert hash_of(tools[0], "messages") != hash_of(tools[1], "messages") != hash_of({"messages": ASKED}, "messages")


# ---------------------------------------------------------------- properties

KEYS = (
    "messages", "conversations", "role", "from", "content", "value", "images", "image", "videos", "system", "tools",
    "type", "index", "texts", "user", "assistant", "prompt", "response", "question", "answer", "instruction", "input",
    "output", "history", "text", "caption", "url", "text_list", "image_info", "image_name", "matched_text_index",
    "path", "bytes", "base64", "image_url", "frames", "fps", "loss", "weight", "tool_calls", "name", "arguments",
    "function", "reasoning", "id",
)  # fmt: skip
WORDS = ("", "a.jpg", "<image>", "user", "assistant", "human", "gpt", "tool", "text", "image", "image_url", "[]",
         "[{}]", "data:,x", "s3://b/c", "ftp://x", TEXT_OF_PNG, "\ud83d", "file:///%ff", "file://[")  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.floats() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
NAMES = st.sampled_from(list(FORMATS))


@given(NAMES, st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5), st.booleans())
def test_any_row_of_any_format_is_converted_or_skipped(name: str, row: dict[str, Any], lenient: bool) -> None:
    check(name, row, lenient)


@given(st.sampled_from(list(GOOD)), st.data(), st.booleans())
def test_good_rows_with_something_else_in_a_place(which: str, data: st.DataObject, lenient: bool) -> None:
    name, row, _ = GOOD[which]
    row = json.loads(json.dumps(row))
    at: Any = row
    while True:
        step = data.draw(st.sampled_from(list(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[step], dict | list) or not at[step] or data.draw(st.booleans()):
            break
        at = at[step]
    at[step] = data.draw(JSON)
    check(name, row, lenient)


def check(name: str, row: dict[str, Any], lenient: bool) -> None:
    result = convert(row, dataset(name), lenient=lenient)
    assert isinstance(result, Example | Skip)
    detect([row])
    row_hash(json.dumps(row).encode(), dataset(name))
    if isinstance(result, Skip):
        assert result.reason in REASONS
        result.detail.encode()
        assert TEXT_OF_PNG[:20] not in result.detail
        return
    json.dumps([turn.tool_calls for turn in result.turns], ensure_ascii=False).encode()
    for ref in result.media:
        assert ref.path or (ref.inside and ref.held is not None)
        if ref.inside:
            assert LastLine().bytes_at(0, json.dumps(row).encode, ref.inside) == ref.held


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<"), min_size=1, max_size=8)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3))
def test_texts_in_are_texts_out(pairs: list[tuple[str, str]]) -> None:
    """To the letter."""
    tagged = [
        {"from": role, "value": text} for pair in pairs for role, text in zip(("human", "gpt"), pair, strict=True)
    ]
    named = [{"role": {"human": "user", "gpt": "assistant"}[turn["from"]], "content": turn["value"]} for turn in tagged]
    (question, answer), *_ = pairs
    told = any(text.strip() for _, text in pairs)
    every = [
        ("messages", {"messages": named}),
        ("sharegpt", {"conversations": tagged}),
        ("llava", {"conversations": tagged}),
        ("cauldron", {"texts": [{"user": user, "assistant": text} for user, text in pairs]}),
    ]
    for name, row in every:
        found = convert(row, dataset(name))
        if not told:
            assert isinstance(found, Skip) and found.reason == "no_target"
            continue
        assert [turn.parts[0] for turn in turns_of(found)] == [
            text for user, text_ in pairs for text in (user, text_)
        ], name
    single = [("prompt_response", {"prompt": question, "response": answer}),
              ("alpaca", {"instruction": question, "output": answer})]  # fmt: skip
    for name, row in single:
        found = convert(row, dataset(name))
        if answer.strip():
            assert turns_of(found) == (
                Turn(role="user", parts=(question,)),
                Turn(role="assistant", parts=(answer,)),
            )
    texts = [text for pair in pairs for text in pair]
    as_parts = [{"type": "text", "text": text} for text in texts]
    if any(text.strip() for text in texts):
        assert turns_of(convert({"content": as_parts}, dataset("document"))) == document(*texts)
        obelics = {"texts": texts, "images": [None] * len(texts)}
        assert turns_of(convert(obelics, dataset("document"))) == document(*texts)
        assert turns_of(convert({"text": "".join(texts)}, dataset("document"))) == document("".join(texts))


def test_a_medium_whose_every_field_is_null_is_none() -> None:
    """As tables have it: a text row of a set with pictures."""
    dataset = Dataset(name="d", format="document", columns=FORMATS["document"].columns)
    found = convert({"text": "A cat.", "image": {"bytes": None, "path": None}}, dataset)
    assert isinstance(found, Example) and found.media == ()
    told = convert({"text": "<image> A cat.", "image": {"bytes": None, "path": None}}, dataset)
    assert_skipped(told, "bad_placeholders", kind="image", tags=1, media=0)
