"""Keys of turns: loss, reasoning, calls, tools, roles and ids."""

import json
from typing import Any

import pytest
from format_rows import ANSWER, ASKED, USER, asked, dataset, spoken, turns_of
from support.errors import assert_skipped

from neatpack.pipeline.ingest.conversation import from_conversation, to_conversation
from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.records import Example, Turn


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


def test_a_call_in_the_form_before_tool_calls() -> None:
    calling = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "weather", "arguments": '{"place": "Rome"}'},
    }
    result = {"role": "function", "content": "Sunny.", "name": "weather"}
    assert turns_of(spoken(USER, calling, result, ANSWER))[1:3] == (
        Turn(role="assistant", parts=("",), tool_calls=(CALL,)),
        Turn(role="tool", parts=("Sunny.",), name="weather"),
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


# Turns -> what the detail names.
BAD_TURNS: dict[str, tuple[list[dict[str, Any]], tuple[str, ...]]] = {
    "unknown key": (
        [USER, ANSWER | {"wieght": 0}],
        ("turn 1", "'wieght'", '"ignore_keys"'),
    ),
    "unknown key of a text": (
        [{"role": "user", "content": [{"type": "text", "text": "x", "lang": "en"}]}, ANSWER],
        ("turn 0", "'text'", "'lang'"),
    ),
    "unknown key of a picture": (
        [{"role": "user", "content": [{"type": "image", "image": "a.jpg", "quality": 9}]}, ANSWER],
        ("turn 0", "'image'", "'quality'"),
    ),
    "a slip of the pen": (
        [{"role": "user", "content": [{"type": "image", "imge": "a.jpg"}]}, ANSWER],
        ("turn 0", "'image'", "'imge'"),
    ),
    "half a weight": ([USER, ANSWER | {"weight": 0.5}], ("turn 1", "'weight'", "0.5")),
    "loss is a text": ([USER, ANSWER | {"loss": "no"}], ("turn 1", "'loss'", "'no'", "0")),
    "contradiction": ([USER, ANSWER | {"loss": True, "weight": 0}], ("'loss'", "'weight'")),
    "two thoughts": ([USER, ANSWER | {"reasoning": "a", "thinking": "b"}], ("'reasoning'", "'thinking'")),
    "a user who reasons": ([USER | {"reasoning": "a"}, ANSWER], ("'reasoning'", "'user'")),
    "a user who calls": ([USER | {"tool_calls": [CALL]}, ANSWER], ("'tool_calls'", "'user'")),
    "a name": ([USER | {"name": "Tom"}, ANSWER], ("'name'", "'user'")),
    "refusal": ([USER, ANSWER | {"refusal": "No."}], ("'refusal'",)),
    "arguments": (
        [USER, ANSWER | {"tool_calls": [{"name": "f", "arguments": "{"}]}],
        ("turn 1", "0", "object"),
    ),
    "calls in two forms": (
        [USER, ANSWER | {"tool_calls": [CALL], "function_call": CALL}],
        ("turn 1", "'function_call'", "'tool_calls'"),
    ),
    "a part of two kinds": (
        [{"role": "user", "content": [{"image": "a.jpg", "video": "a.mp4"}]}, ANSWER],
        ("turn 0", "'image'", "'video'"),
    ),
    "a call without a name": ([USER, ANSWER | {"tool_calls": [{}]}], ("turn 1", "0")),
    "calls are a number": (
        [USER, ANSWER | {"tool_calls": 7}],
        ("turn 1", "'tool_calls'", "number"),
    ),
}


@pytest.mark.parametrize(("turns", "named"), BAD_TURNS.values(), ids=BAD_TURNS)
def test_bad_turns(turns: list[dict[str, Any]], named: tuple[str, ...]) -> None:
    assert_skipped(spoken(*turns), "bad_row", *named)


@pytest.mark.parametrize("tools", ["[", 7, ["weather"], [{"description": "no name"}]])
def test_bad_tools(tools: Any) -> None:
    assert_skipped(spoken(USER, ANSWER, tools=tools), "bad_row", "'tools'")


def test_ignored_keys_and_nulls_are_absent() -> None:
    part = {"type": "text", "text": "Who?", "lang": "en", "image": None}
    turns = [{"role": "user", "content": [part], "emotion": "calm"}, ANSWER | {"weight": 0.5, "refusal": None}]
    assert turns_of(spoken(*turns, ignore_keys=("lang", "emotion", "weight"))) == asked("Who?")


def test_what_nobody_learns_from() -> None:
    silent = {"role": "assistant", "content": ""}
    assert isinstance(spoken(USER, silent, USER, ANSWER), Example)
    assert isinstance(spoken(USER, silent | {"reasoning": "Hm."}), Example)
    for turns in ([USER, silent], [USER, ANSWER | {"loss": 0}], [USER, ANSWER | {"loss": 0}, silent]):
        assert_skipped(spoken(*turns), "no_target")


@pytest.mark.parametrize(
    ("row", "found"),
    [({"id": 7}, "7"), ({"id": "a/b"}, "a/b"), ({"id": 0.5}, "0.5"), ({"id": None}, ""), ({"id": [1]}, ""),
     ({"id": True}, ""), ({"uid": 1}, ""), ({}, ""), ({"id": "\ud83d"}, "")],
)  # fmt: skip
def test_the_id_of_a_row(row: dict[str, Any], found: str) -> None:
    assert dataset("messages").id_of(row) == found
    assert dataset("messages", id_column="uid").id_of({"messages": ASKED, "uid": "x"}) == "x"
