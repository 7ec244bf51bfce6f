"""What a job lost, in words: when it is too much, and what is said of it."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import TinyData, corpus_of, tiny_config
from support.errors import numbers_in, printed_code

from neatpack.pipeline.records import REASONS
from neatpack.pipeline.run import run_pack, run_plan
from neatpack.pipeline.shard.troubles import REMEDIES, UNCOUNTED, Tally, Tokens, generic, troubles

ACCEPTED = (*UNCOUNTED, "overlong")  # with --overlong drop


def tally(
    name: str,
    packed: int,
    *lines: tuple[int, str, str],
    ratio: float = 1.0,
    media_dir: str = "/data",
    tokens: int = 0,
    **more: Any,
) -> Tally:
    """`lines`: row, reason and detail of what is skipped; `tokens`: of each of these rows, and of a packed one."""
    corpus = corpus_of(name, [1] * (packed + len(lines)))
    corpus = dataclasses.replace(
        corpus, dataset=dataclasses.replace(corpus.dataset, sample_ratio=ratio, media_dir=media_dir)
    )
    skipped: dict[str, int] = {}
    for _, reason, _ in lines:
        skipped[reason] = skipped.get(reason, 0) + 1
    schema = pa.schema([("row", pa.int64()), ("reason", pa.string()), ("detail", pa.string()), ("tokens", pa.int32())])
    table = pa.Table.from_pylist(
        [dict(zip(schema.names, (*line, tokens), strict=True)) for line in lines], schema=schema
    )
    return Tally(
        corpus=corpus,
        samples=packed + len(lines),
        packed=packed,
        tokens=packed * tokens,
        skipped=skipped,
        lines=lambda: table,
        **more,
    )


def said(*tallies: Tally, share: float = 0.05) -> list[str]:
    lost: dict[str, int] = {}
    for line in (line for tally in tallies for line in tally.lines().to_pylist() if line["tokens"]):
        lost[line["reason"]] = lost.get(line["reason"], 0) + line["tokens"]
    tokens = Tokens(packed=sum(tally.tokens for tally in tallies), skipped=lost)
    return list(troubles(tallies, tokens, share, ""))


def first(lines: Sequence[str]) -> tuple[str, list[float]]:
    """Code and numbers of the first line."""
    return printed_code(lines[0]), numbers_in(lines[0].replace("%", ""))


def test_every_reason_has_a_remedy() -> None:
    assert set(REMEDIES) == set(REASONS)


def test_no_more_than_may_be_is_no_trouble() -> None:
    assert said(tally("a", 19, (3, "bad_row", "empty conversation"))) == []
    lines = said(tally("a", 18, (3, "bad_row", "x"), (4, "bad_row", "x")))
    assert first(lines) == ("too-many-skipped", [2, 20, 10.0, 5.0])
    assert said(tally("a", 18, (3, "bad_row", "x"), (4, "bad_row", "x")), share=0.1) == []


@pytest.mark.parametrize("reason", ["sampled_out", "held_out", "not_held_out", "overlong", "max_packs"])
def test_what_the_user_asked_for_does_not_count(reason: str) -> None:
    lines = [(row, reason, "") for row in range(9)]
    assert said(tally("a", 1, *lines, tokens=7, uncounted=ACCEPTED)) == []
    assert bool(said(tally("a", 1, *lines, tokens=7))) == (reason == "overlong"), "lost, where nobody chose to drop it"


def test_losses_are_told_in_rows_and_in_tokens() -> None:
    long = tally("long", 0, *((row, "overlong", f"{row} tokens") for row in range(3)), tokens=200)
    lines = said(tally("short", 97, tokens=1), long, share=0.5)
    assert first(lines) == ("too-many-skipped", [3, 100, 3.0, 600, 697, 86.1, 50.0]) and "long" in lines[0]
    assert lines[1].startswith("long: 3 of 3 ") and "3x overlong (600 tokens): 0 tokens (row 0" in lines[1]
    assert "100.0%" in lines[1] and all(flag in lines[1] for flag in ("--pack-size", "--overlong"))
    lines = said(tally("short", 97, tokens=1), long, share=0.9)
    assert first(lines) == ("too-many-skipped", []) and "long" in lines[0]


TAGS = (0, "bad_placeholders", "1 <video> tags but 0 videos")


def test_where_no_row_has_media_the_message_offers_text_and_then_the_missing_column() -> None:
    (line,) = said(tally("a", 1, TAGS, has_media=False))[1:-1]
    text, column = line.index('set "placeholders": "text"'), line.index('name it: "columns": {"videos": …}')
    assert text < column and "lenient" not in line
    (line,) = said(tally("a", 1, TAGS, has_media=True))[1:-1]
    assert line.endswith("--placeholders lenient")


def test_media_that_are_only_named_in_text_may_be_no_media() -> None:
    (line,) = said(tally("a", 1, (0, "missing_media", "/data/a.wav: No such file"), has_media=False))[1:-1]
    assert line.index('"placeholders": "text"') < line.index("media_dir")


def test_what_is_sampled_out_is_no_sample_either() -> None:
    """One bad row of ten that are taken, not of a hundred."""
    lines = [(row, "sampled_out", "") for row in range(90)]
    assert first(said(tally("a", 9, (95, "bad_row", "x"), *lines)))[1][:3] == [1, 10, 10.0]


def test_a_data_set_that_ends_empty() -> None:
    full = tally("full", 1000)
    lines = said(full, tally("empty", 0, (0, "overlong", "9 tokens, a pack holds 8")))
    assert first(lines) == ("too-many-skipped", []) and "empty" in lines[0] and len(lines) == 3
    assert lines[1].startswith("empty: 1 of 1 ") and "1x overlong: 9 tokens, a pack holds 8 (row 0)" in lines[1]
    lines = said(full, tally("norows", 0))
    assert "norows" in lines[0] and lines[1].startswith("norows: absent.jsonl ")
    assert said(full, tally("off", 0, ratio=0.0)) == []
    assert said(full, tally("off", 0, (0, "sampled_out", ""), ratio=0.0)) == []
    assert said(full, tally("later", 0, (0, "max_packs", ""))) == []
    assert said(full, tally("held", 0, (0, "held_out", ""))) == []


def test_nothing_is_packed() -> None:
    lines = said(tally("a", 0, (0, "no_target", "no assistant turn")))
    assert first(lines) == ("no-rows", [1, 1, 100.0, 5.0]) and "--max-skipped" in lines[-1] and len(lines) == 3
    assert lines[1].startswith("a: 1 of 1 ") and "1x no_target: no assistant turn (row 0)" in lines[1]
    assert "tags.assistant_tag" in lines[1]
    lines = said(tally("a", 0, ratio=0.0))
    assert first(lines) == ("no-rows", []) and len(lines) == 2
    assert said(tally("a", 0, (0, "bad_row", "x")), share=1) == []


def test_like_details_are_one_line() -> None:
    lost = [(row, "missing_media", f"/data/images/{row}/x{row}.jpg: No such file or directory") for row in range(180)]
    line = said(tally("coco", 5, *lost))[1]
    assert line.startswith("coco: 180 of 185 ") and "180x missing_media: images/…jpg: " in line and "(row 0" in line
    assert "media_dir" in line and line.endswith("/data")


def test_the_largest_groups_come_first_and_the_rest_is_counted() -> None:
    lines = [(row, "bad_row", f"turn {row}: unknown role 'narrator'; known: user") for row in range(4)]
    lines += [(row, "bad_row", "empty conversation") for row in range(4, 7)]
    lines += [(7, "no_target", "no assistant turn"), (8, "bad_media", "/data/a.png: cut"), (9, "bad_media", "crash")]
    (line,) = said(tally("a", 1, *lines))[1:-1]
    assert line.startswith("a: 10 of 11 ") and "4x bad_row: turn 0: unknown role 'narrator'; known: user (row 0" in line
    assert "; 3x bad_row: empty conversation (row 4): " in line
    assert "; 1x no_target: no assistant turn (row 7): " in line
    assert numbers_in(line)[-2:] == [2, 2]


@pytest.mark.parametrize(
    ("detail", "reason", "expected"),
    [
        ("/data/a/b/1.jpg: gone", "missing_media", "a/…jpg: gone"),
        ("/data/1.jpg: gone", "missing_media", "…jpg: gone"),
        ("/other/b/1.jpg: gone", "missing_media", "/other/…jpg: gone"),
        ("/data/a: Is a directory", "missing_media", "…: Is a directory"),
        ("/data/a.png: was 3x4 when measured", "bad_media", "…png: was #x# when measured"),
        ("line 12: broken JSON: char 7", "bad_row", "line #: broken JSON: char #"),
        ("column 'messages' is absent", "bad_row", "column 'messages' is absent"),
        ("key '/a/b.png' of turn 3", "bad_row", "key '…' of turn #"),
    ],
)
def test_generic(detail: str, reason: str, expected: str) -> None:
    assert generic(detail, reason, "/data") == expected


TALK = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
# A file, and what is said to do about it.
FILES: dict[str, tuple[bytes, str]] = {
    "half a row": (b'{"text": \n', "(row 0): "),
    "a list": (b"[1]\n", "(row 0): "),
    "latin-1": ('{"text": "é"}'.encode("latin-1"), "iconv -f ENCODING -t UTF-8"),
    "rows in a row": (
        json.dumps({"version": 1, "data": [TALK]}).encode(),
        "jq -c '.data[]' ",
    ),
    "rows by their names": (
        json.dumps({"a 1": TALK, "a 2": TALK}).encode(),
        "jq -c '.[]' ",
    ),
    "names that nobody knows": (
        b'{"ask": "?", "tell": "!", "data": [1], "more": [{"x": 1}]}',
        'ask, tell, data, more: give "format" and "columns"',
    ),
}


@pytest.mark.parametrize(("content", "words"), FILES.values(), ids=FILES)
def test_what_to_do_about_rows_that_are_none(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "meta.json").write_text(json.dumps({"a": {"file_name": "a.jsonl"}}))
    line = run_plan(tiny_config(tmp_path / "meta.json", tmp_path / "out")).troubles[1]
    assert line.startswith("a: 1 of 1 ") and "1x bad_row: " in line and words in line


def llava(folder: Path) -> Path:
    """A data set whose columns nobody set, and whose format somebody set wrong."""
    data = TinyData(folder)
    data.rows = [{"id": i, "image": "a.jpg", "conversations": [{"from": "human", "value": "?"}]} for i in range(6)]
    meta = data.write()
    meta.write_text(json.dumps({"tiny": json.loads(meta.read_text())["tiny"] | {"format": "messages"}}))
    return meta


def test_of_a_run_and_of_its_plan(tmp_path: Path) -> None:
    config = tiny_config(llava(tmp_path / "data"), tmp_path / "out")
    packed = run_pack(config)
    assert first(packed.troubles) == ("no-rows", [6, 6, 100.0, 5.0])
    _, line, more, _ = packed.troubles
    assert line.startswith("tiny: 6 of 6 ") and "6x bad_row: turn 0: " in line and "(row 0)" in line
    assert "id, image, conversations" in line and line.endswith('"format": "llava"')
    assert more.endswith(f"neatpack skipped {tmp_path / 'out'}")
    assert (tmp_path / "out/manifest.json").is_file()
    again = run_pack(config)
    assert again.already_done and again.troubles == packed.troubles
    assert run_pack(dataclasses.replace(config, max_skipped=1.0)).troubles == ()
    planned = run_plan(config)
    assert planned.troubles == (*packed.troubles[:2], packed.troubles[-1])


def test_each_output_of_a_holdout_has_its_own(tmp_path: Path) -> None:
    data = TinyData(tmp_path / "data")
    for i in range(40):
        data.text(f"question {i}", "answer")
    data.rows += ["{broken"] * 20
    packed = run_pack(tiny_config(data.write(), tmp_path / "out", holdout=0.3))
    assert packed.holdout is not None
    both: list[Any] = [packed, packed.holdout]
    lost = [each.manifest.counts.skipped.get("bad_row", 0) for each in both]
    assert [bool(each.troubles) for each in both] == [count > 0 for count in lost]
    assert sum(lost) == 20


def test_a_holdout_without_rows(tiny: TinyData, tmp_path: Path) -> None:
    packed = run_pack(tiny_config(tiny.text("a", "b").write(), tmp_path / "out", holdout=1e-9))
    assert packed.troubles == () and packed.holdout is not None
    assert first(packed.holdout.troubles) == ("no-rows", []) and "--holdout" in packed.holdout.troubles[0]
    assert len(packed.holdout.troubles) == 2


def test_max_skipped_is_no_part_of_the_identity(tmp_path: Path) -> None:
    config = tiny_config(TinyData(tmp_path / "data").text("a", "b").write(), tmp_path / "out")
    identity = run_pack(config).manifest.identity
    assert run_pack(dataclasses.replace(config, max_skipped=0.5)).already_done
    assert "max_skipped" not in json.dumps(identity.to_json())
