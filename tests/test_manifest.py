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
from support.errors import raises

from neatpack import __version__
from neatpack.errors import OutputError
from neatpack.format.manifest import (
    FORMAT,
    PLAIN,
    Counts,
    Identity,
    Manifest,
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
        rows=2, samples=2, packed=1, skipped={"bad_row": 1}, skipped_tokens={}, fitted={},
        packs=1, tokens=60, visual_tokens=4,
        target_tokens=9,
    ),
    shards=Shards([ShardEntry(name="pack-000000.tar", bytes=1024, sha256="a1" * 32, first_pack=0, num_packs=3)]),
    files=dict.fromkeys(("index.parquet", "index.arrow", "sources.json", "image_table.npy"), "b2" * 32),
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
        "format", "neatpack", "fingerprint", "identity", "family", "pixels", "counts", "shards", "files",
        "warnings", "digest",
    ]  # fmt: skip
    assert (found["format"], found["neatpack"]) == (FORMAT, __version__) == (8, __version__)
    assert found["shards"] == [
        {"name": "pack-000000.tar", "bytes": 1024, "sha256": "a1" * 32, "first_pack": 0, "num_packs": 3}
    ]
    assert found["identity"]["code"] == {"neatpack": "0.2.0", "measure": 1, "family": 1}


def test_older_formats_are_named_with_their_maker() -> None:
    older = MANIFEST.to_json() | {"format": 7, "neatpack": "0.11.0"}
    with raises(OutputError, "output-format", out="out", got=7) as caught:
        Manifest.parse(signed(older), "out")
    assert "neatpack 0.11.0" in str(caught.error)


def test_shards_are_kept_in_few_bytes() -> None:
    entries = [ShardEntry(name=f"pack-{n:06d}.tar", bytes=n << 40, sha256=f"{n:064x}", first_pack=7 * n, num_packs=7)
               for n in range(300)]  # fmt: skip
    shards = Shards(entries)
    assert list(shards) == entries and (shards[-1], shards[5:7]) == (entries[-1], entries[5:7])
    assert len(pickle.dumps(shards)) < 300 * 49 and pickle.loads(pickle.dumps(shards)) == shards
    assert shards.num_packs == 2100 and Shards(entries[:-1]) != shards
    with pytest.raises(IndexError):
        shards[300]
    with raises(OutputError, "output-damaged", key="shards[1].name"):
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


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (lambda found: found.update(format=4), {"got": 4}),
        (without("format"), {"got": None}),
        (without("files"), {"key": "", "missing": ["files"]}),
        (without("counts", "packs"), {"key": "counts", "missing": ["packs"]}),
        (without("pixels", "codec"), {"key": "pixels", "missing": ["codec"]}),
        (without("identity", "code"), {"key": "identity", "missing": ["code"]}),
        (lambda found: found["shards"][0].pop("sha256"), {"key": "shards[0]", "missing": ["sha256"]}),
        (lambda found: found.update(pixels=None), {"key": "pixels", "missing": None}),
    ],
)
def test_a_manifest_of_another_kind_is_refused(change: Callable[[dict[str, Any]], Any], fields: dict[str, Any]) -> None:
    found = MANIFEST.to_json()
    change(found)
    code = "output-format" if "got" in fields else "output-damaged"
    with raises(OutputError, code, out="packed", file="manifest.json", **fields):
        Manifest.parse(signed(found), "packed")


