"""What rows have and nothing reads: columns of media end a run, other columns are warned of."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_config
from support.errors import raises

from neatpack.pipeline.config import UserError
from neatpack.pipeline.ingest.convert import judge_rows, resolved, said_of
from neatpack.pipeline.ingest.formats import FORMATS
from neatpack.pipeline.ingest.formats.said import Said
from neatpack.pipeline.ingest.meta import Columns, Dataset
from neatpack.pipeline.ingest.unread import LaterRows, Looks, RowFacts, UnreadColumn
from neatpack.pipeline.records import Skip
from neatpack.pipeline.run import run_pack

TURNS = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "Tom."}]
PIXELS = {"path": "work/media.bin", "offset": 0, "length": 9}  # as a cell of parquet becomes one

UNREAD: dict[str, tuple[dict[str, Any], str]] = {
    # HF's imagefolder has such a table.
    "a name": ({"text": "A cat.", "file_name": "a.JPG"}, '"format": "document", "columns": {"images": "file_name"}'),
    "bytes": (
        {"question": "Who?", "answer": "Tom.", "image_1": PIXELS},
        '"format": "prompt_response", "columns": {"images": "image_1"}',
    ),
    "names": ({"conversations": TURNS, "clips": ["a.mp4"]}, '"format": "sharegpt", "columns": {"videos": "clips"}'),
    "a URL": ({"text": "A cat.", "link": "https://host/a.png?size=1"}, '"columns": {"images": "link"}'),
    "a data URI": ({"text": "A cat.", "heard": "data:audio/wav;base64,AAAA"}, '"columns": {"audios": "heard"}'),
    "inside": ({"text": "A cat.", "pic": {"path": "a.png", "bytes": None}}, '"columns": {"images": "pic"}'),
    # As PixMo has it: the name of the column says what a URL does not.
    "a URL without an ending": ({"caption": "A cat.", "image_url": "https://host/1?w=9"}, '{"images": "image_url"}'),
}


@pytest.mark.parametrize(("row", "remedy"), UNREAD.values(), ids=UNREAD)
def test_a_column_of_media_that_nothing_reads_ends_the_run(row: dict[str, Any], remedy: str) -> None:
    column = list(row)[-1]
    with raises(UserError, "column-unread", dataset="coco", columns=[column]) as caught:
        resolved(Dataset(name="coco", format="auto"), [row, {**row}])
    assert remedy in str(caught.error) and f'"ignore_columns": ["{column}"]' in str(caught.error)


@pytest.mark.parametrize(("row", "remedy"), UNREAD.values(), ids=UNREAD)
def test_a_column_that_is_to_be_ignored_is_as_if_it_were_not_there(
    row: dict[str, Any], remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = resolved(Dataset(name="coco", format="auto", ignore_columns=(list(row)[-1],)), [row])
    assert not caplog.messages and not later([row] * 3, dataset).unread


def test_a_column_of_which_a_few_values_end_like_media_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """As URLs of web pages do."""
    pages = [{"text": "A cat.", "page": f"https://host/{name}"} for name in ("a.jpg", "b", "c")]
    resolved(Dataset(name="web", format="auto"), pages)
    (message,) = caplog.messages
    assert message.startswith("web: ") and "'page'" in message


def test_both_names_of_a_column() -> None:
    rows = [{"prompt": "Who?", "response": "Tom.", "images": ["b.png"], "image": image} for image in ("a.png", "b.png")]
    with raises(UserError, "column-unread", dataset="coco", columns=["image"]):
        resolved(Dataset(name="coco", format="auto"), rows)


QUIET: dict[str, dict[str, Any]] = {
    "read": {"text": "A cat.", "image": "a.jpg"},
    "where it came from": {"text": "A cat.", "image": "a.jpg", "coco_url": "https://host/a.jpg"},
    "in a part": {"messages": [{"role": "user", "content": [{"type": "image", "image": "a.jpg"}]}], "source": "a.jpg"},
    "other files": {"text": "A cat.", "source": "coco.json", "site": "example.org", "title": "1.5"},
    "nothing": {"text": "A cat.", "image": None, "images": [], "thumbnail": None},
}


@pytest.mark.parametrize("row", QUIET.values(), ids=QUIET)
def test_nothing_to_warn_of(row: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    resolved(Dataset(name="coco", format="auto"), [row])
    assert not caplog.messages


def test_a_named_column_that_no_row_has_ends_the_run() -> None:
    """Rows without a system prompt are no less rows, so a slip of the pen has no other sign."""
    given = Dataset(name="chat", format="messages", columns=Columns(system="sys", tools="functions"))
    rows = [{"messages": [{"role": "user", "content": "Hi"}], "system_prompt": "Be brief.", "functions": None}]
    with raises(UserError, "column-missing", dataset="chat", columns=["sys"]) as caught:
        judge_rows(given, rows, later(rows, given))
    assert all(name in str(caught.error) for name in ("columns.system", "system_prompt", "functions"))
    judge_rows(given, rows, later([*rows, {"sys": None}], given))


def test_a_column_is_absent_where_every_part_lacks_it() -> None:
    given = Dataset(name="chat", format="messages", columns=Columns(images="pics", system="sys"))
    parts = [later([{"messages": [], **row}], given) for row in ({"pics": []}, {}, {"pics": None})]
    assert [sorted(part.absent) for part in parts] == [["sys"], ["pics", "sys"], ["sys"]]
    assert RowFacts.of_all(parts).absent == {"sys"} and not RowFacts.of_all([]).absent
    assert RowFacts.of_all([parts[1], RowFacts()]).absent == frozenset(), "of a part that says nothing, all are there"
    assert all(RowFacts.from_json(json.loads(json.dumps(part.to_json()))) == part for part in parts)


def test_a_loss_of_a_row(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": "A cat.", "loss": loss} for loss in (None, True, 1.0, False, 0)]
    resolved(Dataset(name="chat", format="auto"), rows)
    (message,) = caplog.messages
    assert message.startswith("chat: ") and "'loss'" in message and "False" in message


# After the first rows


def later(rows: list[dict[str, Any]], dataset: Dataset) -> RowFacts:
    looking = LaterRows(dataset.format, dataset.columns, dataset.ignore_columns)
    for number, row in enumerate(rows):
        looking.look_at_names(row)
        looking.look(number, row, partial(said_of, row, dataset))
    return looking.facts


DOCUMENTS = Dataset(name="coco", format="document", columns=FORMATS["document"].columns)


def test_later_rows_are_looked_at_where_a_column_has_something() -> None:
    text = [{"text": "A cat."}] * 50 + [{"text": "A cat.", "pic": None}] * 50 + [{"text": "A cat.", "pic": ""}] * 50
    expected = {UnreadColumn("pic", "image"): Looks(150, 1, 1)}
    assert later([*text, {"text": "A cat.", "pic": "a.png"}], DOCUMENTS).unread == expected
    expected = {UnreadColumn("pic", "video"): Looks(150, 1, 1)}
    assert later([*text, {"pic": "a.mp4", "text": "A cat."}], DOCUMENTS).unread == expected
    both = {"text": "A cat.", "image": "a.png", "images": ["b.png"]}
    expected = {UnreadColumn("image", "image", "images"): Looks(150, 1, 1)}
    assert later([*text, both], DOCUMENTS).unread == expected


def test_of_a_column_with_texts_a_few_are_looked_at() -> None:
    other, picture = {"text": "A cat.", "from": "a book"}, {"text": "A cat.", "from": "a.png"}
    column = UnreadColumn("from", "image")
    assert later([other] * 7 + [picture], DOCUMENTS).unread == {column: Looks(7, 1, 8)}
    assert later([other] * 8 + [picture], DOCUMENTS).unread == {}, "more would cost too much"
    assert later([other] * 20 + [picture] * 20, DOCUMENTS).unread == {column: Looks(32, 1, 9)}, "every 32nd row"


@pytest.mark.parametrize("row", QUIET.values(), ids=QUIET)
def test_nothing_to_tell_of_later_rows(row: dict[str, Any]) -> None:
    dataset = resolved(Dataset(name="coco", format="auto"), [row])
    assert later([row, row], dataset) == RowFacts()


def write_later_rows(folder: Path, **entry: Any) -> Path:
    """A file whose pictures begin after the first rows."""
    rows = [{"text": f"Cat {number}.", **({"pic": "a.png"} if number >= 120 else {})} for number in range(150)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "meta.json").write_text(json.dumps({"coco": {"file_name": "rows.jsonl"} | entry}))
    return folder / "meta.json"


def test_a_run_ends_for_media_in_later_rows(tmp_path: Path) -> None:
    meta = write_later_rows(tmp_path)
    for out, more in (("one", {}), ("two", {"pack_size": 200}), ("three", {"check_media": "size"})):
        # The second run has all rows in the token store.
        with raises(UserError, "column-unread", dataset="coco", columns=["pic"]) as caught:
            run_pack(tiny_config(meta, tmp_path / out, work=str(tmp_path / "work"), **more))
        assert "row 120" in str(caught.error) and '"columns": {"images": "pic"}' in str(caught.error)
    manifest = run_pack(tiny_config(write_later_rows(tmp_path, ignore_columns=["pic"]), tmp_path / "one")).manifest
    assert manifest.counts.packed == 150 and manifest.warnings == ()


# What a row says in vain

VIDEO = {"conversations": [{"from": "human", "value": "<video>Who?"}, TURNS[1]], "video": "a.mp4"}
TALK = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Tom."}]
# Row -> what its warning names.
IN_VAIN: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a system prompt": (
        {"messages": TALK, "system_prompt": "Be brief."},
        ('"format": "messages", "columns": {"system": "system_prompt"}',),
    ),
    "what a question is about": (
        {"question": "Who?", "context": "A cat called Tom.", "answer": "Tom."},
        ('"format": "prompt_response", "columns": {"query": "context"}',),
    ),
    "the part of a video": ({**VIDEO, "start_time": 2.5}, ("'start_time'", "2.5", '"video_start"')),
    "the part of a video, in its object": (
        {**VIDEO, "video": {"path": "a.mp4", "start": 2, "bytes": None, "fps": 1, "width": 9}},
        ("'video'", "'start'", "video_start", "max_frames", '"ignore_keys"'),
    ),
    "parts as a text": (
        {"messages": [{"role": "user", "content": '[{"type": "text", "text": "Who?"}]'}, TALK[1]]},
        ('[{"type": "text", "text": "Who?"}]',),
    ),
    "choices, a hint and a lecture": (
        {"question": "Which?", "answer": "b", "choices": ["red", "blue"], "hint": "It is not red.", "topic": "colour"},
        ("'hint' (48.3%)", "'choices' (27.6%)", '"columns"', '"ignore_columns"'),
    ),
    "one reasoning of several turns": (
        {"messages": [*TALK, *TALK], "rationale": "He said so."},
        ("'rationale' (40.7%)",),
    ),
}


SKIPPED: dict[str, tuple[dict[str, Any], str]] = {
    "boxes": (
        {"messages": [TALK[0], {"role": "assistant", "content": "<bbox>"}], "objects": {"bbox": [[1, 2, 3, 4]]}},
        "'objects'",
    ),
    "a rejected answer": (
        {"messages": TALK, "rejected_response": "Jerry."},
        "'rejected_response'",
    ),
}


@pytest.mark.parametrize(("row", "named"), SKIPPED.values(), ids=SKIPPED)
def test_rows_that_need_what_is_not_supported_are_skipped_by_name(row: dict[str, Any], named: str) -> None:
    found = said_of(row, Dataset(name="coco"))
    assert isinstance(found, Skip) and found.reason == "bad_row" and named in found.detail
    column = list(row)[-1]
    assert isinstance(said_of(row, Dataset(name="coco", ignore_columns=(column,))), Said)
    assert isinstance(said_of({**row, column: None}, Dataset(name="coco")), Said)


@pytest.mark.parametrize(("row", "named"), IN_VAIN.values(), ids=IN_VAIN)
def test_what_a_row_says_in_vain(row: dict[str, Any], named: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    resolved(Dataset(name="coco", format="auto"), [row, {**row}])
    (message,) = caplog.messages
    assert message.startswith("coco: ") and [name for name in named if name not in message] == []


HEARD: dict[str, dict[str, Any]] = {
    "two system prompts": {"messages": [{"role": "system", "content": "a"}, *TALK], "system_prompt": "a"},
    "an input": {"instruction": "Who?", "input": "Tom", "output": "Tom."},
    "no system prompt": {"messages": TALK, "system_prompt": " "},
    "a rate without a video": {"messages": TALK, "fps": 1},
    "a video": {**VIDEO, "video": [{"path": "a.mp4", "fps": 2, "video_start": 1}]},
    "a sound": {"text": "Moo.", "audio": {"path": "a.wav", "sampling_rate": 16000}},
    "a picture in the text": {
        "conversations": [{"from": "user", "value": "Picture 1: <img>a.png</img>\nWho?"}, TURNS[1]]
    },
    "HTML": {"text": "<img src='a.png'> and <video>x.mp4"},
    "XML": {"messages": [{"role": "user", "content": "<img>none</img> and <b>a.png</b>"}, TALK[1]]},
    "an answer in XML": {"messages": [TALK[0], {"role": "assistant", "content": "<img>a.png</img>"}]},
    "JSON": {"messages": [{"role": "user", "content": '[{"type": "cat"}]'}, TALK[1]]},
    "objects": {"messages": TALK, "objects": ["cat"]},
}


@pytest.mark.parametrize("row", HEARD.values(), ids=HEARD)
def test_what_is_read_or_means_nothing(row: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    resolved(Dataset(name="coco", format="auto"), [row])
    assert not caplog.messages


def test_a_row_of_any_depth(caplog: pytest.LogCaptureFixture) -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    for row in ({"text": "A cat.", "source": deep}, {"text": "A cat.", "images": deep}):
        assert later([row], resolved(Dataset(name="coco", format="auto"), [row])) == RowFacts()
    assert not caplog.messages


def test_keys_of_media_that_are_to_be_ignored(caplog: pytest.LogCaptureFixture) -> None:
    row = {"text": "A cat.", "image": {"path": "a.png", "license": "x"}}
    resolved(Dataset(name="coco", format="document", ignore_keys=("license",)), [row])
    assert not caplog.messages
