"""One row -> an Example or a Skip: every reason literally, every dialect, and no medium lost or moved."""

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.errors import assert_skipped

from neatpack.pipeline.ingest.convert import convert, parse_row, parse_rows
from neatpack.pipeline.ingest.formats import FORMATS
from neatpack.pipeline.ingest.meta import Columns, Dataset, Tags
from neatpack.pipeline.records import Example, MediaRef, Skip, Turn

PLAIN = Dataset(name="plain", files=("rows.jsonl",), media_dir="/media")
LLAVA = Dataset(
    name="llava",
    files=("rows.json",),
    columns=Columns(messages="conversations", images="image"),
    tags=Tags(role_tag="from", content_tag="value", user_tag="human", assistant_tag="gpt", system_tag="sys"),
    media_dir="/media",
)


def image(name: str) -> MediaRef:
    return MediaRef(kind="image", path=f"/media/{name}")


def video(name: str) -> MediaRef:
    return MediaRef(kind="video", path=f"/media/{name}")


def audio(name: str) -> MediaRef:
    return MediaRef(kind="audio", path=f"/media/{name}")


def row(*said: str, **columns: Any) -> dict[str, Any]:
    """Turns of user and assistant, alternating."""
    roles = ["user", "assistant"] * len(said)
    return {
        "messages": [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)],
        **columns,
    }


def parts(value: Example | Skip) -> list[tuple[Any, ...]]:
    assert isinstance(value, Example), value
    return [turn.parts for turn in value.turns]


# ---------------------------------------------------------------- lines


def test_a_line_is_an_object() -> None:
    assert parse_row(b' {"a": "\xe2\x80\xa8"}\r\n', 1) == {"a": "\u2028"}


# Line -> what the detail in the ledger names.
BROKEN_LINES = {
    "cut": (b'{"a": 1', ()),
    "not JSON": (b"hello", ()),
    "two objects": (b"{} {}", ()),
    "not UTF-8": (b'{"a": "\xff"}', ("0xff",)),
    "too deep": (b"[" * 100_000, ("100",)),
    "a huge number": (b'{"a": ' + b"9" * 5000 + b"}", ("4300",)),
    "a list": (b"[{}]", ("list",)),
    "a text": (b'"x"', ("text",)),
    "a number": (b"1.5", ("number",)),
    "a whole number": (b"15", ("number",)),
    "a boolean": (b"true", ("boolean",)),
    "null": (b"null", ("null",)),
    "a key twice": (
        b'{"a": 1, "b": 2, "a": 3}',
        ("'a'",),
    ),
    "a key twice in a turn": (
        b'{"messages": [{"role": "user"}, {"content": "a", "content": "b"}]}',
        ("'content'",),
    ),
    "a key twice, deep": (b'{"a": [[{"b": {"c": 1, "c": 2}}], 1]}', ("'c'",)),
    "a key twice beside quoted keys": (b'{"a": "{\\"b\\": 1}", "c": 1, "c": 2}', ("'c'",)),
    "a key twice, with spaces": (b'{"a" : 1, "a" : 2}', ("'a'",)),
    "a key twice, in UTF-16": ('{"a": 1, "a": 2}'.encode("utf-16-le"), ("'a'",)),
    "a key twice, once in a long row": (b'{"a": "%s", "a": 2}' % (b"x" * 70_000), ("'a'",)),
}
# Rows whose keys are not easily counted, and that say everything once.
WHOLE_LINES = {
    "the same value twice": b'{"a": {"b": [1]}, "a": {"b": [1]}}',
    "quoted keys": b'{"a": "say \\"b\\": 1", "c": 1}',
    "a colon in a text": b'{"a": "b\\\\", "c": ":"}',
    "spaces": b'{"a"\t: 1, "b" : [{"a": 1}, {"a": 2}]}',
    "mixed lists": b'{"a": [{"b": 1}, 5, "text", [{"c": [{"d": null}]}]]}',
    "very deep": b'{"b" : ' * 90 + b"1" + b"}" * 90,
}


