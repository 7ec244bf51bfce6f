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
    ("changes", "complaint"),
    [
        ({"labels": put(0, 5)}, "label 5 at token 0, expected -100"),
        ({"labels": lambda a: np.full_like(a, -100)}, "expected"),
        ({"labels": lambda a: np.roll(a, 1)}, "label"),
        ({"seq_lens": lambda a: a[::-1].copy()}, "differ from the planned"),
        ({"seq_lens_padded": lambda a: a + 1}, "with padding"),
        ({"position_ids": lambda a: a + 1}, "positions differ"),
        ({"position_ids": put((0, -1), 10_000)}, "positions differ"),
        ({"position_ids": lambda a: a[::-1].copy()}, "positions differ"),
        ({"position_ids": lambda a: a[:2]}, "position_ids has shape"),
        ({"mm_token_type_ids": lambda a: 1 - a}, "mm_token_type_ids differ"),
        ({"image_grid_thw": put((0, 1), 2)}, "does not fit the"),
        ({"image_grid_thw": lambda a: a[:-1]}, "does not fit the"),
        ({"image_grid_thw": lambda a: a[:, :2]}, "rows of another shape"),
        ({"image_grid_thw": lambda a: a[:, [0, 2, 1]], "pixel_values": lambda a: a}, "positions differ"),
        ({"pixel_values": lambda a: a[:-1]}, "does not fit the"),
    ],
)
def test_a_broken_pack_is_found_out(output, changes, complaint):
    manifest, _, mixed = output
    problems = check_pack(broken(mixed, **changes), manifest)
    assert any(complaint in problem for problem in problems), problems


def test_an_image_token_in_the_text_is_found_out(output):
    manifest, _, mixed = output
    problems = check_pack(broken(mixed, input_ids=put(2, manifest.family["placeholder_ids"]["image"])), manifest)
    assert any("media tokens" in problem for problem in problems)


def test_a_pack_above_its_size_is_found_out(output):
    manifest, _, mixed = output
    identity = dataclasses.replace(manifest.identity, config=manifest.identity.config | {"pack_size": 10})
    small = dataclasses.replace(manifest, identity=identity)
    assert any("above pack_size 10" in problem for problem in check_pack(mixed, small))
