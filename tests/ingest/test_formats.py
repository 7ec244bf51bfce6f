"""Every format literally, which one rows are in, every spelling of a medium, and no row that raises."""

import base64
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from neatpack.pipeline.ingest import convert as convert_module
from neatpack.pipeline.ingest.conversation import from_conversation, to_conversation
from neatpack.pipeline.ingest.convert import convert, first_rows, resolved
from neatpack.pipeline.ingest.formats import FORMATS
from neatpack.pipeline.ingest.formats.detect import detect
from neatpack.pipeline.ingest.holdout import row_hash
from neatpack.pipeline.ingest.lines import Part
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.media.inline import bytes_in_line, pointed
from neatpack.pipeline.media.open import open_media
from neatpack.pipeline.records import REASONS, Example, MediaRef, Skip, Turn

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TEXT_OF_PNG = base64.b64encode(PNG).decode()


def dataset(name: str, **keys: Any) -> Dataset:
    """A data set of a format, as `read_meta` gives it."""
    preset = FORMATS[name]
    given = {"columns": preset.columns, "tags": preset.tags, "media_dir": "/media"} | keys
    return Dataset(name="d", files=("rows.jsonl",), format=name, **given)


def image(name: str) -> MediaRef:
    return MediaRef(kind="image", path=f"/media/{name}")


def asked(*parts: str | MediaRef) -> tuple[Turn, Turn]:
    """A user's turn, and the answer "Me."."""
    return Turn(role="user", parts=parts), Turn(role="assistant", parts=("Me.",))


def document(*parts: str | MediaRef) -> tuple[Turn]:
    return (Turn(role="document", parts=parts),)


ASKED = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}]
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
    "a picture without a tag": (
        "prompt_response",
        {"query": "Who?", "response": "Me.", "image": "a.jpg"},
        asked(A, "Who?"),
    ),
    "a picture with a tag": (
        "prompt_response",
        {"system": "s", "prompt": "Who is <image>?", "response": "Me.", "images": ["a.jpg"]},
        (Turn(role="system", parts=("s",)), *asked("Who is", A, "?")),
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
    assert example == Example(turns=turns, id=str(row.get("id", "")))
    assert from_conversation(to_conversation(example)) == Example(turns=turns)  # as it is handed on online


def test_an_alias() -> None:
    assert "openai" not in FORMATS  # `read_meta` makes messages of it, see test_meta.py


# Name -> format, row, reason, and words of the detail.
BAD: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "nothing known": (
        "messages",
        {"foo": 1, "bar": 2},
        "bad_row",
        "column 'messages' is absent; expected a list of turns; the row has 'foo', 'bar': name its columns, or give",
    ),
    "messages as broken text": ("messages", {"messages": "[{"}, "bad_row", "is a JSON text; expected a list"),
    "two systems": (
        "messages",
        {"system": "s", "messages": [{"role": "system", "content": "t"}, *ASKED]},
        "bad_row",
        "both a column 'system' and a turn of role 'system'; remove one",
    ),
    "an unknown key before all else": (
        "messages",
        {"messages": [{"role": "user", "content": "<image>", "lable": 1}, ASKED[1]]},
        "bad_row",
        "turn 0: unknown key 'lable'",
    ),
    "system is a number": ("messages", {"system": 3, "messages": ASKED}, "bad_row", "column 'system' is a JSON number"),
    "index out of range": (
        "vsft",
        {"messages": VSFT, "images": ["a.jpg"]},
        "bad_placeholders",
        "a part with the index 1 but 1 images",
    ),
    "a picture that no index names": (
        "vsft",
        {"messages": VSFT, "images": ["a.jpg", "b.jpg", "c.jpg"]},
        "bad_placeholders",
        "0 parts of type 'image' without their own image but 1 images that no index names; fix the row or set",
    ),
    "index is a text": (
        "vsft",
        {"messages": [{"role": "user", "content": [{"type": "image", "index": "0"}]}, ASKED[1]], "images": ["a.jpg"]},
        "bad_row",
        "index of a part of type 'image' must be a whole number",
    ),
    "texts are texts": ("cauldron", {"texts": ["a"]}, "bad_row", "pair 0 is a JSON text; expected an object"),
    "a pair without an answer": (
        "cauldron",
        {"texts": [{"user": "a"}]},
        "bad_row",
        "pair 0: 'assistant' is a JSON null",
    ),
    "an unknown key of a pair": (
        "cauldron",
        {"texts": [{"user": "a", "assistant": "b", "weigth": 0}]},
        "bad_row",
        "pair 0: unknown key 'weigth'; fix it, or list",
    ),
    "no response": (
        "prompt_response",
        {"prompt": "a"},
        "bad_row",
        "column 'response' is absent; expected a text; the row",
    ),
    "no output": ("alpaca", {"instruction": "a"}, "bad_row", "column 'output' is absent"),
    "tags and pictures": (
        "prompt_response",
        {"prompt": "<image><image>", "response": "b", "image": "a.jpg"},
        "bad_placeholders",
        "2 <image> tags but 1 images",
    ),
    "history": (
        "alpaca",
        {"instruction": "a", "output": "b", "history": [["a"]]},
        "bad_row",
        "entry 0 is no [question",
    ),
    "an empty answer": ("alpaca", {"instruction": "a", "output": ""}, "no_target", "no assistant turn that is trained"),
    "an empty document": ("document", {"text": ""}, "no_target", "a document without text"),
    "only a picture": ("document", {"image": "a.jpg"}, "no_target", "a document without text"),
    "no document": ("document", {"foo": 1}, "bad_row", "column 'text' is absent; expected a text; the row has 'foo'"),
    "OBELICS, of two lengths": ("document", {"texts": ["a"], "images": []}, "bad_row", "must be lists of one length"),
    "OBELICS, both": (
        "document",
        {"texts": ["a"], "images": ["b"]},
        "bad_row",
        "place 0 of 'texts' and 'images' has both",
    ),
    "MMC4, no such text": (
        "document",
        {"text_list": ["a"], "image_info": [{"image_name": "b", "matched_text_index": 1}]},
        "bad_row",
        "a matched_text_index below 1",
    ),
}


