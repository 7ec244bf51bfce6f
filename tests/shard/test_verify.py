"""Each promise about a pack is checked: break it on purpose, and verify says so."""

import dataclasses

import numpy as np
import pytest
from helpers import TinyData, mixed_rows, packs_of, tiny_config

from neatpack.format.manifest import Manifest
from neatpack.format.members import Pack
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.check import check_pack


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    run_pack(tiny_config(mixed_rows(TinyData(folder / "data")).write(), folder / "out"))
    manifest = Manifest.read(folder / "out")
    packs = list(packs_of(folder / "out"))
    mixed = next(p for p in packs if len(p.documents) > 1 and not p.fake_image)
    return manifest, packs, mixed


def broken(pack: Pack, **changes) -> Pack:
    """The same pack with some arrays changed by functions."""
    arrays = {name: array.copy() for name, array in pack.arrays.items()}
    for name, change in changes.items():
        result = change(arrays[name])
        arrays[name] = arrays[name] if result is None else result
    return Pack(number=pack.number, arrays=arrays, documents=pack.documents, fake_image=pack.fake_image)


def put(where, value):
    def change(array):
        array[where] = value

    return change


def test_good_packs_have_no_problems(output):
    manifest, packs, _ = output
    assert len(packs) > 5
    assert [problem for pack in packs for problem in check_pack(pack, manifest)] == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"labels": put(0, 5)}, "document-labels"),
        ({"labels": lambda a: np.full_like(a, -100)}, "document-labels"),
        ({"labels": lambda a: np.roll(a, 1)}, "document-labels"),
        ({"seq_lens": lambda a: a[::-1].copy()}, "pack-length"),
        ({"seq_lens_padded": lambda a: a + 1}, "pack-arrays"),
        ({"position_ids": lambda a: a + 1}, "document-positions"),
        ({"position_ids": put((0, -1), 10_000)}, "document-positions"),
        ({"position_ids": lambda a: a[::-1].copy()}, "document-positions"),
        ({"position_ids": lambda a: a[:2]}, "pack-arrays"),
        ({"mm_token_type_ids": lambda a: 1 - a}, "document-media"),
        ({"image_grid_thw": put((0, 1), 2)}, "pack-arrays"),
        ({"image_grid_thw": lambda a: a[:-1]}, "pack-arrays"),
        ({"image_grid_thw": lambda a: a[:, :2]}, "pack-arrays"),
        ({"image_grid_thw": lambda a: a[:, [0, 2, 1]], "pixel_values": lambda a: a}, "document-positions"),
        ({"pixel_values": lambda a: a[:-1]}, "pack-arrays"),
    ],
)
def test_a_broken_pack_is_found_out(output, changes, code):
    manifest, _, mixed = output
    problems = check_pack(broken(mixed, **changes), manifest)
    assert code in {problem.code for problem in problems}, problems


def test_an_image_token_in_the_text_is_found_out(output):
    manifest, _, mixed = output
    problems = check_pack(broken(mixed, input_ids=put(2, manifest.family["placeholder_ids"]["image"])), manifest)
    assert "document-media" in {problem.code for problem in problems}, problems


def test_a_pack_above_its_size_is_found_out(output):
    manifest, _, mixed = output
    identity = dataclasses.replace(manifest.identity, config=manifest.identity.config | {"pack_size": 10})
    small = dataclasses.replace(manifest, identity=identity)
    (problem,) = check_pack(mixed, small)
    assert (problem.code, problem.fields) == ("pack-length", {"got": len(mixed.arrays["input_ids"])})
