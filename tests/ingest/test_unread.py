"""Media that rows have and nothing reads are warned of, and nothing else is."""

from typing import Any

import pytest

from neatpack.pipeline.ingest.convert import resolved
from neatpack.pipeline.ingest.meta import Columns, Dataset

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
}


@pytest.mark.parametrize(("row", "remedy"), UNREAD.values(), ids=UNREAD)
def test_media_that_nothing_reads(row: dict[str, Any], remedy: str, caplog: pytest.LogCaptureFixture) -> None:
    resolved(Dataset(name="coco", format="auto"), [row, {**row}])
    (record,) = caplog.records
    column = list(row)[-1]
    assert record.levelname == "WARNING" and record.message.startswith(f"coco: column {column!r} has ")
    assert "in 2 of the first 2 rows, and is not read" in record.message and record.message.endswith(remedy)


def test_both_names_of_a_column(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": "Who?", "response": "Tom.", "images": ["b.png"], "image": image} for image in ("a.png", "b.png")]
    resolved(Dataset(name="coco", format="auto"), rows)
    assert caplog.messages == [
        "coco: column 'image' has pictures in 1 of the first 2 rows, and is not read, for 'images' is; "
        "remove one of the two"
    ]


QUIET: dict[str, dict[str, Any]] = {
    "read": {"text": "A cat.", "image": "a.jpg"},
    "where it came from": {"text": "A cat.", "image": "a.jpg", "coco_url": "https://host/a.jpg"},
    "in a part": {"messages": [{"role": "user", "content": [{"type": "image", "image": "a.jpg"}]}], "source": "a.jpg"},
    "other files": {"text": "A cat.", "source": "coco.json", "site": "example.org", "title": "1.5 of 2"},
    "nothing": {"text": "A cat.", "image": None, "images": [], "thumbnail": None},
}


@pytest.mark.parametrize("row", QUIET.values(), ids=QUIET)
def test_nothing_to_warn_of(row: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    resolved(Dataset(name="coco", format="auto"), [row])
    assert not caplog.messages


def test_a_column_that_no_row_has(caplog: pytest.LogCaptureFixture) -> None:
    """Rows without a system prompt are no less rows, so a slip of the pen has no other sign."""
    given = Dataset(name="chat", format="messages", columns=Columns(system="sys", tools="functions"))
    rows = [{"messages": [{"role": "user", "content": "Hi"}], "system_prompt": "Be brief.", "functions": None}]
    resolved(given, rows)
    assert caplog.messages == [
        "chat: columns.system is 'sys', which none of the first 1 rows has; they have messages, system_prompt, "
        "functions"
    ]


def test_a_loss_of_a_row(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": "A cat.", "loss": loss} for loss in (None, True, 1.0, False, 0)]
    resolved(Dataset(name="chat", format="auto"), rows)
    assert caplog.messages == [
        "chat: column 'loss' is set in 2 of the first 5 rows (False, for one), and is not read; it may be said of "
        "turns, and the share of a data set in the meta JSON"
    ]
