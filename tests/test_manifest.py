"""The manifest is written, read and checked in one place, which a training machine can import."""

import dataclasses
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

from neatpack import __version__
from neatpack.pipeline.codecs import PLAIN
from neatpack.pipeline.identity import Identity
from neatpack.pipeline.manifest import (
    FORMAT,
    Counts,
    IndexFile,
    Manifest,
    OutputError,
    Pixels,
    ShardEntry,
    Shards,
    signed,
)

IDENTITY = Identity(
    inputs={"coco": {"rows": 2, "content": "d1"}},
    processor="p1",
    config={"pack_size": 64, "align": 1, "group_size": 2},
    versions={"torch": "2"},
    code={"neatpack": "0.2.0", "measure": 1, "family": 1},
)
MANIFEST = Manifest(
    fingerprint=IDENTITY.fingerprint,
    identity=IDENTITY,
    family={"name": "qwen2_vl", "padding_id": 0, "position_axes": 3, "position_dtype": "int32"},
    pixels=Pixels(codec=PLAIN, resize="torch", tables={"image": "image_table.npy"}),
    counts=Counts(
        rows=2, samples=2, packed=1, skipped={"bad_row": 1}, fitted={}, packs=1, tokens=60, visual_tokens=4,
        target_tokens=9,
    ),
    shards=Shards([ShardEntry(name="pack-000000.tar", bytes=1024, sha256="a1" * 32, first_pack=0, num_packs=3)]),
    files=dict.fromkeys(("index.parquet", "index.arrow", "loads.arrow", "image_table.npy"), "b2" * 32),
    index=IndexFile(packs_per_batch=2, offsets=(8, 108, 208), crc32=(7, 9), times=((0, 1.0), (2, 2.5))),
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    MANIFEST.write(tmp_path)
    assert Manifest.read(tmp_path) == MANIFEST
    assert Manifest.parse((tmp_path / "manifest.json").read_bytes(), "s3://bucket/out") == MANIFEST


def test_the_keys_on_disk_are_those_that_other_readers_know(tmp_path: Path) -> None:
    MANIFEST.write(tmp_path)
    written = (tmp_path / "manifest.json").read_bytes()
    assert signed(MANIFEST.to_json()) == written and b'\n  {"name": "pack-000000.tar", "bytes": 1024, ' in written
    found = json.loads(written)
    assert list(found) == [
        "format", "neatpack", "fingerprint", "identity", "family", "pixels", "counts", "shards", "files", "index",
        "warnings", "digest",
    ]  # fmt: skip
    assert (found["format"], found["neatpack"]) == (FORMAT, __version__) == (7, __version__)
    assert found["shards"] == [
        {"name": "pack-000000.tar", "bytes": 1024, "sha256": "a1" * 32, "first_pack": 0, "num_packs": 3}
    ]
    assert found["identity"]["code"] == {"neatpack": "0.2.0", "measure": 1, "family": 1}


def test_a_manifest_of_format_5_has_no_index() -> None:
    older = MANIFEST.to_json() | {"format": 5}
    del older["index"]
    read = Manifest.parse(signed(older), "out")
    assert read == dataclasses.replace(MANIFEST, index=None) and read.to_json()["format"] == 5


def test_shards_are_kept_in_few_bytes() -> None:
    entries = [ShardEntry(name=f"pack-{n:06d}.tar", bytes=n << 40, sha256=f"{n:064x}", first_pack=7 * n, num_packs=7)
               for n in range(300)]  # fmt: skip
    shards = Shards(entries)
    assert list(shards) == entries and (shards[-1], shards[5:7]) == (entries[-1], entries[5:7])
    assert len(pickle.dumps(shards)) < 300 * 49 and pickle.loads(pickle.dumps(shards)) == shards
    assert shards.num_packs == 2100 and Shards(entries[:-1]) != shards
    with pytest.raises(IndexError):
        shards[300]
    with pytest.raises(ValueError, match=r"shards\[1\].name: expected pack-000001.tar, got 'pack-000005.tar'"):
        Shards([entries[0], entries[5]])


def test_keys_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    later = MANIFEST.to_json() | {"colour": "red"}
    assert Manifest.parse(signed(later), "out") == MANIFEST


def without(*keys: str) -> Callable[[dict[str, Any]], Any]:
    """A change: the last key is removed from the object that the others lead to."""

    def change(found: dict[str, Any]) -> None:
        for key in keys[:-1]:
            found = found[key]
        del found[keys[-1]]

    return change


KNOWN = f"this neatpack ({__version__}) reads formats 5 to 7; use the neatpack that made it, or pack again"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found.update(format=4), f"format 4, {KNOWN}"),
        (without("format"), f"format None, {KNOWN}"),
        (without("files"), "lacks files; pack again"),
        (without("counts", "packs"), "counts: lacks packs; pack again"),
        (without("pixels", "codec"), "pixels: lacks codec; pack again"),
        (without("identity", "code"), "identity: lacks code; pack again"),
        (lambda found: found["shards"][0].pop("sha256"), "shards[0]: lacks sha256; pack again"),
        (
            lambda found: found.update(pixels=None),
            "pixels: expected an object of codec, resize, tables, rule, got",
        ),
    ],
)
def test_a_manifest_of_another_kind_is_refused(change: Callable[[dict[str, Any]], Any], words: str) -> None:
    found = MANIFEST.to_json()
    change(found)
    with pytest.raises(OutputError) as caught:
        Manifest.parse(signed(found), "packed")
    assert str(caught.value).startswith(f"packed/manifest.json: {words}")


