"""Pixels as they are stored, whatever the codec: restored they are what u8 has; what cannot be is refused."""

import dataclasses
import json
import pickle
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers import (
    DEMO_PROCESSOR,
)
from hypothesis import given, settings, strategies as st
from support.errors import raises

from neatpack.errors import OutputError
from neatpack.format import pixels
from neatpack.format.layout import Delivery, MediaArray
from neatpack.format.manifest import PLAIN, Identity, Pixels, spelled
from neatpack.format.pixels import COLUMNS, NUMBERS, PixelDecoder, PixelEncoder, room, rows_per_medium, stored_names
from neatpack.pipeline.codecs import parse_codecs
from neatpack.pipeline.config import PackConfig, UserError
from neatpack.pipeline.families import restore
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import FAMILIES, REFUSED, load_family
from neatpack.pipeline.families.restore import RULES, described_rule, load_renderer, pixels_for, restored_rule

CODECS = ("u8", "zstd", "source")
U8, ZSTD, SOURCE = (NUMBERS[name] for name in CODECS)

# What --pixels says


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("u8", {"image": "u8", "video": "u8"}),
        ("zstd", {"image": "zstd", "video": "zstd"}),
        ("source", {"image": "source", "video": "zstd"}),
        ("image=source,video=u8", {"image": "source", "video": "u8"}),
        (" video = zstd , image = u8 ", {"image": "u8", "video": "zstd"}),
    ],
)
def test_codecs_by_kind(text: str, expected: dict[str, str]) -> None:
    assert parse_codecs(text) == expected
    assert parse_codecs(spelled(expected)) == expected
    assert PackConfig(pixels=text).pixels == spelled(expected), "one spelling: it is part of the identity"


def test_a_kind_that_is_not_named_is_as_by_default() -> None:
    default = {"image": "source", "video": "zstd"}
    assert parse_codecs("image=u8", default) == {"image": "u8", "video": "zstd"}
    assert parse_codecs("", default) == default


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("jpeg", {}),
        ("audio=zstd", {}),
        ("image=", {"kind": "image"}),
        ("video=source", {"kind": "video"}),
        ("image=u8,image=zstd", {"kind": "image"}),
        ("image=u8,", {}),
    ],
)
def test_other_codecs_are_refused(text: str, fields: dict[str, str]) -> None:
    with raises(UserError, "option-invalid", option="pixels", got=text, **fields):
        PackConfig(pixels=text)


# Arrays of any kind


def manifest_of(layout: dict[str, MediaArray], codecs: dict[str, str]) -> Any:
    """As much of a manifest as restoring reads; its layout comes from JSON, as ever."""

    media = {name: json.loads(json.dumps(dataclasses.asdict(array))) for name, array in layout.items()}
    identity = Identity(inputs={}, processor="", config={}, versions={}, code={})
    pixels = Pixels(codec=codecs, resize="torch", tables={})
    return SimpleNamespace(family={"media": media}, pixels=pixels, identity=identity)


def patches(kind: Any, row: tuple[int, ...], counts: str = "", **more: Any) -> MediaArray:
    return MediaArray(kinds=(kind,), dtype="uint8", row=row, counts=counts, deliver=Delivery(table=kind), **more)


LAYOUT = {
    "grid": MediaArray(kinds=("image",), dtype="int64", row=(3,)),
    "pixel_values": patches("image", (4, 3), "grid"),
    "chunks": MediaArray(kinds=("video",), dtype="int64", row=()),
    "video_grid": MediaArray(kinds=("video",), dtype="int64", row=(3,), counts="chunks"),
    "video_pixels": patches("video", (2,), "video_grid"),
    "thumbnails": patches("image", (5,)),
    "heard": MediaArray(kinds=("audio",), dtype="float32", row=(2,)),
}