@pytest.mark.parametrize(("name", "row", "reason", "words"), BAD.values(), ids=BAD)
def test_bad_rows(name: str, row: dict[str, Any], reason: str, words: str) -> None:
    skip = convert(row, dataset(name))
    assert isinstance(skip, Skip)
    assert skip.reason == reason and words in skip.detail


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
    assert caplog.messages == [
        "coco: format llava, told from its first rows; columns used: id, image, conversations; not used: source"
    ]
    assert resolved(found, [row]) == found  # what is given stays
    assert resolved(given, [{"foo": 1}]).format == "messages"
    assert caplog.records[-1].levelname == "WARNING"
    assert caplog.messages[-1] == (
        "coco: format messages, for no other fits its first rows; columns used: none; not used: foo"
    )
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


# ---------------------------------------------------------------- keys of turns


def spoken(*turns: dict[str, Any], **columns: Any) -> Example | Skip:
    keys = {key: columns.pop(key) for key in ("ignore_keys",) if key in columns}
    return convert({"messages": list(turns), **columns}, dataset("messages", **keys))


def turns_of(example: Example | Skip) -> tuple[Turn, ...]:
    assert isinstance(example, Example), example
    return example.turns


USER, ANSWER = {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}


@pytest.mark.parametrize(
    ("keys", "loss"),
    [({}, None), ({"loss": False}, False), ({"loss": 1}, True), ({"weight": 0}, False), ({"weight": 1.0}, True),
     ({"loss": None, "weight": None}, None), ({"loss": True, "weight": 1}, True)],
)  # fmt: skip
def test_loss_of_a_turn(keys: dict[str, Any], loss: bool | None) -> None:
    assert turns_of(spoken(USER, ANSWER | keys, ANSWER))[1].loss is loss


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning(key: str) -> None:
    assert turns_of(spoken(USER, ANSWER | {key: " Hm. "}))[1] == Turn(
        role="assistant", parts=("Me.",), reasoning=" Hm. "
    )


CALL = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Rome"}}}


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        {"type": "function", "function": {"name": "weather", "arguments": '{"place": "Rome"}'}},
        {"name": "weather", "arguments": {"place": "Rome"}},
        {"name": "weather", "arguments": '{"place": "Rome"}', "function": None},
    ],
)
def test_tool_calls(call: dict[str, Any]) -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "Sunny.", "name": "weather", "tool_call_id": "c1"}
    assert turns_of(spoken(USER, calling, result, ANSWER))[1:3] == (
        Turn(role="assistant", parts=("",), tool_calls=(CALL,)),
        Turn(role="tool", parts=("Sunny.",), name="weather", call_id="c1"),
    )


