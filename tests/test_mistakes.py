"""What a user sees first who makes a mistake: ten lines at most, with the code, where it is, and what to set."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import DEMO_PROCESSOR, picture
from support.errors import printed_code

from neatpack.pipeline.cli import main

ASKED = {"role": "user", "content": "Hello?"}
TALK = [ASKED, {"role": "assistant", "content": "Hi."}]
LOOK = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "That."}]
TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}

# Rows, the entry of the data set, the exit code, the code that is printed, and what is named; {here} is the folder.
MISTAKES: dict[str, tuple[list[Any], dict[str, Any], int, str, tuple[str, ...]]] = {
    "a media_dir that is not there": (
        [{"messages": TALK}],
        {"media_dir": "imgs"},
        2,
        "meta-invalid",
        ("{here}/meta.json", "'mine'", "media_dir", "{here}/imgs"),
    ),
    "a pattern that fits no file": (
        [{"messages": TALK}],
        {"file_name": "*.parquet"},
        2,
        "data-missing",
        ("{here}/meta.json", "'mine'", "{here}/*.parquet"),
    ),
    "a key of the meta JSON that nobody knows": (
        [{"messages": TALK}],
        {"colums": {}},
        2,
        "meta-unknown-key",
        ("{here}/meta.json", "'mine'", "'colums'", "'columns'", "--allow-unknown-keys"),
    ),
    "another format than the rows have": (
        [{"id": i, "image": "0.png", "conversations": [{"from": "human", "value": "?"}]} for i in range(180)],
        {"format": "alpaca"},
        1,
        "no-rows",
        ("180 of 180", "5.0%", "180x bad_row", "'instruction'", "row 0", "conversations", '"format": "llava"'),
    ),
    "a slip in the key of a turn": (
        [{"messages": [ASKED, {"role": "assistant", "content": "Hi.", "wieght": 0}]}, *[{"messages": TALK}] * 9],
        {},
        1,
        "too-many-skipped",
        ("1 of 10", "5.0%", "1x bad_row", "turn 1", "'wieght'", '"ignore_keys"', "row 0"),
    ),
    "preference pairs": (
        [{"messages": TALK, "rejected_response": "Go away."}, *[{"messages": TALK}] * 9],
        {},
        1,
        "too-many-skipped",
        ("1 of 10", "1x bad_row", "'rejected_response'", '"ignore_columns"', "row 0"),
    ),
    "pictures that are elsewhere": (
        [{"messages": LOOK, "images": [f"photos/{i}.jpg"]} for i in range(180)],
        {"media_dir": "."},
        1,
        "no-rows",
        ("180 of 180", "180x missing_media", "photos/…jpg", "row 0", "media_dir", "{here}"),
    ),
    "downloads that nobody allowed": (
        [{"messages": LOOK, "images": ["https://example.invalid/cat.jpg?key=secret"]}, *[{"messages": TALK}] * 9],
        {},
        1,
        "too-many-skipped",
        ("1 of 10", "1x missing_media", "https://example.invalid/cat.jpg:", "--allow-http", "row 0"),
    ),
    "a scheme that nobody knows": (
        [{"messages": LOOK, "images": ["ftp://host/cat.jpg"]}, *[{"messages": TALK}] * 9],
        {},
        1,
        "too-many-skipped",
        ("1 of 10", "1x bad_row", "'images'", "ftp://", "s3", "row 0"),
    ),
    "tools, and a template that knows none": (
        [{"messages": TALK, "tools": [TOOL]}],
        {},
        1,
        "no-rows",
        ("1 of 1", "1x bad_row", "tools", "row 0"),
    ),
    "nothing that is trained on": (
        [{"messages": [ASKED, {"role": "assistant", "content": "Hi.", "loss": False}]}],
        {},
        1,
        "no-rows",
        ("1 of 1", "1x no_target", "tags.assistant_tag", "loss", "row 0"),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_seen_of(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, entry, exit_code, code, named = MISTAKES[name]
    picture(tmp_path / "0.png", 30, 30)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "meta.json").write_text(json.dumps({"mine": {"file_name": "rows.jsonl"} | entry}))
    flags = {"meta": tmp_path / "meta.json", "out": tmp_path / "out", "processor": DEMO_PROCESSOR, "engine": "inline"}
    given = [str(text) for flag, value in flags.items() for text in (f"--{flag}", value)]
    assert main(["pack", *given]) == exit_code
    seen = capsys.readouterr().err
    assert printed_code(seen) == code
    assert [each for each in named if each.replace("{here}", str(tmp_path)) not in seen] == []
    assert ("--keep-going" in seen) == ("--max-skipped" in seen) == (exit_code == 1)
    assert "secret" not in seen + "".join(path.read_text() for path in tmp_path.glob("out/*.json"))
    assert len(seen) < 2000 and seen.count("\n") <= 10