@pytest.mark.parametrize("line", WHOLE_LINES.values(), ids=WHOLE_LINES)
def test_a_line_that_says_everything_once(line: bytes) -> None:
    assert parse_row(line, 7) == json.loads(line)


def test_nan_is_null() -> None:
    """It is what pandas has for a cell without anything, and what Python then writes."""
    assert parse_row(b'{"image": NaN, "scores": [-Infinity, NaN]}', 1) == {"image": None, "scores": [-math.inf, None]}
    assert parse_row(b' {"image": NaN}', 1) == {"image": None}


def test_lines_are_parsed_together_as_one_by_one() -> None:
    lines = [*(line for line, _ in BROKEN_LINES.values()), *WHOLE_LINES.values()]
    assert parse_rows([(line, 7) for line in lines]) == [parse_row(line, 7) for line in lines]


@pytest.mark.parametrize(("line", "named"), BROKEN_LINES.values(), ids=BROKEN_LINES)
def test_broken_lines_name_their_number(line: bytes, named: tuple[str, ...]) -> None:
    assert_skipped(parse_row(line, 7), "bad_row", *named, line=7)


@given(st.binary(max_size=30))
def test_any_bytes_are_a_row_or_a_skip(line: bytes) -> None:
    assert isinstance(parse_row(line, 1), dict | Skip)


# ---------------------------------------------------------------- conversations


def test_plain_conversation() -> None:
    assert convert(row("Hi.", "Hello."), PLAIN) == Example(
        turns=(Turn(role="user", parts=("Hi.",)), Turn(role="assistant", parts=("Hello.",)))
    )


def test_another_dialect() -> None:
    value = {
        "id": 7,
        "image": "a.jpg",
        "conversations": [
            {"from": "sys", "value": "Be brief."},
            {"from": "human", "value": "<image>\nWho?"},
            {"from": "gpt", "value": "Me."},
        ],
        "messages": "not ours",
        "images": ["not ours"],
    }
    assert convert(value, LLAVA) == Example(
        turns=(
            Turn(role="system", parts=("Be brief.",)),
            Turn(role="user", parts=(image("a.jpg"), "Who?")),
            Turn(role="assistant", parts=("Me.",)),
        ),
    )


def test_a_dialect_does_not_know_the_roles_of_another() -> None:
    value = {"conversations": [{"from": "user", "value": "x"}, {"from": "gpt", "value": "y"}]}
    assert_skipped(convert(value, LLAVA), "bad_row", "turn 0", "'user'", "human, gpt, sys")


def test_text_without_tags_stays_as_it_is() -> None:
    value = row("  \n Hi. \u3000", "  Hello.\n")
    value["messages"].insert(0, {"role": "system", "content": " Be brief.\n"})
    assert parts(convert(value, PLAIN)) == [(" Be brief.\n",), ("  \n Hi. \u3000",), ("  Hello.\n",)]


NEXT_TO_TAGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a newline after": ("<image>\nWho?", ("", "Who?")),
    "a newline before": ("Who?\n<image>", ("Who?", "")),
    "one of several": ("\n\n<image>\n\n    def f():\n", ("\n", "\n    def f():\n")),
    "of Windows": ("Who?\r\n<image>\r\n  is it", ("Who?", "  is it")),
    "spaces": ("  Who <image> is it? ", ("  Who ", " is it? ")),
    "a space and a newline": ("Who? \n<image> \nWell?", ("Who? ", " \nWell?")),
    "a carriage return": ("Who?\r<image>\rWell?", ("Who?\r", "\rWell?")),
}


@pytest.mark.parametrize(("text", "around"), NEXT_TO_TAGS.values(), ids=NEXT_TO_TAGS)
def test_one_newline_next_to_a_tag_goes_and_no_other_white_space(text: str, around: tuple[str, str]) -> None:
    before, after = around
    expected = tuple(filter(None, (before, image("a.jpg"), after)))
    assert parts(convert(row(text, "x", images="a.jpg"), PLAIN))[0] == expected


