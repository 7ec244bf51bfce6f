"""What a user sees first who makes a mistake: the first ten lines, as the command writes them."""
# ruff: noqa: E501 (lines as they are seen)

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import DEMO_PROCESSOR, picture

from neatpack.pipeline.cli import main

ASKED = {"role": "user", "content": "Hello?"}
TALK = [ASKED, {"role": "assistant", "content": "Hi."}]
LOOK = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "That."}]
TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}

END = """  nothing is rendered: repair what is named above, or give --keep-going to pack the rest all the same
  if that is right, raise --max-skipped; 1 takes whatever comes
"""
# Rows, the entry of the data set, and what is seen; {here} is the folder.
MISTAKES: dict[str, tuple[list[Any], dict[str, Any], int, str]] = {
    "a media_dir that is not there": (
        [{"messages": TALK}],
        {"media_dir": "imgs"},
        2,
        "neatpack: {here}/meta.json: data set 'mine': media_dir {here}/imgs is no directory; it is taken relative to the "
        "meta file, or to the working directory: correct it, or leave it out if the rows have whole paths\n",
    ),
    "a pattern that fits no file": (
        [{"messages": TALK}],
        {"file_name": "*.parquet"},
        2,
        "neatpack: {here}/meta.json: data set 'mine': no file is like {here}/*.parquet; the pattern is taken "
        "relative to the meta file\n",
    ),
    "a key of the meta JSON that nobody knows": (
        [{"messages": TALK}],
        {"colums": {}},
        2,
        "neatpack: {here}/meta.json: data set 'mine': unknown key 'colums'; known: file_name, format, columns, tags, "
        "id_column, group_column, ignore_keys, ignore_columns, placeholders, media_dir, media_prefixes, sample_ratio, "
        "weight, source, path_or_dataset, split. Did you mean 'columns'? Correct or remove it, or give --allow-unknown-keys\n",
    ),
    "another format than the rows have": (
        [{"id": i, "image": "0.png", "conversations": [{"from": "human", "value": "?"}]} for i in range(180)],
        {"format": "alpaca"},
        1,
        "neatpack: {here}/out: nothing is packed; 180 of 180 samples skipped, 100.0%: more than max_skipped allows, 5.0%\n"
        "  mine: 180 of 180 skipped: 180x bad_row: column 'instruction' is absent; expected a text (row 0); rows have id, "
        'image, conversations: set columns and tags, or "format": "llava"\n' + END,
    ),
    "a slip in the key of a turn": (
        [{"messages": [ASKED, {"role": "assistant", "content": "Hi.", "wieght": 0}]}, *[{"messages": TALK}] * 9],
        {},
        1,
        "neatpack: {here}/out: 1 of 10 samples skipped, 10.0%: more than max_skipped allows, 5.0%\n"
        "  mine: 1 of 10 skipped: 1x bad_row: turn 1: unknown key 'wieght'; fix it, or list it under \"ignore_keys\" of the "
        "data set (row 0)\n" + END,
    ),
    "preference pairs": (
        [{"messages": TALK, "rejected_response": "Go away."}, *[{"messages": TALK}] * 9],
        {},
        1,
        "neatpack: {here}/out: 1 of 10 samples skipped, 10.0%: more than max_skipped allows, 5.0% [too-many-skipped]\n"
        "  mine: 1 of 10 skipped: 1x bad_row: column 'rejected_response': preference pairs are not supported; to train on the "
        'preferred answer alone, list the column under "ignore_columns" (row 0)\n' + END,
    ),
    "pictures that are elsewhere": (
        [{"messages": LOOK, "images": [f"photos/{i}.jpg"]} for i in range(180)],
        {"media_dir": "."},
        1,
        "neatpack: {here}/out: nothing is packed; 180 of 180 samples skipped, 100.0%: more than max_skipped allows, 5.0%\n"
        "  mine: 180 of 180 skipped: 180x missing_media: photos/…jpg: No such file or directory (row 0, for one): is "
        "media_dir right? it is {here}\n" + END,
    ),
    "downloads that nobody allowed": (
        [{"messages": LOOK, "images": ["https://example.invalid/cat.jpg?key=secret"]}, *[{"messages": TALK}] * 9],
        {},
        1,
        "neatpack: {here}/out: 1 of 10 samples skipped, 10.0%: more than max_skipped allows, 5.0%\n"
        "  mine: 1 of 10 skipped: 1x missing_media: https://example.invalid/cat.jpg: downloads are off; give --allow-http "
        "(row 0)\n" + END,
    ),
    "a scheme that nobody knows": (
        [{"messages": LOOK, "images": ["ftp://host/cat.jpg"]}, *[{"messages": TALK}] * 9],
        {},
        1,
        "neatpack: {here}/out: 1 of 10 samples skipped, 10.0%: more than max_skipped allows, 5.0%\n"
        "  mine: 1 of 10 skipped: 1x bad_row: column 'images': unknown scheme ftp://; known: file, s3, gs, gcs, abfs, abfss, "
        "hdfs, http, https, data, or a path (row 0): do columns and tags say how its rows are written? repair the rows, or "
        "set them\n" + END,
    ),
    "tools, and a template that knows none": (
        [{"messages": TALK, "tools": [TOOL]}],
        {},
        1,
        "neatpack: {here}/out: nothing is packed; 1 of 1 sample skipped, 100.0%: more than max_skipped allows, 5.0%\n"
        "  mine: 1 of 1 skipped: 1x bad_row: tools: the chat template of processor does not write it; take one that does "
        "(row 0)\n" + END,
    ),
    "nothing that is trained on": (
        [{"messages": [ASKED, {"role": "assistant", "content": "Hi.", "loss": False}]}],
        {},
        1,
        "neatpack: {here}/out: nothing is packed; 1 of 1 sample skipped, 100.0%: more than max_skipped allows, 5.0%\n"
        "  mine: 1 of 1 skipped: 1x no_target: no assistant turn that is trained on has text, reasoning or tool calls (row 0): is "
        "tags.assistant_tag what its rows call the assistant? is loss as it was meant?\n" + END,
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_seen_of(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, entry, code, expected = MISTAKES[name]
    picture(tmp_path / "0.png", 30, 30)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "meta.json").write_text(json.dumps({"mine": {"file_name": "rows.jsonl"} | entry}))
    flags = {"meta": tmp_path / "meta.json", "out": tmp_path / "out", "processor": DEMO_PROCESSOR, "engine": "inline"}
    given = [str(text) for flag, value in flags.items() for text in (f"--{flag}", value)]
    assert main(["pack", *given]) == code
    seen = capsys.readouterr().err
    assert seen == expected.format(here=tmp_path, processor=DEMO_PROCESSOR)
    assert "secret" not in "".join(path.read_text() for path in tmp_path.glob("out/*.json")) and len(seen) < 2000
    assert len(re.findall("\n", seen)) <= 10
