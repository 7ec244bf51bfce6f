"""Webdataset tars as rows: grouped by key, media where they lie, nothing lost."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from helpers import assert_verified, packs_of, picture, tiny_config
from support.errors import raises

from neatpack.pipeline.config import UserError
from neatpack.pipeline.ingest.kinds import as_lines
from neatpack.pipeline.ingest.tars import tar_rows
from neatpack.pipeline.run import run_pack, run_split
from neatpack.pipeline.shard.verify import read_ledger

Members = list[tuple[str, bytes]]


def tar(path: Path, members: Members, format_: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format_) as out:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def read(path: Path, **columns: str) -> list[dict[str, Any]]:
    """Rows, with the bytes in place of every medium."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict) and "offset" in value:
            assert value.pop("path") == str(path)
            start = value.pop("offset")
            content = path.read_bytes()[start : start + value.pop("length")]
            return {"": content, **value} if value else content
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        return [filled(item) for item in value] if isinstance(value, list) else value

    names: Any = {"image": "images", "video": "videos", "audio": "audios"} | columns
    return [filled(row) for row in tar_rows(path, names)]


def js(**row: Any) -> bytes:
    return json.dumps(row).encode()


def test_samples_literally(tmp_path: Path) -> None:
    members = [
        ("a/1.json", js(messages="m")),
        ("a/1.0.jpg", b"zero"),
        ("a/1.1.PNG", b"one"),
        ("a/1.mp4", b"film"),
        ("b/1.txt", "Grüße".encode()),
        ("b/1.webp", b"picture"),
        ("b/1.flac", b"sound"),
        ("2.cls", b"7\n"),
        ("2.jpg", b"seven"),
        ("README", b"no sample"),
        (".hidden.jpg", b"no sample"),
        ("3.npy", b"not looked at"),
    ]
    assert read(tar(tmp_path / "a.tar", members)) == [
        {"messages": "m", "images": [b"zero", b"one"], "videos": [b"film"], "__key__": "a/1"},
        {"caption": "Grüße", "images": [b"picture"], "audios": [b"sound"], "__key__": "b/1"},
        {"cls": "7", "images": [b"seven"], "__key__": "2"},
        {"__key__": "3"},
    ]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"images": ["1.jpg", "0.jpg"]}, {"images": [b"one", b"zero"]}),
        ({"images": ["k.0.jpg"]}, {"images": [b"zero"]}),
        ({"images": ["old/place/k.1.jpg"]}, {"images": [b"one"]}),
        ({"image": "0.jpg"}, {"image": b"zero", "images": [b"one"]}),
        ({"images": ["elsewhere.jpg"]}, {"images": ["elsewhere.jpg"]}),
        ({"images": None}, {"images": [b"zero", b"one"]}),
        ({"images": []}, {"images": [b"zero", b"one"]}),
        ({"videos": [{"path": "0.jpg", "fps": 2}]}, {"videos": [{"": b"zero", "fps": 2}], "images": [b"one"]}),
        ({"texts": [{"content": "0.jpg"}]}, {"texts": [{"content": "0.jpg"}], "images": [b"zero", b"one"]}),
        (
            {"messages": [{"content": [{"type": "image", "image": "0.jpg"}, {"type": "image", "image": "1.jpg"}]}]},
            {"messages": [{"content": [{"type": "image", "image": b"zero"}, {"type": "image", "image": b"one"}]}]},
        ),
    ],
)
def test_media_that_the_json_names(tmp_path: Path, row: Any, expected: Any) -> None:
    members = [("k.0.jpg", b"zero"), ("k.json", js(**row)), ("k.1.jpg", b"one")]
    assert read(tar(tmp_path / "a.tar", members)) == [{**expected, "__key__": "k"}]


@pytest.mark.parametrize(
    ("extension", "column"), [("jfif", "images"), ("avif", "images"), ("m4v", "videos"), ("aac", "audios")]
)
def test_no_caption_is_left_without_its_medium(tmp_path: Path, extension: str, column: str) -> None:
    """What no decoder reads is for the ledger to say."""
    members = [("1.txt", b"A cat."), (f"1.{extension}", b"bytes")]
    assert read(tar(tmp_path / "a.tar", members)) == [{"caption": "A cat.", column: [b"bytes"], "__key__": "1"}]


def test_columns_of_the_data_set(tmp_path: Path) -> None:
    members = [("k.json", js(pic="k.jpg")), ("k.jpg", b"zero"), ("l.json", js()), ("l.jpg", b"one")]
    assert [row["pic"] for row in read(tar(tmp_path / "a.tar", members), image="pic")] == [b"zero", [b"one"]]


def test_a_key_that_comes_again_is_another_row(tmp_path: Path) -> None:
    """Not side by side, or side by side with a name that is there already."""
    members = [("1.json", js(n=1)), ("2.json", js(n=2)), ("1.json", js(n=3)), ("1.json", js(n=4)), ("1.jpg", b"x")]
    found = read(tar(tmp_path / "a.tar", members))
    assert [(row["n"], row["__key__"], "images" in row) for row in found] == [
        (1, "1", False), (2, "2", False), (3, "1", False), (4, "1", True),
    ]  # fmt: skip


@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names(tmp_path: Path, format_: int) -> None:
    key = "ö" * 30 + "/" + "x" * 150
    found = read(tar(tmp_path / "a.tar", [(f"{key}.json", js()), (f"{key}.jpg", b"x")], format_))
    assert found == [{"images": [b"x"], "__key__": key}]