def test_tags_as_plain_text() -> None:
    as_text = dataclasses.replace(PLAIN, placeholders="text")
    told = "\n<image>\n and <video>a.mp4</video> "
    assert parts(convert(row(told, "x"), as_text)) == [(told,), ("x",)]
    found = convert(row(told, "x", images=["a.jpg"]), as_text)
    assert isinstance(found, Skip) and found.reason == "bad_placeholders"
    assert all(name in found.detail for name in ("0 <image>", "1 image", '"placeholders": "text"'))
    question = dataclasses.replace(as_text, format="prompt_response", columns=FORMATS["prompt_response"].columns)
    with_picture = {"prompt": "What is <image> in HTML?", "response": "This.", "image": "a.jpg"}
    assert parts(convert(with_picture, question))[0] == (image("a.jpg"), "What is <image> in HTML?")
    lenient = dataclasses.replace(PLAIN, placeholders="lenient")
    assert parts(convert(row("<image>", "x"), lenient)) == [("<image>",), ("x",)], "the data set's goes first"


def test_empty_texts_stay_turns() -> None:
    assert parts(convert(row("", "", "Hm?", "Yes."), PLAIN)) == [("",), ("",), ("Hm?",), ("Yes.",)]
    assert parts(convert(row("  ", "x"), PLAIN)) == [("  ",), ("x",)]


def test_roles_need_not_alternate() -> None:
    value = {"messages": [{"role": role, "content": role} for role in ("assistant", "user", "user", "assistant")]}
    assert parts(convert(value, PLAIN)) == [("assistant",), ("user",), ("user",), ("assistant",)]


def turn(**keys: Any) -> dict[str, Any]:
    return {"messages": [keys, {"role": "assistant", "content": "x"}]}


