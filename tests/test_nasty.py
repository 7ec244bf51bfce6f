"""Real broken files: every one of them ends in the ledger with the outcome that its note asks for."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commands import assert_verified
from support.errors import raises
from support.nasty import DATA, NASTY, SHARED, media as media, outcomes, packed, strict as strict, write_meta

from neatpack import PackConfig, UserError, run_pack

pytestmark = [
    pytest.mark.net,
    pytest.mark.skipif(not NASTY.is_dir(), reason="the collection of broken files (../shared/data/nasty) is not here"),
]


def expectations(kind: str) -> dict[str, str]:
    """File -> what its note asks for."""
    if not NASTY.is_dir():
        return {}
    lines = (NASTY / "expected.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    return {entry["file"]: entry["expected"] for entry in entries if entry["file"].startswith(kind + "/")}


# ---------------------------------------------------------------- media

# Where the note leaves the choice to us: what we do, visual tokens, and why.
POLICIES = {
    "images/animated-loop-3.gif": ("packed", 130),  # the first frame, 370x285
    "images/rotating-squares.webp": ("packed", 9),  # the first frame, 80x80
    "images/ball.png": ("packed", 16),  # the first frame, 100x100
    "images/white-1x1.jpg": ("packed", 4),  # grown to the processor's min_pixels
    "images/png-transparent.png": ("packed", 4),  # the same, on white
    "images/161x1.jpg": ("packed", 26),  # 161:1 is below the model's 200:1
    # 144 MP of black; with --max-image-pixels 178956970 it is packed, shrunk to max_pixels.
    "images/black_large.webp": (("16000x9000", "--max-image-pixels 100000000"), 0),
    # 400:1 is above it: a grid of such a picture does not exist.
    "images/ui-bg_glass_50_3baae3_1x400.png": (("400:1", "200:1", "1x400"), 0),
}
TOKENS_OF_BROKEN = {"images/corrupt.jpg": 42, "images/half_download_dev.jpg": 246}


def test_every_file_has_its_line(media: dict[str, dict[str, Any]]) -> None:
    assert media.keys() == expectations("images").keys() | expectations("videos").keys()


@pytest.mark.parametrize("file", expectations("images"))
def test_image(media: dict[str, dict[str, Any]], file: str) -> None:
    expected, line = expectations("images")[file], media[file]
    if expected == "decode":
        assert line["status"] == "packed"
        assert line["visual_tokens"] > 0
    elif expected == "decode_policy":
        outcome, visual_tokens = POLICIES[file]
        if outcome == "packed":
            assert (line["status"], line["visual_tokens"]) == ("packed", visual_tokens)
        else:
            assert (line["status"], line["reason"]) == ("skipped", "bad_media")
            assert line["detail"].startswith(f"{file}: ") and all(name in line["detail"] for name in outcome)
    else:
        assert expected in ("reject", "reject_unless_plugin", "reject_or_partial")
        assert (line["status"], line["reason"]) == ("skipped", "bad_media")
        assert line["tokens"] == TOKENS_OF_BROKEN.get(file, 0), "a header that says how large it is was measured"
        assert line["detail"].startswith(f"{file}: ")


@pytest.mark.parametrize("file", expectations("videos"))
def test_video(media: dict[str, dict[str, Any]], file: str) -> None:
    line = media[file]
    if expectations("videos")[file] in ("decode", "decode_policy"):
        assert (line["status"], line["reason"]) == ("packed", "")
        assert line["visual_tokens"] > 0
    else:
        assert (line["status"], line["reason"]) == ("skipped", "bad_media")
        assert line["detail"].startswith(f"{file}: ")


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("lenient")
    return packed(write_meta(folder, DATA), folder / "out", placeholders="lenient")


def test_every_data_file_is_tried() -> None:
    lines = (NASTY / "data_expected.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["file"] for line in lines} == {f"data/{name}" for name in (*DATA, "lfs_pointer.json")}


def test_videos_without_placeholders(strict: dict[str, Any], lenient: dict[str, Any]) -> None:
    name = "mantis_video_unmodified.json"
    assert named(outcomes(strict[name]), [("bad_placeholders", "0 <video>", "1 video", "placeholders")] * 4)
    found = outcomes(lenient[name])
    missing = "missing_media: "
    assert [text.startswith(missing) for text in found].count(True) == 1
    assert [text for text in found if not text.startswith(missing)] == ["packed"] * 3


def test_content_in_parts_with_values_is_read(strict: dict[str, Any]) -> None:
    """Rows without a picture are packed; the pictures are not here."""
    found = outcomes(strict["content_parts.jsonl"])
    rows = (NASTY / "data" / "content_parts.jsonl").read_text(encoding="utf-8").split("\n")
    pictures = ["image_url" in row for row in rows if row.strip()]
    assert [text == "packed" for text in found] == [not has_picture for has_picture in pictures]
    assert all(text.startswith("missing_media: ") for text in found if text != "packed")


def test_calls_are_packed_where_the_template_writes_them(tmp_path: Path) -> None:
    meta = {"calls": {"file_name": str(NASTY / "data" / "toolcall_roles.json")}}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    processor = str(SHARED / "processors" / "qwen3-vl")
    run_pack(
        PackConfig(meta=str(tmp_path / "meta.json"), processor=processor, out=str(tmp_path / "out"), engine="inline")
    )
    out = tmp_path / "out"
    assert_verified(out)
    assert set(pq.read_table(out / "ledger")["status"].to_pylist()) == {"packed"}


def test_bom_crlf_and_blank_lines_change_nothing(strict: dict[str, Any]) -> None:
    assert [(line["status"], line["tokens"]) for line in strict["bom_crlf_blank.jsonl"]] == [
        ("packed", tokens) for tokens in (414, 38, 349, 67, 116, 139, 61, 369)
    ]


def test_a_broken_line_costs_one_row(strict: dict[str, Any]) -> None:
    lines = strict["one_broken_line.jsonl"]
    found = outcomes(lines)
    assert found[3].startswith("bad_row: line 4: ")
    assert found[:3] + found[4:] == ["packed"] * 6
    # The rows are those of the file above, read from clean lines.
    assert [line["tokens"] for line in lines] == [414, 38, 349, 0, 116, 139, 61]


# The reason of a row, and what its detail names.
BAD_ROWS: list[tuple[str, ...]] = [
    ("bad_row",),  # an empty conversation
    ("bad_row", "'messages'", "null"),
    ("packed",),  # the assistant begins
    ("no_target",),
    ("packed",),  # an empty question
    ("packed",),  # two user turns
    ("packed",),  # a system turn
    ("bad_placeholders", "1 <image>", "0 image"),
    ("bad_placeholders", "2 <image>", "1 image", "placeholders"),
    ("bad_placeholders", "0 <image>", "1 image", "placeholders"),
    ("bad_placeholders", "1 <image>", "2 image", "placeholders"),
    ("missing_media", "'images'", "'../../../../etc/hostname'", "media_prefixes", "--media-prefix"),
    ("bad_placeholders", "1 <image>", "0 image"),
    ("bad_row", "'messages'", "'wrong_key'", '"format"'),
    ("bad_row", "turn 0", "'content'"),
    ("bad_row", "turn 0", "'content'", "number"),
]


def named(texts: list[str], expected: list[tuple[str, ...]]) -> bool:
    """Whether outcomes have these reasons, and details that name all of this."""
    for text, (reason, *names) in zip(texts, expected, strict=True):
        assert text.partition(":")[0] == reason and all(name in text for name in names), text
    return True


def test_bad_rows_one_by_one(strict: dict[str, Any]) -> None:
    assert named(outcomes(strict["bad_rows.jsonl"]), BAD_ROWS)


def test_bad_rows_leniently(lenient: dict[str, Any]) -> None:
    lines = lenient["bad_rows.jsonl"]
    expected = [("packed",) if each[0] == "bad_placeholders" else each for each in BAD_ROWS]
    texts = outcomes(lines)
    assert named(texts[:11] + texts[12:], expected[:11] + expected[12:])
    # Tags without a picture are text; pictures without a tag go to the front (66 and 77 tokens).
    assert [lines[row]["visual_tokens"] for row in (7, 8, 9, 10, 12)] == [0, 66, 66, 143, 0]


def test_a_git_lfs_pointer_stops_the_run_at_once(tmp_path: Path) -> None:
    meta = write_meta(tmp_path, {"bom_crlf_blank.jsonl": {}, "lfs_pointer.json": {}})
    with raises(UserError, "data-format", file=str(NASTY / "data" / "lfs_pointer.json"), kind="git-lfs"):
        packed(meta, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
