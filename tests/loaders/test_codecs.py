"""Outputs by codec: whatever pixels are stored as, loaders give the very items that u8 gives."""

import dataclasses
import io
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import simplejpeg
import torch
from PIL import Image
from places import ROOT
from support.commands import assert_verified, list_problems, main
from support.data import TinyData, clip, mixed_rows, picture
from support.errors import raises
from support.outputs import CODECS, MEDIA_COLUMNS, read_index, read_manifest, read_members, sign
from support.packed import tiny_config
from support.shards import write_index

from neatpack import OutputError, PackedShards, ShardError, neat_packed_vlm_collater, run_pack

pytestmark = pytest.mark.net

NUMBERS = {name: number for number, name in enumerate(CODECS)}
UNUSED = ("__init__", "common", "default", "nemotron_parse")
FAMILIES = [path.stem for path in sorted((ROOT / "tests/processors").glob("*.py")) if path.stem not in UNUSED]


def turned(path: Path, height: int, width: int) -> None:
    """A JPEG that is displayed turned by its EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(path, height, width, seed=7, quality=85, exif=exif)


def rows_of_all_kinds(data: TinyData) -> TinyData:
    """Pictures as JPEG, PNG with alpha, turned, in a palette, two in a row, one twice; a film; text alone."""
    folder = data.folder
    for number in range(4):
        picture(folder / f"{number}.jpg", 320 + 60 * number, 500, seed=number, quality=80)
    turned(folder / "turned.jpg", 300, 420)
    picture(folder / "alpha.png", 90, 130, mode="RGBA")
    picture(folder / "palette.gif", 120, 80, mode="P")
    picture(folder / "noise.png", 1200, 1500, seed=9)  # larger than the pixels that are made of it
    clip(folder / "film.mp4")
    for name in ("0.jpg", "turned.jpg", "alpha.png", "palette.gif", "noise.png", "0.jpg"):
        data.row([("user", "<image>What?"), ("assistant", f"It is {name}.")], images=[name])
    data.row([("user", "<image>And<image>which?"), ("assistant", "Both.")], images=["1.jpg", "2.jpg"])
    for number in (4, 5):  # of one size, so that only their pixels tell them apart
        picture(folder / f"{number}.jpg", 240, 320, seed=number, quality=80)
    data.row([("user", "<image>Not<image>?"), ("assistant", "Both.")], images=["5.jpg", "4.jpg"])
    data.row([("user", "<video>or<image>?"), ("assistant", "A film.")], videos=["film.mp4"], images=["3.jpg"])
    data.row([("user", "<video>Well?"), ("assistant", "A film.")], videos=["film.mp4"])
    return mixed_rows(data, 12, 3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rows_of_all_kinds(TinyData(tmp_path_factory.mktemp("codecs") / "data")).write()


@pytest.fixture(scope="module")
def outputs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One for each codec."""
    folder = tmp_path_factory.mktemp("outputs")
    for codec in CODECS:
        run_pack(tiny_config(data, folder / codec, pixels=codec, pack_size=1024, max_pixels=200_000))
    return {codec: folder / codec for codec in CODECS}


def items(out: Path, **options: Any) -> list[dict[str, Any]]:
    packs = PackedShards(out, rank=0, world_size=1, **options)
    return [packs.pack(number) for number in range(packs.reader.num_packs)]


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == theirs[name].dtype and torch.equal(value, theirs[name]), name


def media_lines(out: Path, array: str = "pixel_values") -> list[dict[str, int]]:
    """What is said of all media, pack by pack."""
    lines = []
    for pack in read_index(out):
        table = np.load(io.BytesIO(read_members(out, pack)[f"{array}_media.npy"])).tolist()
        lines += [dict(zip(MEDIA_COLUMNS, line, strict=True)) for line in table]
    return lines


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("pixels", ["uint8", "bf16"])
def test_items_and_batches_are_those_of_u8(outputs: dict[str, Path], codec: str, pixels: str) -> None:
    ours, theirs = items(outputs["u8"], pixels=pixels), items(outputs[codec], pixels=pixels)
    assert len(ours) == len(theirs) >= 3
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)
    assert_same(neat_packed_vlm_collater(ours[:3]), neat_packed_vlm_collater(theirs[:3]))
    assert_verified(outputs[codec])


def test_what_is_stored(outputs: dict[str, Path]) -> None:
    sizes = {codec: sum(shard.bytes for shard in read_manifest(out).shards) for codec, out in outputs.items()}
    assert sizes["source"] < sizes["zstd"] < sizes["u8"]
    names = {codec: set(read_members(out, read_index(out)[0])) for codec, out in outputs.items()}
    assert "pixel_values.npy" in names["u8"] and "pixel_values.npy" not in names["zstd"] == names["source"]
    assert {line["codec"] for line in media_lines(outputs["zstd"])} <= {NUMBERS["u8"], NUMBERS["zstd"]}
    found = media_lines(outputs["source"])
    kept = [line for line in found if line["codec"] == NUMBERS["source"]]
    # 4 JPEGs of which one twice, a turned one; what PNGs and GIFs are stored as depends on their sizes.
    assert len(kept) >= 6 and (420, 300) not in {(line["width"], line["height"]) for line in kept}
    assert (300, 420) in {(line["width"], line["height"]) for line in kept}, "as displayed"
    assert 1500 not in {line["width"] for line in kept}, "its own bytes are more than its pixels"
    assert NUMBERS["zstd"] in {line["codec"] for line in found}
    assert NUMBERS["zstd"] in {line["codec"] for line in media_lines(outputs["source"], "pixel_values_videos")}