# Row -> reason, and what the detail names.
BAD_ROWS: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "no messages": ({"other": []}, "bad_row", ("'messages'",)),
    "null messages": ({"messages": None}, "bad_row", ("'messages'", "null")),
    "messages are a text": (
        {"messages": "Hi."},
        "bad_row",
        ("'messages'", "text"),
    ),
    "messages are one turn": (
        {"messages": {}},
        "bad_row",
        ("'messages'", "object"),
    ),
    "empty": ({"messages": []}, "bad_row", ()),
    "a turn is a text": ({"messages": ["Hi."]}, "bad_row", ("turn 0", "text")),
    "a turn is null": (
        {"messages": [{"role": "user", "content": "x"}, None]},
        "bad_row",
        ("turn 1", "null"),
    ),
    "unknown role": (
        turn(role="narrator", content="x"),
        "bad_row",
        ("turn 0", "'narrator'"),
    ),
    "no role": (turn(content="x"), "bad_row", ("turn 0",)),
    "role is a list": (
        turn(role=["user"], content="x"),
        "bad_row",
        ("turn 0", "'user'"),
    ),
    "no content": (turn(role="user"), "bad_row", ("turn 0", "'content'")),
    "null content": (turn(role="user", content=None), "bad_row", ("turn 0", "'content'", "null")),
    "content is a number": (
        turn(role="user", content=42),
        "bad_row",
        ("turn 0", "'content'", "number"),
    ),
    "content is an object": (
        turn(role="user", content={"type": "text", "text": "x"}),
        "bad_row",
        ("turn 0", "'content'", "object"),
    ),
    "half a character": (
        turn(role="user", content="\ud83d"),
        "bad_row",
        ("turn 0",),
    ),
    "no assistant": (row("Hi."), "no_target", ()),
    "a tag too many": (
        row("<image><image>", "x", images=["a.jpg"]),
        "bad_placeholders",
        ("2 <image>", "1 image", "placeholders"),
    ),
    "a medium too many": (
        row("<image>", "x", images=["a.jpg", "b.jpg"]),
        "bad_placeholders",
        ("1 <image>", "2 image", "placeholders"),
    ),
    "tags without a column": (
        row("the <video> tag", "x"),
        "bad_placeholders",
        ("1 <video>", "0 video"),
    ),
    "another kind": (
        row("<image>", "x", videos=["a.mp4"]),
        "bad_placeholders",
        ("1 <image>", "0 image"),
    ),
    "tag in the answer": (
        row("Show me.", "<image>", images=["a.jpg"]),
        "bad_placeholders",
        ("0 <image>", "1 image", "placeholders"),
    ),
    "medium is a number": (row("<image>", "x", images=[7]), "bad_row", ("'images'", "'7'")),
    "medium is null": (row("<image>", "x", images=[None]), "bad_placeholders", ("1 <image>", "0 image")),
    "medium is empty": (row("<image>", "x", images=""), "bad_placeholders", ("1 <image>", "0 image")),
    "one of two is null": (
        row("<image><image>", "x", images=["a.jpg", None]),
        "bad_row",
        ("'images'", "'None'"),
    ),
    "one of two is empty": (
        row("<image>", "x", images=["", "a.jpg"]),
        "bad_row",
        ("'images'",),
    ),
    "object without path": (
        row("<audio>", "x", audios={"link": "y"}),
        "bad_row",
        ("'audios'", "\"{'link': 'y'}\""),
    ),
    "media are nested": (row("<image>", "x", images=[["a.jpg"]]), "bad_row", ("'images'", "\"['a.jpg']\"")),
    "media are true": (row("<image>", "x", images=True), "bad_row", ("'images'", "'True'")),
    "path is half a character": (
        row("<image>", "x", images=["\ud83d.jpg"]),
        "bad_row",
        ("'images'", "'\\ud83d.jpg'"),
    ),
    "offset is negative": (
        row("<image>", "x", images={"path": "a", "offset": -1, "length": 3}),
        "bad_row",
        ("'images'", "{'offset': -1, 'length': 3}"),
    ),
    "offset is true": (
        row("<image>", "x", images={"path": "a", "offset": True, "length": 3}),
        "bad_row",
        ("'images'", "{'offset': True, 'length': 3}"),
    ),
    "offset is beyond any file": (
        row("<image>", "x", images={"path": "a", "offset": 1 << 63, "length": 3}),
        "bad_row",
        ("'images'", "{'offset': 9223372036854775808, 'length': 3}"),
    ),
    "offset is a text": (
        row("<image>", "x", images={"path": "a", "offset": "0"}),
        "bad_row",
        ("'images'", "{'offset': '0'}"),
    ),
}