def edit(*keys: Any, value: Any) -> Callable[[dict[str, Any]], Any]:
    """A change: the value that the keys lead to."""

    def change(found: Any) -> None:
        for key in keys[:-1]:
            found = found[key]
        found[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit("shards", 0, "name", value="../../outside.tar"), "shards[0].name: expected pack-000000.tar, got '../"),
        (edit("shards", 0, "name", value="/outside.tar"), "shards[0].name: expected pack-000000.tar, got '/outside"),
        (edit("shards", 0, "name", value=7), "shards[0].name: expected str, got '7'"),
        (edit("shards", 0, "bytes", value="1024"), "shards[0].bytes: expected int, got '1024'"),
        (edit("shards", 0, "bytes", value=-1), "shards[0]: -1 bytes"),
        (edit("shards", 0, "bytes", value=True), "shards[0].bytes: expected int"),
        (edit("shards", 0, "num_packs", value=-1), "shards[0]: 1024 bytes, -1 packs"),
        (edit("shards", value=None), "shards[0]: expected an object"),
        (edit("files", "../secret.parquet", value="a" * 64), "files: '../secret.parquet' with"),
        (edit("files", "/etc/passwd", value="a" * 64), "files: '/etc/passwd' with"),
        (edit("files", "index.parquet", value="b2"), "files: 'index.parquet' with the sha256 'b2'"),
        (edit("files", value={}), "files: lacks image_table.npy, index.arrow, index.parquet, loads.arrow"),
        (edit("pixels", "tables", "image", value="../x.npy"), "pixels.tables.image: expected image_table.npy, got"),
        (edit("pixels", "tables", value=[]), "pixels.tables: expected dict"),
        (edit("counts", "packs", value=None), "counts.packs: expected int"),
        (edit("counts", "skipped", value={"bad_row": "1"}), "counts.skipped: expected dict"),
        (edit("identity", "config", "pack_size", value=0), "identity.config.pack_size: expected a whole number"),
        (edit("identity", "config", "group_size", value=1 << 61), "identity.config.group_size: expected a whole"),
        (edit("identity", "inputs", value=[]), "identity.inputs: expected dict"),
        (edit("identity", "inputs", "coco", value={}), "identity.inputs.coco.rows: expected"),
        (edit("shards", 0, "first_pack", value=1), "shards[0]: 1024 bytes, 3 packs from 1 on"),
        (edit("shards", 0, "bytes", value=1 << 63), "shards[0]: 9223372036854775808 bytes"),
        (edit("index", value=None), "index: expected an object of packs_per_batch"),
        (edit("index", "packs_per_batch", value=0), "index.packs_per_batch: expected 1 to 65536, got 0"),
        (edit("index", "packs_per_batch", value=1 << 60), "index.packs_per_batch: expected 1 to 65536, got 115"),
        (edit("index", "packs_per_batch", value=1), "index: 3 offsets and 2 crc32, expected 4 and 3 for 3 packs by 1"),
        (edit("index", "offsets", value=[8, 8, 208]), "index.offsets: expected them to rise"),
        (edit("index", "offsets", value=[-8, 108, 208]), "index.offsets: expected them to rise"),
        (edit("index", "offsets", value=[8, 108, "208"]), "index.offsets: expected tuple"),
        (edit("index", "crc32", value=[7, 1 << 32]), "index.crc32: expected numbers of 32 bits"),
        (edit("index", "times", value=[]), "index.times: expected how often packs come"),
        (edit("index", "times", value=[[1, 1.0]]), "index.times: expected packs from 0 to below 3, ascending, got [1]"),
        (edit("index", "times", value=[[0, 1.0], [3, 2.0]]), "index.times: expected packs from 0 to below 3"),
        (edit("index", "times", value=[[0, 1e300]]), "index.times: packs cannot come so often: [1e+300]"),
        (edit("index", "times", value=[[0]]), "index.times: expected tuple"),
        (edit("family", value="qwen"), "family: expected dict"),
        (edit("family", "position_axes", value=2), "family: positions of 2 axes"),
    ],
)
def test_a_manifest_that_was_edited_and_signed_again_is_refused(change: Callable[[Any], Any], words: str) -> None:
    """Whoever can write a digest cannot make a reader leave OUT, or ask for what no file has."""
    found = json.loads(signed(MANIFEST.to_json()))
    change(found)
    with pytest.raises(OutputError) as caught:
        Manifest.parse(signed(found), "packed")
    assert str(caught.value).startswith(f"packed/manifest.json: {words}")