def edit(*keys: Any, value: Any) -> Callable[[dict[str, Any]], Any]:
    """A change: the value that the keys lead to."""

    def change(found: Any) -> None:
        for key in keys[:-1]:
            found = found[key]
        found[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (edit("shards", 0, "name", value="../../outside.tar"), "shards[0].name"),
        (edit("shards", 0, "name", value="/outside.tar"), "shards[0].name"),
        (edit("shards", 0, "name", value=7), "shards[0].name"),
        (edit("shards", 0, "bytes", value="1024"), "shards[0].bytes"),
        (edit("shards", 0, "bytes", value=-1), "shards[0]"),
        (edit("shards", 0, "bytes", value=True), "shards[0].bytes"),
        (edit("shards", 0, "num_packs", value=-1), "shards[0]"),
        (edit("shards", value=None), "shards[0]"),
        (edit("files", "../secret.parquet", value="a" * 64), "files"),
        (edit("files", "/etc/passwd", value="a" * 64), "files"),
        (edit("files", "index.parquet", value="b2"), "files"),
        (edit("files", value={}), "files"),
        (edit("pixels", "tables", "image", value="../x.npy"), "pixels.tables.image"),
        (edit("pixels", "tables", value=[]), "pixels.tables"),
        (edit("counts", "packs", value=None), "counts.packs"),
        (edit("counts", "skipped", value={"bad_row": "1"}), "counts.skipped"),
        (edit("identity", "config", "pack_size", value=0), "identity.config.pack_size"),
        (edit("identity", "config", "group_size", value=1 << 61), "identity.config.group_size"),
        (edit("identity", "inputs", value=[]), "identity.inputs"),
        (edit("identity", "inputs", "coco", value={}), "identity.inputs.coco.rows"),
        (edit("shards", 0, "first_pack", value=1), "shards[0]"),
        (edit("shards", 0, "bytes", value=1 << 63), "shards[0]"),
        (edit("family", value="qwen"), "family"),
        (edit("family", "position_axes", value=2), "family"),
    ],
)
def test_a_manifest_that_was_edited_and_signed_again_is_refused(change: Callable[[Any], Any], key: str) -> None:
    """Whoever can write a digest cannot make a reader leave OUT, or ask for what no file has."""
    found = json.loads(signed(MANIFEST.to_json()))
    change(found)
    with raises(OutputError, "output-damaged", out="packed", file="manifest.json", key=key):
        Manifest.parse(signed(found), "packed")


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
        with raises(OutputError, "output-damaged", key="digest"):
            Manifest.parse(longer, "out")


@pytest.mark.parametrize("depth", [101, 500, 5000, 100_000])
def test_deep_nesting_is_an_error(depth: int) -> None:
    deep = json.dumps(MANIFEST.to_json())[:-1] + ', "deep": ' + "[" * depth + "]" * depth + "}"
    with raises(OutputError, "output-damaged", file="manifest.json", key="json"):
        Manifest.parse(deep.encode(), "out")


def test_a_manifest_elsewhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    MANIFEST.write(tmp_path)
    (tmp_path / "out/manifest.json").symlink_to(tmp_path / "manifest.json")
    with raises(OutputError, "output-damaged", path=f"{tmp_path}/out/manifest.json", escapes=True):
        Manifest.read(tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path)
    assert Manifest.read(tmp_path / "link") == MANIFEST, "the output itself may be reached by a link"


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_not_json(content: bytes) -> None:
    with raises(OutputError, "output-damaged", out="packed", file="manifest.json", key="json"):
        Manifest.parse(content, "packed")


def test_not_an_object() -> None:
    with raises(OutputError, "output-format", out="packed", file="manifest.json", got="of a JSON list"):
        Manifest.parse(b"[]", "packed")


def test_no_manifest(tmp_path: Path) -> None:
    """A path that is no output is told as such: packing again would not help."""
    (tmp_path / "file").touch()
    (tmp_path / "packed" / "shards").mkdir(parents=True)
    (tmp_path / "packed" / "manifest.json").touch()
    fields: dict[str, Any]
    for out, fields in (
        (tmp_path, {"file": "manifest.json"}),
        (tmp_path / "absent", {"file": None, "is_file": False}),
        (tmp_path / "file", {"file": None, "is_file": True}),
        (tmp_path / "packed" / "shards", {"file": None, "above": f"{tmp_path}/packed"}),
    ):
        with raises(OutputError, "output-missing", out=str(out), **fields):
            Manifest.read(out)


def test_reading_it_needs_next_to_nothing() -> None:
    heavy = {"torch", "transformers", "ray", "av", "PIL", "pyarrow", "numpy", "yaml"}
    code = f"import sys, neatpack.format.manifest; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MANIFEST.shards = ()  # type: ignore[misc]