def test_a_call_keeps_its_id_and_sharegpt_has_calls_as_turns() -> None:
    (_, turn) = turns_of(spoken(USER, {"role": "assistant", "content": "", "tool_calls": [CALL | {"id": "c1"}]}))
    assert turn.tool_calls == ({"id": "c1", **CALL},)
    row = {
        "conversations": [
            {"from": "human", "value": "Weather?"},
            {"from": "function_call", "value": '{"name": "weather", "arguments": {"place": "Rome"}}'},
            {"from": "observation", "value": "Sunny."},
            {"from": "gpt", "value": "Sun."},
        ]
    }
    turns = turns_of(convert(row, dataset("sharegpt")))
    assert [turn.role for turn in turns] == ["user", "assistant", "tool", "assistant"]
    assert turns[1].tool_calls == (CALL,)


def test_other_roles() -> None:
    turns = [{"role": role, "content": "x"} for role in ("developer", "user", "tool", "function", "observation")]
    assert [turn.role for turn in turns_of(spoken(*turns, ANSWER))] == [
        "system", "user", "tool", "tool", "tool", "assistant",
    ]  # fmt: skip


TOOL = {"name": "weather", "parameters": {}}
WRAPPED = {"type": "function", "function": TOOL}


@pytest.mark.parametrize(
    "columns",
    [{"tools": [TOOL]}, {"tools": [WRAPPED]}, {"tools": json.dumps([TOOL])}, {"functions": [TOOL]}, {"tools": TOOL}],
)
def test_tools(columns: dict[str, Any]) -> None:
    example = spoken(USER, ANSWER, **columns)
    assert isinstance(example, Example) and example.tools == (WRAPPED,)


def test_everything_that_a_turn_says_survives_the_online_form() -> None:
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning": "Hm.", "loss": False}
    result = {"role": "tool", "content": "Sunny.", "name": "weather", "tool_call_id": "c1"}
    example = spoken(USER, calling, result, ANSWER, tools=[TOOL])
    assert from_conversation(json.loads(json.dumps(to_conversation(example)))) == example


# Turns -> words of the detail.
BAD_TURNS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "unknown key": (
        [USER, ANSWER | {"wieght": 0}],
        "turn 1: unknown key 'wieght'; fix it, or list it under \"ignore_keys\" of the data set",
    ),
    "unknown key of a text": (
        [{"role": "user", "content": [{"type": "text", "text": "x", "lang": "en"}]}, ANSWER],
        "turn 0: a part of type 'text': unknown key 'lang'; fix it, or list it",
    ),
    "unknown key of a picture": (
        [{"role": "user", "content": [{"type": "image", "image": "a.jpg", "quality": 9}]}, ANSWER],
        "turn 0: a part of type 'image': unknown key 'quality'",
    ),
    "a slip of the pen": (
        [{"role": "user", "content": [{"type": "image", "imge": "a.jpg"}]}, ANSWER],
        "turn 0: a part of type 'image': unknown key 'imge'",
    ),
    "half a weight": ([USER, ANSWER | {"weight": 0.5}], "turn 1: 'weight' is 0.5; expected 0 or 1"),
    "loss is a text": ([USER, ANSWER | {"loss": "no"}], "turn 1: 'loss' is 'no'; expected 0 or 1"),
    "contradiction": ([USER, ANSWER | {"loss": True, "weight": 0}], "'loss' and 'weight' contradict each other"),
    "two thoughts": ([USER, ANSWER | {"reasoning": "a", "thinking": "b"}], "'reasoning' and 'thinking' differ"),
    "a user who reasons": ([USER | {"reasoning": "a"}, ANSWER], "'reasoning' in a turn of role 'user' is not used"),
    "a user who calls": ([USER | {"tool_calls": [CALL]}, ANSWER], "'tool_calls' in a turn of role 'user' is not used"),
    "a name": ([USER | {"name": "Tom"}, ANSWER], "'name' in a turn of role 'user' is not used; remove it, or list"),
    "refusal": ([USER, ANSWER | {"refusal": "No."}], "unknown key 'refusal'"),
    "arguments": (
        [USER, ANSWER | {"tool_calls": [{"name": "f", "arguments": "{"}]}],
        "turn 1: tool call 0: its arguments are no JSON object",
    ),
    "a call without a name": ([USER, ANSWER | {"tool_calls": [{}]}], "turn 1: tool call 0 has no name"),
    "calls are a number": (
        [USER, ANSWER | {"tool_calls": 7}],
        "turn 1: 'tool_calls' is a JSON number; expected a list",
    ),
}