@pytest.mark.parametrize(("value", "reason", "named"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows(value: dict[str, Any], reason: str, named: tuple[str, ...]) -> None:
    skip = assert_skipped(convert(value, PLAIN), reason, *named)
    skip.detail.encode()  # goes to disk as UTF-8


# ---------------------------------------------------------------- media columns


@pytest.mark.parametrize(
    "column",
    [["a.jpg"], "a.jpg", {"path": "a.jpg"}, [{"path": "a.jpg"}], {"path": "a.jpg", "bytes": None, "height": 3}],
    ids=str,
)
def test_a_medium_in_every_form(column: Any) -> None:
    assert parts(convert(row("<image>Who?", "Me.", images=column), PLAIN)) == [(image("a.jpg"), "Who?"), ("Me.",)]


NONE = [None, [], "", " \n", [""], [None, ""], {}, {"bytes": None, "path": ""}, [{"bytes": None, "path": None}], "[]"]


@pytest.mark.parametrize("columns", [{}, *({"images": none} for none in NONE)], ids=str)
def test_no_medium_in_every_form(columns: dict[str, Any]) -> None:
    assert parts(convert(row("Who?", "Me.", **columns), PLAIN)) == [("Who?",), ("Me.",)]


def test_a_medium_inside_a_file() -> None:
    column = [
        {"path": "/far/media.bin", "offset": 0, "length": 12},
        {"path": "media.bin", "offset": 12, "length": 0},
    ]
    assert parts(convert(row("<image><image>", "x", images=column), PLAIN))[0] == (
        MediaRef(kind="image", path="/far/media.bin", offset=0, length=12),
        MediaRef(kind="image", path="/media/media.bin", offset=12, length=0),
    )


def test_absolute_paths_stay() -> None:
    assert parts(convert(row("<image>", "x", images="/else/a.jpg"), PLAIN))[0][0].path == "/else/a.jpg"


# ---------------------------------------------------------------- placeholders


def test_text_is_cut_at_its_placeholders() -> None:
    value = row(
        " One <image>\n two <IMAGE> <Video>three ",
        "<image> stays in an answer",
        "\t<image>",
        "x",
        images=["1.jpg", "2.jpg", "3.jpg"],
        videos="1.mp4",
    )
    assert parts(convert(value, PLAIN)) == [
        (" One ", image("1.jpg"), " two ", image("2.jpg"), " ", video("1.mp4"), "three "),
        ("<image> stays in an answer",),
        ("\t", image("3.jpg")),
        ("x",),
    ]


def test_tags_of_the_system_turn_are_text() -> None:
    value = row("Hi.", "Hello.")
    value["messages"].insert(0, {"role": "system", "content": "<image>"})
    assert parts(convert(value, PLAIN)) == [("<image>",), ("Hi.",), ("Hello.",)]


def test_lookalikes_are_text() -> None:
    for text in ("< image> <images> <img> <image", "<v\u0131deo>", "<\u0130mage>"):  # an i without a dot, an I with one
        assert parts(convert(row(text, "x"), PLAIN))[0] == (text,)


def test_lenient_surplus_tags_stay_as_text() -> None:
    value = row("<image> and <image> and <video>.", "x", images=["1.jpg"])
    assert parts(convert(value, PLAIN, lenient=True)) == [
        (image("1.jpg"), " and <image> and <video>."),
        ("x",),
    ]


def test_lenient_surplus_media_go_before_the_first_user_turn() -> None:
    value = row("Look: <image>", "x", "<audio>", "y", images=["1.jpg", "2.jpg", "3.jpg"], audios=["1.wav"], videos="v")
    value["messages"].insert(0, {"role": "system", "content": "s"})
    assert parts(convert(value, PLAIN, lenient=True)) == [
        ("s",),
        (image("2.jpg"), image("3.jpg"), video("v"), "Look: ", image("1.jpg")),
        ("x",),
        (audio("1.wav"),),
        ("y",),
    ]


def test_lenient_equals_strict_where_the_counts_agree() -> None:
    value = row("a <image> b", "x", "<image>", "y", images=["1.jpg", "2.jpg"])
    assert convert(value, PLAIN, lenient=True) == convert(value, PLAIN)


def test_lenient_media_without_a_user_turn() -> None:
    value = {"messages": [{"role": "assistant", "content": "x"}], "images": ["1.jpg", "2.jpg"]}
    assert_skipped(convert(value, PLAIN, lenient=True), "bad_placeholders", media=2)


# ---------------------------------------------------------------- content in parts


def in_parts(*content: Any, answer: Any = "x", **columns: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": list(content)}, {"role": "assistant", "content": answer}],
        **columns,
    }


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def test_parts_stay_as_they_are() -> None:
    value = in_parts(text(" a <image> "), {"type": "image", "image": "1.jpg"}, "b", answer=[text(" y "), text("z")])
    assert parts(convert(value, PLAIN)) == [(" a <image> ", image("1.jpg"), "b"), (" y ", "z")]


def test_parts_in_another_dialect() -> None:
    value = {
        "conversations": [
            {"from": "human", "value": [{"type": "image"}, text("Who?")]},
            {"from": "gpt", "value": "Me."},
        ],
        "image": "a.jpg",
    }
    assert parts(convert(value, LLAVA)) == [(image("a.jpg"), "Who?"), ("Me.",)]


def test_a_column_named_conversation() -> None:
    value = {"conversation": in_parts({"type": "video", "video": "v.mp4"})["messages"]}
    assert parts(convert(value, PLAIN)) == [(video("v.mp4"),), ("x",)]
    assert convert({"conversation": row("Hi.", "Hello.")["messages"]}, PLAIN) == convert(row("Hi.", "Hello."), PLAIN)


def test_parts_take_the_media_of_the_columns_in_order() -> None:
    bare = {"type": "image", "text": None, "index": None}  # as Arrow fills them up
    value = in_parts(bare, text("and"), {"type": "image", "image": "own.jpg"}, bare, images=["1.jpg", "2.jpg"])
    assert parts(convert(value, PLAIN))[0] == (image("1.jpg"), "and", image("own.jpg"), image("2.jpg"))


def test_a_part_may_say_where_in_a_file_and_how_a_video_is_sampled() -> None:
    held = {"type": "image", "image": {"path": "/m.bin", "offset": 3, "length": 4}}
    sampled = {"type": "video", "video": "v.mp4", "fps": 2}
    first, second = parts(convert(in_parts(held, sampled), PLAIN))[0]
    assert first == MediaRef(kind="image", path="/m.bin", offset=3, length=4)
    assert (second.path, second.sampling.fps) == ("/media/v.mp4", 2)


def test_lenient_parts() -> None:
    value = in_parts({"type": "image"}, text("?"), images=["1.jpg", "2.jpg"], audios="a.wav")
    assert parts(convert(value, PLAIN, lenient=True))[0] == (image("2.jpg"), audio("a.wav"), image("1.jpg"), "?")
    only_answer = {"messages": [{"role": "assistant", "content": [text("x")]}], "images": ["1.jpg"]}
    assert_skipped(convert(only_answer, PLAIN, lenient=True), "bad_placeholders", media=1)


# Row -> reason, and what the detail names.
BAD_PARTS: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "a part is a number": (in_parts(7), "bad_row", ("turn 0", "number")),
    "a part is null": (in_parts(None), "bad_row", ("turn 0", "null")),
    "a part is a list": (in_parts([text("x")]), "bad_row", ("turn 0", "list")),
    "text is null": (in_parts({"type": "text", "text": None}), "bad_row", ("turn 0", "null")),
    "half a character": (in_parts(text("\ud83d")), "bad_row", ("turn 0",)),
    "unknown type": (
        in_parts({"type": "tool_use", "id": "x"}),
        "bad_row",
        ("turn 0", "'tool_use'"),
    ),
    "type is a list": (in_parts({"type": ["text"]}), "bad_row", ("turn 0", "'text'")),
    "no medium": (
        in_parts({"type": "image"}),
        "bad_placeholders",
        ("1", "'image'", "0 image"),
    ),
    "a medium too many": (
        in_parts({"type": "image", "image": "1.jpg"}, images=["2.jpg"]),
        "bad_placeholders",
        ("0", "'image'", "1 image"),
    ),
    "medium is a number": (in_parts({"type": "image", "image": 7}), "bad_row", ("turn 0", "'image'")),
    "bytes that are not base64": (
        in_parts({"type": "image", "image": {"bytes": "iVBORw0KGgo?"}}),
        "bad_media",
        ("turn 0", "'image'"),
    ),
    "bytes as a number": (in_parts({"type": "image", "image": {"bytes": 10**15}}), "bad_row", ("turn 0", "'image'")),
    "a sound as numbers": (
        in_parts({"type": "audio", "audio": {"array": [0.5], "sampling_rate": 16000}}),
        "bad_row",
        (),
    ),
    "a sound without its rate": (
        in_parts({"type": "audio", "audio": {"array": [0.5]}}),
        "bad_row",
        ("turn 0", "sampling_rate"),
    ),
    "no assistant": ({"messages": in_parts(text("x"))["messages"][:1]}, "no_target", ()),
}


@pytest.mark.parametrize(("value", "reason", "named"), BAD_PARTS.values(), ids=BAD_PARTS)
def test_bad_parts(value: dict[str, Any], reason: str, named: tuple[str, ...]) -> None:
    skip = assert_skipped(convert(value, PLAIN), reason, *named)
    skip.detail.encode()


# ---------------------------------------------------------------- properties

PIECE = st.sampled_from(["<image>", "<IMAGE>", "<video>", "<audio>", "word", " ", "\n", "<im", "age>", "<image"])
TURNS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.lists(PIECE, max_size=6)), max_size=5)