BAD = {
    "broken JSON": ([("7.json", b"{broken")], ()),
    "very deep": ([("7.json", b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}")], ()),
    "not UTF-8": ([("7.json", b'{"a": "\xff"}')], ("'utf-8'",)),
    "a key twice": ([("7.json", b'{"a": 1, "a": 2}')], ("'a'",)),
    "a list": ([("7.json", b"[]")], ("list",)),
    "two": ([("7.a.json", b"{}"), ("7.b.json", b"{}")], ("a.json", "b.json")),
    "text": ([("7.txt", b"\xff")], ("'utf-8'",)),
}


@pytest.mark.parametrize(("members", "named"), BAD.values(), ids=BAD)
def test_a_bad_sample_is_a_row(tmp_path: Path, members: Members, named: tuple[str, ...]) -> None:
    _, found, _ = tar_rows(tar(tmp_path / "a.tar", [("6.json", js()), *members, ("8.json", js())]))
    assert found.keys() == {"__problem__"}
    assert all(name in found["__problem__"] for name in ("'7'", "a.tar", *named))


def test_links_are_not_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as out:
        link = tarfile.TarInfo("1.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        out.addfile(link)
    (found,) = tar_rows(tmp_path / "a.tar")
    assert found.keys() == {"__problem__"} and "1.jpg" in found["__problem__"]


def test_every_cut_and_change_of_a_header_is_refused(tmp_path: Path) -> None:
    """Python's own reader takes a header that it cannot read, and a cut between two members, for the end."""
    whole = tar(tmp_path / "a.tar", [("1.json", js(a=1)), ("1.jpg", b"x" * 600), ("2.json", js(a=2))]).read_bytes()
    used = 512 * 7  # three headers, four blocks
    broken = [whole[:length] for length in range(0, used + 1, 256)]
    broken += [whole[:start] + b"harm" + whole[start + 4 :] for start in (0, 1024, 512 * 5)]
    broken += [whole + whole, whole + b"junk"]
    for content in broken:
        (tmp_path / "b.tar").write_bytes(content)
        with raises(UserError, "data-unreadable", file=str(tmp_path / "b.tar")):
            as_lines(tmp_path / "b.tar", tmp_path / "imported")
    assert [path for path in (tmp_path / "imported").rglob("*") if path.is_file()] == []
    (tmp_path / "b.tar").write_bytes(whole[: used + 1024])  # both blocks of the end, and no padding
    as_lines(tmp_path / "b.tar", tmp_path / "imported")


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.tar.zst"])
def test_compressed_tars_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"anything")
    with raises(UserError, "data-format", file=str(tmp_path / name), kind=".tar.*"):
        as_lines(tmp_path / name, tmp_path / "imported")


def test_packing_tars(tmp_path: Path) -> None:
    """The pixels are those of the same rows with files; a sample with broken JSON is in the ledger."""
    pictures = [picture(tmp_path / f"{number}.png", 40 + 20 * number, 60, seed=number) for number in range(4)]
    row = {"messages": [{"role": "user", "content": "<image>Who?"}, {"role": "assistant", "content": "Tom."}]}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row | {"images": [p.name]}) + "\n" for p in pictures))
    samples = [[(f"{n}.json", js(**row)), (f"{n}.png", pictures[n].read_bytes())] for n in range(4)]
    tar(tmp_path / "shard-0.tar", [*samples[0], *samples[1]])
    tar(tmp_path / "shard-1.tar", [*samples[2], *samples[3], ("4.json", b"{"), ("4.png", b"")])
    outputs = []
    for name, file_name in (("files", "rows.jsonl"), ("tars", "shard-*.tar")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"d": {"file_name": file_name}}))
        run_pack(tiny_config(tmp_path / f"{name}.json", tmp_path / name))
        outputs.append([pack.arrays["pixel_values"].tolist() for pack in packs_of(tmp_path / name)])
    assert outputs[0] == outputs[1]
    lines = read_ledger(tmp_path / "tars", assert_verified(tmp_path / "tars")).to_pylist()
    assert [line["reason"] for line in lines] == ["", "", "", "", "bad_row"]
    assert "'4'" in lines[4]["detail"] and "shard-1.tar" in lines[4]["detail"]
    assert not list((tmp_path / "tars" / "work" / "imported").rglob("media.bin"))


def test_splitting_tars(tmp_path: Path) -> None:
    """The halves name the media where they lie, and pack as the whole does."""
    row = {"messages": [{"role": "user", "content": "<image>Who?"}, {"role": "assistant", "content": "Tom."}]}
    members: Members = []
    for number in range(12):
        file = picture(tmp_path / f"{number}.png", 40, 60, seed=number)
        members += [(f"{number}.json", js(**row)), (f"{number}.png", file.read_bytes())]
    tar(tmp_path / "a.tar", members)
    (tmp_path / "meta.json").write_text(json.dumps({"d": {"file_name": "a.tar"}}))
    counts = run_split(tiny_config(tmp_path / "meta.json", tmp_path / "halves", holdout=0.5))
    assert counts["train"] + counts["holdout"] == 12 and 0 < counts["holdout"] < 12
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", holdout=0.5))
    for half, out in (("train", tmp_path / "out"), ("holdout", tmp_path / "out-holdout")):
        run_pack(tiny_config(tmp_path / "halves" / half / "meta.json", tmp_path / half))
        assert assert_verified(tmp_path / half).counts.skipped == {}
        pixels = [[pack.arrays["pixel_values"].tolist() for pack in packs_of(each)] for each in (out, tmp_path / half)]
        assert pixels[0] == pixels[1]
    assert not list((tmp_path / "halves" / "media").glob("*"))