@pytest.mark.parametrize(("turns", "words"), BAD_TURNS.values(), ids=BAD_TURNS)
def test_bad_turns(turns: list[dict[str, Any]], words: str) -> None:
    skip = spoken(*turns)
    assert isinstance(skip, Skip) and skip.reason == "bad_row"
    assert words in skip.detail


@pytest.mark.parametrize("tools", ["[", 7, ["weather"], [{"description": "no name"}]])
def test_bad_tools(tools: Any) -> None:
    skip = spoken(USER, ANSWER, tools=tools)
    assert isinstance(skip, Skip) and skip.reason == "bad_row" and skip.detail.startswith("column 'tools'")


def test_ignored_keys_and_nulls_are_absent() -> None:
    part = {"type": "text", "text": "Who?", "lang": "en", "image": None}
    turns = [{"role": "user", "content": [part], "emotion": "calm"}, ANSWER | {"weight": 0.5, "refusal": None}]
    assert turns_of(spoken(*turns, ignore_keys=("lang", "emotion", "weight"))) == asked("Who?")


def test_what_nobody_learns_from() -> None:
    silent = {"role": "assistant", "content": ""}
    assert isinstance(spoken(USER, silent, USER, ANSWER), Example)
    assert isinstance(spoken(USER, silent | {"reasoning": "Hm."}), Example)
    detail = "no assistant turn that is trained on has text, reasoning or tool calls"
    for turns in ([USER, silent], [USER, ANSWER | {"loss": 0}], [USER, ANSWER | {"loss": 0}, silent]):
        assert spoken(*turns) == Skip(reason="no_target", detail=detail)


@pytest.mark.parametrize(
    ("row", "found"),
    [({"id": 7}, "7"), ({"id": "a/b"}, "a/b"), ({"id": 0.5}, "0.5"), ({"id": None}, ""), ({"id": [1]}, ""),
     ({"id": True}, ""), ({"uid": 1}, ""), ({}, ""), ({"id": "\ud83d"}, "")],
)  # fmt: skip
def test_the_id_of_a_row(row: dict[str, Any], found: str) -> None:
    example = spoken(USER, ANSWER, **row)
    assert isinstance(example, Example) and example.id == found
    named = convert({"messages": ASKED, "uid": "x"}, dataset("messages", id_column="uid"))
    assert isinstance(named, Example) and named.id == "x"


# ---------------------------------------------------------------- spellings of media


def first_medium(*parts: Any, **columns: Any) -> MediaRef | Skip:
    content: Any = list(parts) or "<image>"
    example = spoken({"role": "user", "content": content}, ANSWER, **columns)
    return example if isinstance(example, Skip) else example.media[0]


# Spelling in a column -> the path of the reference.
PATHS = {
    "cat.jpg": "/media/cat.jpg",
    "/far/cat.jpg": "/far/cat.jpg",
    "file:///far/my%20cat%23.jpg": "/far/my cat#.jpg",
    "file://localhost/far/cat.jpg": "/far/cat.jpg",
    "s3://bucket/cat.jpg": "s3://bucket/cat.jpg",
    "gs://bucket/a b.jpg": "gs://bucket/a b.jpg",
    "https://x.org/cat.jpg?size=1": "https://x.org/cat.jpg?size=1",
    "C:\\cats\\cat.jpg": "/media/C:\\cats\\cat.jpg",
    "A" * 100: "/media/" + "A" * 100,  # base64's alphabet, but of no known kind
    "//server/" + "pictures/" * 8 + "cat": "//server/" + "pictures/" * 8 + "cat",  # bytes that an MP3 may begin with
    "iVBORw0KGgo": "/media/iVBORw0KGgo",  # a PNG's beginning, but too short for one
}


