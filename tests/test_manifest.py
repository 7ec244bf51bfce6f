"""The manifest is written, read and checked in one place, which a training machine can import."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

from neatpack import __version__
from neatpack.pipeline.identity import Identity
from neatpack.pipeline.manifest import FORMAT, Counts, Manifest, OutputError, Pixels, ShardEntry

IDENTITY = Identity(
    inputs={"coco": {"rows": 2, "content": "d1"}},
    processor="p1",
    config={"pack_size": 64},
    versions={"torch": "2"},
    code={"neatpack": "0.2.0", "measure": 1, "family": 1},
)
MANIFEST = Manifest(
    fingerprint=IDENTITY.fingerprint,
    identity=IDENTITY,
    family={"name": "qwen2_vl", "padding_id": 0},
    pixels=Pixels(codec="u8", resize="torch", tables={"image": "image_table.npy"}),
    counts=Counts(
        rows=2, samples=2, packed=1, skipped={"bad_row": 1}, fitted={}, packs=1, tokens=60, visual_tokens=4,
        target_tokens=9,
    ),
    shards=(ShardEntry(name="pack-000000.tar", bytes=1024, sha256="a1", first_pack=0, num_packs=1),),
    files={"index.parquet": "b2"},
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    MANIFEST.write(tmp_path)
    assert Manifest.read(tmp_path) == MANIFEST
    assert Manifest.parse((tmp_path / "manifest.json").read_bytes(), "s3://bucket/out") == MANIFEST


def test_the_keys_on_disk_are_those_that_other_readers_know(tmp_path: Path) -> None:
    MANIFEST.write(tmp_path)
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert list(found) == [
        "format", "neatpack", "fingerprint", "identity", "family", "pixels", "counts", "shards", "files",
    ]  # fmt: skip
    assert (found["format"], found["neatpack"]) == (FORMAT, __version__) == (4, __version__)
    assert found["shards"] == [
        {"name": "pack-000000.tar", "bytes": 1024, "sha256": "a1", "first_pack": 0, "num_packs": 1}
    ]
    assert found["identity"]["code"] == {"neatpack": "0.2.0", "measure": 1, "family": 1}


def test_keys_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    later = MANIFEST.to_json() | {"colour": "red"}
    assert Manifest.parse(json.dumps(later).encode(), "out") == MANIFEST


def without(*keys: str) -> Callable[[dict[str, Any]], Any]:
    """A change: the last key is removed from the object that the others lead to."""

    def change(found: dict[str, Any]) -> None:
        for key in keys[:-1]:
            found = found[key]
        del found[keys[-1]]

    return change


KNOWN = f"this neatpack ({__version__}) reads format 4; use the neatpack that made it, or pack again"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found.update(format=2), f"format 2, {KNOWN}"),
        (without("format"), f"format None, {KNOWN}"),
        (without("files"), "lacks files; pack again"),
        (without("counts", "packs"), "counts: lacks packs; pack again"),
        (without("pixels", "codec"), "pixels: lacks codec; pack again"),
        (without("identity", "code"), "identity: lacks code; pack again"),
        (lambda found: found["shards"][0].pop("sha256"), "shards[0]: lacks sha256; pack again"),
        (lambda found: found.update(pixels=None), "pixels: expected an object of codec, resize, tables, got None"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(change: Callable[[dict[str, Any]], Any], words: str) -> None:
    found = MANIFEST.to_json()
    change(found)
    with pytest.raises(OutputError) as caught:
        Manifest.parse(json.dumps(found).encode(), "packed")
    assert str(caught.value).startswith(f"packed/manifest.json: {words}")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_not_json(content: bytes) -> None:
    with pytest.raises(OutputError, match="^packed/manifest.json: not JSON: .*; pack again$"):
        Manifest.parse(content, "packed")


def test_not_an_object() -> None:
    with pytest.raises(OutputError, match="^packed/manifest.json: format of a JSON list, this neatpack"):
        Manifest.parse(b"[]", "packed")


def test_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(OutputError) as caught:
            Manifest.read(out)
        assert str(caught.value) == f"{out}/manifest.json: missing, so packing has not finished; run pack again"


def test_reading_it_needs_next_to_nothing() -> None:
    heavy = {"torch", "transformers", "ray", "av", "PIL", "pyarrow", "numpy", "yaml"}
    code = f"import sys, neatpack.pipeline.manifest; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MANIFEST.shards = ()  # type: ignore[misc]