def tags_of(text: str) -> list[str]:
    """An independent count: what stands between < and > and is a kind, in any case."""
    inside = [piece.split(">")[0].lower() for piece in text.split("<")[1:] if ">" in piece]
    return [name for name in inside if name in ("image", "video", "audio")]


def conversation(turns: list[tuple[str, list[str]]]) -> dict[str, Any]:
    turns = [*turns, ("assistant", ["The end."])]
    return {"messages": [{"role": role, "content": "".join(pieces)} for role, pieces in turns]}


@given(TURNS)
def test_strict_media_come_in_column_order_and_none_is_lost(turns: list[tuple[str, list[str]]]) -> None:
    value = conversation(turns)
    user_tags = [tag for m in value["messages"] if m["role"] == "user" for tag in tags_of(m["content"])]
    for kind in ("image", "video", "audio"):
        value[kind + "s"] = [f"{number}.{kind}" for number in range(user_tags.count(kind))]
    example = convert(value, PLAIN)
    assert isinstance(example, Example)
    assert [ref.kind for ref in example.media] == user_tags
    for kind in ("image", "video", "audio"):
        assert [ref.path for ref in example.media if ref.kind == kind] == [f"/media/{p}" for p in value[kind + "s"]]
    assert [turn.role for turn in example.turns] == [message["role"] for message in value["messages"]]
    for said, message in zip(example.turns, value["messages"], strict=True):
        if said.role != "user":
            assert said.parts == (message["content"],)
            continue
        kept = "".join(part if isinstance(part, str) else f"<{part.kind}>" for part in said.parts)
        assert "".join(kept.split()) == "".join(message["content"].split()).replace("<IMAGE>", "<image>")