@pytest.mark.parametrize(("given", "path"), PATHS.items(), ids=[given[:30] for given in PATHS])
def test_paths_and_uris(given: str, path: str) -> None:
    expected = MediaRef(kind="image", path=path)
    assert first_medium(images=[given]) == first_medium(images=given) == first_medium(images={"url": given}) == expected
    for part in (
        {"type": "image", "image": given},
        {"type": "image", "url": given},
        {"type": "image", "path": given},
        {"type": "image", "image_url": given},
        {"type": "image_url", "image_url": given},
        {"type": "image_url", "image_url": {"url": given, "detail": "high"}},
        {"type": "input_image", "image_url": given, "detail": "low"},
        {"type": "image_url", "value": given},
    ):
        assert first_medium(part) == expected, part


@pytest.mark.parametrize("given", ["ftp://x/cat.jpg", "hdfs2://x/cat.jpg", "FTP://x/cat.jpg"])
def test_other_schemes_are_never_glued_to_a_folder(given: str) -> None:
    skip = first_medium(images=[given])
    assert isinstance(skip, Skip) and skip.reason == "bad_row"
    assert (
        f"unknown scheme {given.partition(':')[0]}://; known: file, s3, gs, gcs, abfs, abfss, hdfs, http, https, data"
        in skip.detail
    )
    for other in ("file://host/cat.jpg", "file://[", "file:///%ff.jpg"):
        assert isinstance(first_medium(images=[other]), Skip)


# Row with a picture as text -> where in the row.
WRITTEN: dict[str, tuple[dict[str, Any], str]] = {
    "base64": ({"images": [TEXT_OF_PNG]}, "/images/0"),
    "one entry": ({"images": TEXT_OF_PNG}, "/images"),
    "with line breaks": ({"images": [TEXT_OF_PNG[:76] + "\n" + TEXT_OF_PNG[76:]]}, "/images/0"),
    "without padding": ({"images": [TEXT_OF_PNG.rstrip("=")]}, "/images/0"),
    "data URI": ({"images": [f"data:image/png;base64,{TEXT_OF_PNG}"]}, "/images/0"),
    "bytes": ({"images": [{"bytes": TEXT_OF_PNG, "path": "a.png"}]}, "/images/0/bytes"),
    "base64 of an object": ({"images": {"base64": TEXT_OF_PNG}}, "/images/base64"),
}


@pytest.mark.parametrize(("columns", "place"), WRITTEN.values(), ids=WRITTEN)
def test_pictures_as_text_of_a_column(columns: dict[str, Any], place: str) -> None:
    assert first_medium(**columns) == MediaRef(kind="image", path="", inside=place, held=PNG)
    assert bytes_in_line(json.dumps(columns).encode(), place) == PNG


DATA = f"data:image/png;base64,{TEXT_OF_PNG}"
PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"type": "image", "image": TEXT_OF_PNG}, "/image"),
    "base64": ({"type": "image", "base64": TEXT_OF_PNG}, "/base64"),
    "image_url": ({"type": "image_url", "image_url": {"url": DATA}}, "/image_url/url"),
    "image_url as text": ({"type": "image_url", "image_url": DATA}, "/image_url"),
    "a sound": ({"type": "input_audio", "input_audio": {"data": TEXT_OF_PNG, "format": "wav"}}, "/input_audio/data"),
    "a video": ({"type": "video_url", "video_url": {"url": DATA}}, "/video_url/url"),
    "a video that is sampled": ({"type": "video", "video": DATA, "fps": 2}, "/video"),
}


@pytest.mark.parametrize(("part", "place"), PARTS.values(), ids=PARTS)
def test_media_as_text_of_a_part(part: dict[str, Any], place: str) -> None:
    """Also where the messages are a text themselves: it is found again by the line alone."""
    turns = [{"role": "user", "content": [{"type": "input_text", "text": "Who?"}, part]}, ANSWER]
    for messages in (turns, json.dumps(turns)):
        row = {"messages": messages}
        example = convert(row, dataset("messages"))
        assert isinstance(example, Example), example
        (ref,) = example.media
        assert (ref.path, ref.inside, ref.held) == ("", f"/messages/0/content/1{place}", PNG)
        assert ref.sampling.fps == part.get("fps")
        assert bytes_in_line(json.dumps(row).encode(), ref.inside) == PNG
        online = from_conversation(to_conversation(example))
        assert isinstance(online, Example)
        assert online.media[0].held == PNG and not online.media[0].inside
        assert online.media[0].sampling == ref.sampling


