"""What a job lost, in words: when it is too much, and what is said of it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import TinyData, corpus_of, tiny_config

from neatpack.pipeline.records import REASONS
from neatpack.pipeline.run import run_pack, run_plan
from neatpack.pipeline.shard.troubles import REMEDIES, UNCOUNTED, Tally, Tokens, generic, troubles

END = "if that is right, raise --max-skipped; 1 takes whatever comes"


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


def test_every_reason_has_a_remedy() -> None:
    assert set(REMEDIES) == set(REASONS)


def test_no_more_than_may_be_is_no_trouble() -> None:
    assert said(tally("a", 19, (3, "bad_row", "empty conversation"))) == []
    assert said(tally("a", 18, (3, "bad_row", "x"), (4, "bad_row", "x")))[0] == (
        "2 of 20 samples skipped, 10.0%: more than max_skipped allows, 5.0%"
    )
    assert said(tally("a", 18, (3, "bad_row", "x"), (4, "bad_row", "x")), share=0.1) == []


@pytest.mark.parametrize("reason", ["sampled_out", "held_out", "not_held_out", "overlong", "max_packs"])
def test_what_the_user_asked_for_does_not_count(reason: str) -> None:
    lines = [(row, reason, "") for row in range(9)]
    assert said(tally("a", 1, *lines, tokens=7, uncounted=ACCEPTED)) == []
    assert bool(said(tally("a", 1, *lines, tokens=7))) == (reason == "overlong"), "lost, where nobody chose to drop it"


def test_losses_are_told_in_rows_and_in_tokens() -> None:
    long = tally("long", 0, *((row, "overlong", f"{row} tokens") for row in range(3)), tokens=200)
    assert said(tally("short", 97, tokens=1), long, share=0.5)[:2] == [
        "nothing is packed of long; 3 of 100 samples skipped, 3.0%, and 600 of 697 tokens, 86.1%: more than "
        "max_skipped allows, 50.0%",
        "long: 3 of 3 skipped, with 100.0% of its tokens: 3x overlong (600 tokens): 0 tokens (row 0, for one): raise "
        "--pack-size, give --overlong truncate or shrink, or accept the loss by --overlong drop",
    ]
    assert said(tally("short", 97, tokens=1), long, share=0.9)[0] == "nothing is packed of long"


TAGS = (0, "bad_placeholders", "1 <video> tags but 0 videos")


def test_where_no_row_has_media_the_message_offers_text_and_then_the_missing_column() -> None:
    (line,) = said(tally("a", 1, TAGS, has_media=False))[1:-1]
    text, column = line.index('set "placeholders": "text"'), line.index('name it: "columns": {"videos": …}')
    assert text < column and "lenient" not in line
    (line,) = said(tally("a", 1, TAGS, has_media=True))[1:-1]
    assert line.endswith(": repair the rows, or give --placeholders lenient")


def test_media_that_are_only_named_in_text_may_be_no_media() -> None:
    (line,) = said(tally("a", 1, (0, "missing_media", "/data/a.wav: No such file"), has_media=False))[1:-1]
    assert 'if the rows only write about such tags, set "placeholders": "text"; is media_dir right?' in line


def test_what_is_sampled_out_is_no_sample_either() -> None:
    """One bad row of ten that are taken, not of a hundred."""
    lines = [(row, "sampled_out", "") for row in range(90)]
    assert said(tally("a", 9, (95, "bad_row", "x"), *lines))[0].startswith("1 of 10 samples skipped, 10.0%")


def test_a_data_set_that_ends_empty() -> None:
    full = tally("full", 1000)
    assert said(full, tally("none", 0, (0, "overlong", "9 tokens, a pack holds 8"))) == [
        "nothing is packed of none",
        "none: 1 of 1 skipped: 1x overlong: 9 tokens, a pack holds 8 (row 0): raise --pack-size, give --overlong "
        "truncate or shrink, or accept the loss by --overlong drop",
        END,
    ]
    assert said(full, tally("norows", 0))[:2] == ["nothing is packed of norows", "norows: absent.jsonl has no rows"]
    assert said(full, tally("off", 0, ratio=0.0)) == []
    assert said(full, tally("off", 0, (0, "sampled_out", ""), ratio=0.0)) == []
    assert said(full, tally("later", 0, (0, "max_packs", ""))) == []
    assert said(full, tally("held", 0, (0, "held_out", ""))) == []


def test_nothing_is_packed() -> None:
    assert said(tally("a", 0, (0, "no_target", "no assistant turn"))) == [
        "nothing is packed; 1 of 1 sample skipped, 100.0%: more than max_skipped allows, 5.0%",
        "a: 1 of 1 skipped: 1x no_target: no assistant turn (row 0): is tags.assistant_tag what its rows call the "
        "assistant? is loss as it was meant?",
        END,
    ]
    assert said(tally("a", 0, ratio=0.0)) == [
        "nothing is packed, for there is nothing to take: rows are absent, sampled out or held out",
        END,
    ]
    assert said(tally("a", 0, (0, "bad_row", "x")), share=1) == []


def test_like_details_are_one_line() -> None:
    lost = [(row, "missing_media", f"/data/images/{row}/x{row}.jpg: No such file or directory") for row in range(180)]
    assert said(tally("coco", 5, *lost))[1] == (
        "coco: 180 of 185 skipped: 180x missing_media: images/…jpg: No such file or directory (row 0, for one): "
        "is media_dir right? it is /data"
    )


def test_the_largest_groups_come_first_and_the_rest_is_counted() -> None:
    lines = [(row, "bad_row", f"turn {row}: unknown role 'narrator'; known: user") for row in range(4)]
    lines += [(row, "bad_row", "empty conversation") for row in range(4, 7)]
    lines += [(7, "no_target", "no assistant turn"), (8, "bad_media", "/data/a.png: cut"), (9, "bad_media", "crash")]
    (line,) = said(tally("a", 1, *lines))[1:-1]
    assert line.startswith(
        "a: 10 of 11 skipped: 4x bad_row: turn 0: unknown role 'narrator'; known: user (row 0, for one): do columns"
    )
    assert "; 3x bad_row: empty conversation (row 4): " in line
    assert "; 1x no_target: no assistant turn (row 7): " in line
    assert line.endswith("; and 2 for 2 other causes")


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
    "half a row": (b'{"text": \n', "(row 0): repair these lines, or write the file again, with an object on each line"),
    "a list": (b"[1]\n", "(row 0): repair these lines, or write the file again, with an object on each line"),
    "latin-1": ('{"text": "é"}'.encode("latin-1"), "(row 0): save the file as UTF-8, by iconv -f ENCODING -t UTF-8"),
    "rows in a row": (
        json.dumps({"version": 1, "data": [TALK]}).encode(),
        "(row 0); the row has version, data, and rows are inside of it: jq -c '.data[]' writes them as JSONL",
    ),
    "rows by their names": (
        json.dumps({"a 1": TALK, "a 2": TALK}).encode(),
        "(row 0); the row has a 1, a 2, and rows are inside of it: jq -c '.[]' writes them as JSONL",
    ),
    "names that nobody knows": (
        b'{"ask": "?", "tell": "!", "data": [1], "more": [{"x": 1}]}',
        '(row 0); rows have ask, tell, data, more: give "format" and "columns"',
    ),
}


@pytest.mark.parametrize(("content", "words"), FILES.values(), ids=FILES)
def test_what_to_do_about_rows_that_are_none(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "meta.json").write_text(json.dumps({"a": {"file_name": "a.jsonl"}}))
    line = run_plan(tiny_config(tmp_path / "meta.json", tmp_path / "out")).troubles[1]
    assert line.startswith("a: 1 of 1 skipped: 1x bad_row: ") and line.endswith(words)


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
    assert packed.troubles == (
        "nothing is packed; 6 of 6 samples skipped, 100.0%: more than max_skipped allows, 5.0%",
        "tiny: 6 of 6 skipped: 6x bad_row: turn 0: unknown role None; known: user, assistant, system, developer, tool, "
        'function, observation (row 0); rows have id, image, conversations: set columns and tags, or "format": "llava"',
        f"every row that is skipped: neatpack skipped {tmp_path / 'out'}",
        END,
    )
    assert (tmp_path / "out/manifest.json").is_file()
    again = run_pack(config)
    assert again.already_done and again.troubles == packed.troubles
    assert run_pack(dataclasses.replace(config, max_skipped=1.0)).troubles == ()
    planned = run_plan(config)
    assert planned.troubles == (*packed.troubles[:2], END)


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
    assert packed.holdout.troubles == (
        "nothing is packed, for no row is held out; raise --holdout, or leave it away",
        END,
    )


def test_max_skipped_is_no_part_of_the_identity(tmp_path: Path) -> None:
    config = tiny_config(TinyData(tmp_path / "data").text("a", "b").write(), tmp_path / "out")
    identity = run_pack(config).manifest.identity
    assert run_pack(dataclasses.replace(config, max_skipped=0.5)).already_done
    assert "max_skipped" not in json.dumps(identity.to_json())