@given(TURNS, st.integers(0, 4), st.integers(0, 2))
def test_lenient_loses_no_medium_and_no_text(turns: list[tuple[str, list[str]]], images: int, videos: int) -> None:
    value = conversation(turns)
    value |= {"images": [f"{n}.jpg" for n in range(images)], "videos": [f"{n}.mp4" for n in range(videos)]}
    example = convert(value, PLAIN, lenient=True)
    if isinstance(example, Skip):
        assert not any(role == "user" for role, _ in turns)
        assert example.reason == "bad_placeholders"
        return
    assert sorted(ref.path for ref in example.media) == sorted(f"/media/{n}" for n in value["images"] + value["videos"])
    user_tags = [tag for m in value["messages"] if m["role"] == "user" for tag in tags_of(m["content"])]
    texts = [part for said in example.turns if said.role == "user" for part in said.parts if isinstance(part, str)]
    left = [tag for text in texts for tag in tags_of(text)]
    for kind, count in {"image": images, "video": videos, "audio": 0}.items():
        assert left.count(kind) == max(0, user_tags.count(kind) - count)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["messages", "images", "role", "content", "path", "user", "assistant"]),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_any_json_is_converted_or_skipped(value: Any) -> None:
    parsed = parse_row(json.dumps(value).encode(), 1)
    result = parsed if isinstance(parsed, Skip) else convert(parsed, PLAIN)
    assert isinstance(result, Example | Skip)


ITEM_KEYS = ("type", "text", "image", "audio", "video", "path", "bytes", "array", "frames", "fps", "sampling_rate")
ITEM = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.sampled_from(["text", "image", "audio", "video", "a.jpg"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(ITEM_KEYS), inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(ITEM, max_size=3), st.booleans())
def test_any_parts_are_converted_or_skipped(content: list[Any], lenient: bool) -> None:
    result = convert(in_parts(*content, images=["1.jpg"]), PLAIN, lenient=lenient)
    assert isinstance(result, Example | Skip)
    if isinstance(result, Example):
        assert all(isinstance(ref.path, str) and (ref.held is None or ref.inside) for ref in result.media)