def test_a_picture_in_a_line_is_read_again_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    line = json.dumps({"images": [TEXT_OF_PNG]}).encode()
    file.write_bytes(b"{}\n" + line + b"\n")
    ref = MediaRef(kind="image", path=str(file), offset=3, length=len(line), inside="/images/0")
    with open_media(ref) as opened:
        assert opened.read() == PNG


def test_pointers_go_into_texts_that_are_json() -> None:
    assert pointed({"a": '[{"b/c": 5}]'}, "/a/0/b~1c") == 5
    for nowhere in ({"a": "plain"}, {"a": "7"}, {"a": {}}):
        with pytest.raises((LookupError, TypeError, ValueError)):
            pointed(nowhere, "/a/0")


HEADS = {
    "JPEG": b"\xff\xd8\xff\xe0", "GIF": b"GIF89a", "BMP": b"BM\x99\0\0\0\0\0\0\0", "TIFF": b"II*\0", "TIFF 2": b"MM\0*",
    "WebP": b"RIFF\0\0\0\0WEBP", "MP4": b"\0\0\0\x18ftypmp42", "WebM": b"\x1a\x45\xdf\xa3", "MP3": b"ID3\3",
    "Ogg": b"OggS", "FLAC": b"fLaC",
}  # fmt: skip


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_kinds_of_files_that_base64_is_told_by(head: bytes) -> None:
    content = head + bytes(range(100))
    assert first_medium(images=[base64.b64encode(content).decode()]).held == content
    sound = b"\xff\xfb" + bytes(4000)
    assert first_medium(images=[base64.b64encode(sound).decode()]).held == sound


def test_bytes_in_memory() -> None:
    for spelled in (PNG, {"bytes": PNG}, bytearray(PNG)):
        assert first_medium(images=[spelled]) == MediaRef(kind="image", path="(image in memory)", held=PNG)


@pytest.mark.parametrize(
    "given",
    [f"data:image/png;base64,{TEXT_OF_PNG}?", {"bytes": TEXT_OF_PNG + "?"}, "data:image/png;base64", "B" * 5000,
     [[TEXT_OF_PNG]], {"link": TEXT_OF_PNG}],
    ids=["a stray character", "of bytes", "no comma", "no known kind", "nested", "unknown key"],
)  # fmt: skip
def test_what_is_no_base64_is_skipped_and_not_quoted(given: Any) -> None:
    skip = first_medium(images=[given])
    assert isinstance(skip, Skip)
    wanted = "missing_media" if given == "B" * 5000 else "bad_row" if isinstance(given, list) or "link" in given else ""
    assert skip.reason == (wanted or "bad_media")
    assert skip.detail.startswith("column 'images': ")
    assert TEXT_OF_PNG[:20] not in skip.detail and "BBBB" not in skip.detail


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
            assert bytes_in_line(json.dumps(row).encode(), ref.inside) == ref.held


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<"), min_size=1, max_size=8)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3))
def test_texts_in_are_texts_out(pairs: list[tuple[str, str]]) -> None:
    """Assistants' and documents' to the letter; users' stripped."""
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
            text for user, text_ in pairs for text in (user.strip(), text_)
        ], name
    single = [("prompt_response", {"prompt": question, "response": answer}),
              ("alpaca", {"instruction": question, "output": answer})]  # fmt: skip
    for name, row in single:
        found = convert(row, dataset(name))
        if answer.strip():
            assert turns_of(found) == (
                Turn(role="user", parts=(question.strip(),)),
                Turn(role="assistant", parts=(answer,)),
            )
    texts = [text for pair in pairs for text in pair]
    as_parts = [{"type": "text", "text": text} for text in texts]
    if any(text.strip() for text in texts):
        assert turns_of(convert({"content": as_parts}, dataset("document"))) == document(*texts)
        obelics = {"texts": texts, "images": [None] * len(texts)}
        assert turns_of(convert(obelics, dataset("document"))) == document(*texts)
        assert turns_of(convert({"text": "".join(texts)}, dataset("document"))) == document("".join(texts))