def test_the_own_bytes_of_a_picture_are_in_the_shard(outputs: dict[str, Path], data: Path) -> None:
    content = b"".join(path.read_bytes() for path in sorted(outputs["source"].glob("shards/*.tar")))
    assert content.count((data.parent / "0.jpg").read_bytes()) == 2


def test_manifest_and_json_say_the_codec(outputs: dict[str, Path]) -> None:
    for codec, spelled in (("u8", "u8"), ("zstd", "zstd"), ("source", "image=source,video=zstd")):
        manifest, members = read_manifest(outputs[codec]), read_members(outputs[codec], read_index(outputs[codec])[0])
        assert manifest.identity.config["pixels"] == spelled == json.loads(members["json"])["codec"]
        assert (manifest.pixels.rule is not None) == (codec == "source")
    assert read_manifest(outputs["source"]).pixels.codec == {"image": "source", "video": "zstd"}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_order_of_an_epoch_and_its_batches(outputs: dict[str, Path], num_workers: int) -> None:
    def batches(out: Path) -> Iterator[dict[str, Any]]:
        packs = PackedShards(out, rank=0, world_size=1, seed=3)
        return iter(packs.loader(2, num_workers, collate_fn=neat_packed_vlm_collater))

    pairs = list(zip(batches(outputs["u8"]), batches(outputs["source"]), strict=True))
    assert len(pairs) > 1
    for one, other in pairs:
        assert_same(one, other)


def test_outputs_of_several_codecs_are_mixed(outputs: dict[str, Path]) -> None:
    packs = PackedShards([(codec, out) for codec, out in outputs.items()], rank=0, world_size=1)
    one, other = (packs.pack(1, codec) for codec in ("u8", "source"))
    assert_same({**one, "output": ""}, {**other, "output": ""})


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_families_with_patches_and_tiles(name: str, data: Path, tmp_path: Path) -> None:
    processor = import_module(f"processors.{name}").make(tmp_path / "processor")
    common = {"processor": str(processor), "pack_size": 8192, "max_skipped": 1.0}
    for codec in ("u8", "source"):
        run_pack(tiny_config(data, tmp_path / codec, pixels=codec, **common))
    array = "image_pixel_values" if name == "phi4_mm" else "pixel_values"
    is_kept = NUMBERS["source"] in {line["codec"] for line in media_lines(tmp_path / "source", array)}
    assert is_kept == (name != "gemma3"), "whose pictures are all smaller than their files"
    for one, other in zip(*(items(tmp_path / codec, pixels="uint8") for codec in ("u8", "source")), strict=True):
        assert_same(one, other)
    assert_verified(tmp_path / "source")


def test_pillow_resizes_at_load_as_it_did(data: Path, tmp_path: Path) -> None:
    for codec in ("u8", "source"):
        run_pack(tiny_config(data, tmp_path / codec, pixels=codec, pack_size=1024, resize="pil", max_pixels=200_000))
    for one, other in zip(*(items(tmp_path / codec, pixels="uint8") for codec in ("u8", "source")), strict=True):
        assert_same(one, other)


def test_real_pictures(shared: Path, tmp_path: Path) -> None:
    meta = json.loads((shared / "data/meta.json").read_text())
    config = tiny_config(
        shared / "data/meta.json", tmp_path / "u8", processor=str(shared / "processors/qwen2.5-vl"), pack_size=8192,
        datasets=tuple(meta)[:2], max_packs=6, max_skipped=1.0, pixels="u8",
    )  # fmt: skip
    run_pack(config)
    run_pack(dataclasses.replace(config, out=str(tmp_path / "source"), pixels="source"))
    for one, other in zip(*(items(tmp_path / codec, pixels="uint8") for codec in ("u8", "source")), strict=True):
        assert_same(one, other)


# What a training machine has


def test_nothing_of_an_extra_is_needed(outputs: dict[str, Path]) -> None:
    code = f"""
import sys
for name in ("transformers", "ray", "jinja2", "av", "tiktoken"):
    sys.modules[name] = None
from neatpack import PackedShards
packs = PackedShards({str(outputs["source"])!r}, rank=0, world_size=1, pixels="uint8")
print(sum(int(packs.pack(number)["pixel_values"].sum()) for number in range(packs.reader.num_packs)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == sum(int(item["pixel_values"].sum()) for item in items(outputs["u8"], pixels="uint8"))


def test_another_decoder_is_told(tiny: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gives other bits: nobody trains on pixels that were not packed."""
    out = tmp_path / "out"
    picture(tiny.folder / "a.jpg", 320, 500, quality=80)
    tiny.row([("user", "<image>What?"), ("assistant", "That.")], images=["a.jpg"])
    run_pack(tiny_config(tiny.write(), out, pixels="source", pack_size=1024, max_pixels=200_000))
    assert items(out), "compared with Pillow, once"
    decode = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *arguments, **options: decode(*arguments, **options) // 2 * 2)
    with raises(ShardError, "pixels-changed", pack=0) as caught:
        items(out)
    with raises(ShardError, "pixels-changed"):  # before the first batch
        PackedShards(out, rank=0, world_size=1).loader()
    told = str(caught.error)
    assert f"pillow {read_manifest(out).identity.versions['pillow']}" in told
    assert "--pixels zstd" in told
    assert ("pack-000000.tar", 0, "pixels-changed") in list_problems(out)
    assert items(out, check="none"), "who asks for no checks gets none"