def test_every_flipped_byte_is_found() -> None:
    content = signed(MANIFEST.to_json())
    assert Manifest.parse(content, "out") == MANIFEST
    for place in range(len(content)):
        for bit in (1, 32):  # 32 makes a capital of a letter
            flipped = content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
            with pytest.raises(OutputError):
                Manifest.parse(flipped, "out")
        with pytest.raises(OutputError):
            Manifest.parse(content[:place], "out")
    for longer in (content + b" ", content + b"\n", b" " + content):
        with pytest.raises(OutputError, match="its digest is not that of its content; pack again"):
            Manifest.parse(longer, "out")


@pytest.mark.parametrize("depth", [101, 500, 5000, 100_000])
def test_deep_nesting_is_an_error(depth: int) -> None:
    deep = json.dumps(MANIFEST.to_json())[:-1] + ', "deep": ' + "[" * depth + "]" * depth + "}"
    with pytest.raises(OutputError, match="not JSON: nested deeper than 100 levels; pack again"):
        Manifest.parse(deep.encode(), "out")


def test_a_manifest_elsewhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    MANIFEST.write(tmp_path)
    (tmp_path / "out/manifest.json").symlink_to(tmp_path / "manifest.json")
    with pytest.raises(OutputError, match=r"manifest.json leads out of .*/out, to .*/manifest.json"):
        Manifest.read(tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path)
    assert Manifest.read(tmp_path / "link") == MANIFEST, "the output itself may be reached by a link"


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_not_json(content: bytes) -> None:
    with pytest.raises(OutputError, match="^packed/manifest.json: not JSON: .*; pack again$"):
        Manifest.parse(content, "packed")


def test_not_an_object() -> None:
    with pytest.raises(OutputError, match="^packed/manifest.json: format of a JSON list, this neatpack"):
        Manifest.parse(b"[]", "packed")


def test_no_manifest(tmp_path: Path) -> None:
    """A path that is no output is told as such: packing again would not help."""
    (tmp_path / "file").touch()
    (tmp_path / "packed" / "shards").mkdir(parents=True)
    (tmp_path / "packed" / "manifest.json").touch()
    expected = "expected the OUT of a finished `neatpack pack`"
    for out, words in (
        (tmp_path, f"{tmp_path}/manifest.json: missing, so packing has not finished; run pack again"),
        (tmp_path / "absent", f"{tmp_path}/absent: no such directory; {expected}"),
        (tmp_path / "file", f"{tmp_path}/file: is a file; {expected}"),
        (
            tmp_path / "packed" / "shards",
            f"{tmp_path}/packed/shards: is a part of an output; {expected}, which is {tmp_path}/packed",
        ),
    ):
        with pytest.raises(OutputError) as caught:
            Manifest.read(out)
        assert str(caught.value) == words


def test_reading_it_needs_next_to_nothing() -> None:
    heavy = {"torch", "transformers", "ray", "av", "PIL", "pyarrow", "numpy", "yaml"}
    code = f"import sys, neatpack.pipeline.manifest; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MANIFEST.shards = ()  # type: ignore[misc]