@st.composite
def packs(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Any media arrays of LAYOUT, random or flat."""
    side = st.integers(0, 4)
    grid = np.array(draw(st.lists(st.tuples(side, side, side), max_size=4)), np.int64).reshape(-1, 3)
    chunks = np.array(draw(st.lists(st.integers(0, 3), max_size=3)), np.int64)
    total = int(chunks.sum())
    video_grid = np.array(draw(st.lists(st.tuples(side, side, side), min_size=total, max_size=total)), np.int64)
    rng, top = np.random.default_rng(draw(st.integers(0, 9))), draw(st.sampled_from([1, 3, 256]))
    video_grid = video_grid.reshape(-1, 3)
    return {
        "input_ids": np.zeros(draw(st.integers(1, 9)), np.int32),
        "grid": grid,
        "pixel_values": rng.integers(0, top, (int(grid.prod(1).sum()), 4, 3)).astype(np.uint8),
        "chunks": chunks,
        "video_grid": video_grid,
        "video_pixels": rng.integers(0, top, (int(video_grid.prod(1).sum()), 2)).astype(np.uint8),
        "thumbnails": rng.integers(0, top, (len(grid), 5)).astype(np.uint8),
        "heard": rng.random((2, 2)).astype(np.float32),
    }


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )


@settings(max_examples=150, deadline=None)
@given(packs(), st.sampled_from(["u8", "zstd"]), st.sampled_from(["u8", "zstd"]))
def test_any_arrays_come_back(arrays: dict[str, np.ndarray], image: str, video: str) -> None:
    codecs = {"image": image, "video": video}
    stored = PixelEncoder(layout=LAYOUT, codecs=codecs).encode(arrays)
    assert list(stored) == ["input_ids", *stored_names(LAYOUT, codecs)], "the members do not depend on the media"
    decoder = PixelDecoder(manifest_of(LAYOUT, codecs), load_renderer)
    assert same(pickle.loads(pickle.dumps(decoder)).restore(stored), arrays)
    again = PixelEncoder(layout=LAYOUT, codecs=codecs).encode(arrays)
    assert same(stored, again), "the same bytes"
    if codecs == PLAIN:
        assert same(stored, arrays)


def test_rows_of_media_are_counted_through_arrays_that_are_counted_themselves() -> None:
    arrays = {
        "chunks": np.array([2, 0, 1]),
        "video_grid": np.array([[1, 2, 2], [1, 1, 3], [2, 2, 2]]),
        "video_pixels": np.zeros((15, 2), np.uint8),
    }
    assert rows_per_medium("video_pixels", arrays, LAYOUT).tolist() == [7, 0, 8]


def test_rows_of_pictures_are_counted_by_their_sizes() -> None:
    sizes = MediaArray(kinds=("image",), dtype="int64", row=(2,))
    tiles = dataclasses.replace(sizes, dtype="uint8", row=(3, 14, 14), counts="sizes", deliver=Delivery(pictures=True))
    arrays = {"sizes": np.array([[28, 42], [14, 14]]), "tiles": np.zeros((7, 3, 14, 14), np.uint8)}
    assert rows_per_medium("tiles", arrays, {"sizes": sizes, "tiles": tiles}).tolist() == [6, 1]


def test_more_than_a_pack_may_restore_to_is_stored_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "BYTES_ALWAYS", 100)
    monkeypatch.setattr(pixels, "BYTES_PER_TOKEN", 1)
    arrays = {"input_ids": np.zeros(3, np.int32), "thumbnails": np.zeros((3, 60), np.uint8)}
    layout = {"thumbnails": patches("image", (60,))}
    stored = PixelEncoder(layout=layout, codecs=parse_codecs("zstd")).encode(arrays)
    assert stored["thumbnails_media"][:, 0].tolist() == [ZSTD, U8, U8], "the first has taken the room"
    assert same(PixelDecoder(manifest_of(layout, parse_codecs("zstd")), load_renderer).restore(stored), arrays)


# What is not so


def edited(column: str, value: int, line: int = 0) -> Any:
    def change(stored: dict[str, np.ndarray]) -> None:
        stored["thumbnails_media"] = stored["thumbnails_media"].copy()
        stored["thumbnails_media"][line, COLUMNS.index(column)] = value

    return change


def other(name: str, array: np.ndarray) -> Any:
    return lambda stored: stored.update({name: array})


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (edited("codec", 2), {"array": "thumbnails_media", "codec": 2}),
        (edited("codec", 3), {"array": "thumbnails_media", "codec": 3}),
        (edited("codec", -1), {"array": "thumbnails_media", "codec": None}),
        (edited("codec", U8), {"array": "thumbnails_media", "codec": U8}),
        (edited("bytes", 1), {"array": "thumbnails_coded", "shape": None}),
        (edited("bytes", 1 << 62), {"array": "thumbnails_media", "codec": None}),
        (edited("rows", 1 << 39), {"array": "thumbnails_media", "expected": room(3)}),
        (edited("rows", 2), {"array": "thumbnails", "medium": 0, "crc32": None}),
        (edited("rows", 0), {"array": "thumbnails", "medium": 0}),
        (edited("crc32", 7), {"array": "thumbnails", "medium": 0, "crc32": 7}),
        (other("thumbnails_media", np.zeros((2, 3), np.int64)), {"array": "thumbnails_media", "shape": (2, 3)}),
        (other("thumbnails_media", np.zeros((0, 11), np.int64)), {"array": "thumbnails_coded", "expected": 0}),
        (other("thumbnails_media", np.zeros((2, 11), np.int32)), {"media": "int32"}),
        (other("thumbnails_coded", np.zeros((2, 2), np.uint8)), {"shape": (2, 2)}),
        (other("thumbnails_coded", np.zeros(9, np.int32)), {"coded": "int32"}),
    ],
)
def test_tables_that_cannot_be_are_refused(change: Any, fields: dict[str, Any]) -> None:
    layout, codecs = {"thumbnails": patches("image", (600,))}, parse_codecs("zstd")
    arrays = {"input_ids": np.zeros(3, np.int32), "thumbnails": np.zeros((2, 600), np.uint8)}
    stored = PixelEncoder(layout=layout, codecs=codecs).encode(arrays)
    change(stored)
    with raises(OutputError, "output-damaged", **fields):
        PixelDecoder(manifest_of(layout, codecs), load_renderer).restore(stored)


def test_a_frame_that_claims_to_be_larger_gets_no_memory() -> None:
    """A bomb: few bytes that become many. The table bounds what is reserved, and so what a frame may become."""
    layout, codecs = {"thumbnails": patches("image", (600,))}, parse_codecs("zstd")
    bomb = pa.Codec("zstd").compress(bytes(50 << 20), asbytes=True)
    line = [ZSTD, len(bomb), 1, 0, *[0] * 7]
    stored: dict[str, np.ndarray] = {
        "input_ids": np.zeros(3, np.int32),
        "thumbnails_coded": np.frombuffer(bomb, np.uint8),
        "thumbnails_media": np.array([line], np.int64),
    }
    decoder = PixelDecoder(manifest_of(layout, codecs), load_renderer)
    with raises(OutputError, "output-damaged", array="thumbnails", medium=0):
        decoder.restore(stored)
    stored["thumbnails_media"][0, 2] = room(3) // 600 + 1
    with raises(OutputError, "output-damaged", array="thumbnails_media", expected=room(3)):
        decoder.restore(stored)


def test_arrays_of_one_name_are_refused() -> None:
    layout = {"x": patches("image", (5,)), "x_media": patches("video", (5,))}
    with raises(OutputError, "output-damaged", key="family.media"):
        PixelDecoder(manifest_of(layout, {"image": "zstd", "video": "u8"}), load_renderer)


# Rules of families


def family_in(folder: Path, name: str) -> Any:
    processor = import_module(f"processors.{name}").make(folder / "processor")
    return load_family(ProcessorKey(processor=str(processor), family=name if name == "default" else ""))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in REFUSED])
def test_every_family_but_default_renders_at_load(name: str, tmp_path: Path) -> None:
    family = family_in(tmp_path, name)
    described = json.loads(json.dumps(described_rule(family.image)))
    if name == "default":
        assert described is None
        assert pixels_for("", family) == pixels_for("zstd", family) == "zstd"
        with raises(UserError, "option-conflict", option="pixels", got="source", kind="image"):
            pixels_for("source", family)
        key = ProcessorKey(processor=family.source, family="default", float_pixels=True)
        for codec in ("source", "zstd"):
            with raises(UserError, "option-conflict", option="pixels", got=codec, other="u8"):
                pixels_for(codec, load_family(key))
        return
    assert restored_rule(described) == family.image
    assert pixels_for("source", family) == "image=source,video=zstd"


def test_a_rule_that_nobody_knows_is_refused_or_left_out(
    demo_family: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(RULES, "PatchImages")
    with raises(UserError, "option-conflict", option="pixels", got="source", kind="image", other="zstd"):
        pixels_for("source", demo_family)
    monkeypatch.setattr(restore, "parse_codecs", lambda text: {"image": "source", "video": "zstd"})
    with caplog.at_level("INFO", "neatpack"):
        assert pixels_for("", demo_family) == "zstd"
    told = [record.args for record in caplog.records if record.name.endswith(".families.restore")]
    assert [args[:3] for args in told if isinstance(args, tuple)] == [("image", "zstd", "source")]


@pytest.fixture(scope="session")
def demo_family() -> Any:
    return load_family(ProcessorKey(processor=str(DEMO_PROCESSOR)))


@pytest.mark.parametrize(
    "change",
    [
        lambda rule: rule.update(name="os.system"),
        lambda rule: rule.update(name=["PatchImages"]),
        lambda rule: rule.update(fields=None),
        lambda rule: rule["fields"].pop("patch_size"),
        lambda rule: rule["fields"].update(more=1),
        lambda rule: rule["fields"].update(patch_size="14"),
        lambda rule: rule["fields"].update(patch_size=True),
        lambda rule: rule["fields"].update(patch_size=-14),
        lambda rule: rule["fields"].update(patch_size=1 << 40),
        lambda rule: rule["fields"].update(patch_size=14.0),
        lambda rule: rule["fields"].update(image_mean=["a"]),
        lambda rule: rule["fields"].update(image_mean=[]),
        lambda rule: rule["fields"].update(rescale_factor=1e300),
        lambda rule: rule["fields"].update(asked={"max_pixels": 1}),
    ],
)
def test_rules_that_no_family_has_are_refused(demo_family: Any, change: Any) -> None:
    described = json.loads(json.dumps(described_rule(demo_family.image)))
    change(described)
    with raises(OutputError, "output-damaged", key="pixels.rule"):
        restored_rule(described)