# Damage and forgery


@pytest.fixture
def forged(outputs: dict[str, Path], tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(outputs["source"], tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize("part", ["pixel_values_coded.npy", "pixel_values_media.npy"])
def test_a_flipped_byte_is_found(forged: Path, part: str) -> None:
    line = pq.read_table(forged / "index.parquet").to_pylist()[0]
    place = next(each for each in line["members"] if each["name"] == part)
    path = forged / "shards" / line["shard"]
    content = bytearray(path.read_bytes())
    content[place["offset"] + place["size"] - 3] ^= 1
    path.write_bytes(content)
    with raises(ShardError, "shard-damaged", pack=0, shard="pack-000000.tar"):
        PackedShards(forged, rank=0, world_size=1).pack(0)
    assert ("pack-000000.tar", 0, "pack-changed") in list_problems(forged)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (lambda pixels: pixels.update(rule=None), {"key": "pixels.rule"}),
        (lambda pixels: pixels.update(codec="source"), {"key": "pixels.codec"}),
        (lambda pixels: pixels["codec"].update(image="jpeg"), {"key": "pixels.codec.image"}),
        (lambda pixels: pixels["codec"].update(video="source"), {"key": "pixels.codec.video"}),
        (lambda pixels: pixels["codec"].update(audio="u8"), {"key": "pixels.codec"}),
        (
            lambda pixels: pixels.update(codec={"image": "u8", "video": "u8"}, rule=None),
            {"member": "pixel_values.npy"},
        ),
        (lambda pixels: pixels["rule"].update(name="subprocess.Popen"), {"key": "pixels.rule"}),
        (lambda pixels: pixels["rule"]["fields"].update(patch_size=0), {"key": "pixels.rule"}),
        (
            lambda pixels: pixels["rule"]["fields"].update(patch_size=28),
            {"key": "pixels.rule", "array": "pixel_values"},
        ),
        (lambda pixels: pixels["rule"]["fields"].update(merge_size=0), {"array": "pixel_values", "medium": 0}),
        (lambda pixels: pixels.update(resize="processor"), {"key": "pixels", "resize": "processor"}),
    ],
)
def test_what_a_manifest_cannot_say(forged: Path, change: Any, fields: dict[str, Any]) -> None:
    sign(forged, lambda found: change(found["pixels"]))
    with pytest.raises(OutputError) as error:
        items(forged)
    assert {name: error.value.fields.get(name) for name in fields} == fields, str(error.value)


def test_numbers_that_no_picture_has(forged: Path) -> None:
    """Of a pack whose table is edited, and its checksums with it."""
    name = "pixel_values_media.npy"
    index = read_index(forged)
    place = next(each for each in index[0]["members"] if each["name"] == name)
    shard, table = forged / "shards" / index[0]["shard"], np.load(io.BytesIO(read_members(forged, index[0])[name]))
    content, header = shard.read_bytes(), place["size"] - table.nbytes
    number = table[:, 0].tolist().index(NUMBERS["source"])
    for column, values in {
        "height": (0, 1, 10_001, 1 << 39), "width": (0, 7), "resized_height": (0, 1 << 30), "resized_width": (1, 56),
        "grid_t": (0, 2, 1 << 35), "grid_h": (0, 1 << 39), "grid_w": (1,), "rows": (0, 1, 9),
    }.items():  # fmt: skip
        for value in values:
            edited, changed = table.copy(), bytearray(content)
            edited[number, MEDIA_COLUMNS.index(column)] = value
            changed[place["offset"] + header : place["offset"] + place["size"]] = edited.tobytes()
            shard.write_bytes(changed)
            index[0]["crc32"] = zlib.crc32(changed[index[0]["offset"] : index[0]["offset"] + index[0]["bytes"]])
            write_index(forged, index)
            with pytest.raises(OutputError) as error:
                PackedShards(forged, rank=0, world_size=1).pack(0)
            assert str(error.value.fields.get("array", "")).startswith("pixel_values"), (column, value, error.value)


# Stores


def test_an_object_store(data: Path, outputs: dict[str, Path], s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    out = s3.uri_here("codecs/out")
    run_pack(tiny_config(data, out, pixels="source", pack_size=1024, max_pixels=200_000))
    for one, other in zip(items(outputs["u8"], pixels="uint8"), items(out, pixels="uint8"), strict=True):
        assert_same(one, other)
    assert main(["verify", out]) == 0
