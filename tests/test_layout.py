"""Rows of media arrays go back to whom they came from, however they are counted."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.errors import raises

from neatpack.errors import OutputError
from neatpack.format.layout import Delivery, MediaArray, delivered, layout_of, rows_per_part, split_media

LAYOUT = {
    "grids": MediaArray(kinds=("image",), dtype="int64", row=(3,)),
    "patches": MediaArray(kinds=("image",), dtype="uint8", row=(), counts="grids"),
    "groups": MediaArray(kinds=("image",), dtype="int64", row=(), groups=True),
    "num_chunks": MediaArray(kinds=("video",), dtype="int64", row=()),
    "chunk_grids": MediaArray(kinds=("video",), dtype="int64", row=(2,), counts="num_chunks"),
    "frames": MediaArray(kinds=("video",), dtype="uint8", row=(), counts="chunk_grids"),
    "lengths": MediaArray(kinds=("audio",), dtype="int64", row=()),
    "features": MediaArray(kinds=("audio",), dtype="float32", row=(), counts="lengths"),
}


@st.composite
def parts(draw):
    """A part's media arrays, and how many media of each kind it has."""
    images = draw(st.lists(st.tuples(*[st.integers(1, 3)] * 3), max_size=4))
    videos = draw(st.lists(st.lists(st.tuples(*[st.integers(1, 3)] * 2), min_size=1, max_size=3), max_size=3))
    sounds = draw(st.lists(st.integers(1, 9), max_size=3))
    chunks = [chunk for video in videos for chunk in video]
    number = draw(st.integers(0, 255))  # whose rows these are
    arrays = {
        "grids": np.array(images, dtype=np.int64).reshape(-1, 3),
        "patches": np.full(sum(t * h * w for t, h, w in images), number, dtype=np.uint8),
        "groups": np.array([len(images)] if images else [], dtype=np.int64),
        "num_chunks": np.array([len(video) for video in videos], dtype=np.int64),
        "chunk_grids": np.array(chunks, dtype=np.int64).reshape(-1, 2),
        "frames": np.full(sum(t * h for t, h in chunks), number, dtype=np.uint8),
        "lengths": np.array(sounds, dtype=np.int64),
        "features": np.full(sum(sounds), number, dtype=np.float32),
    }
    return arrays, {"image": len(images), "video": len(videos), "audio": len(sounds)}


@given(st.lists(parts(), min_size=1, max_size=5))
def test_what_is_joined_comes_apart_again(made):
    joined = {name: np.concatenate([arrays[name] for arrays, _ in made]) for name in LAYOUT}
    counts = {kind: [numbers[kind] for _, numbers in made] for kind in ("image", "video", "audio")}
    for found, (arrays, _) in zip(split_media(joined, LAYOUT, counts), made, strict=True):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert np.array_equal(found[name], array), name


def test_patches_are_counted_by_the_sizes_of_pictures():
    layout = {
        "sizes": MediaArray(kinds=("image",), dtype="int64", row=(2,)),
        "patches": MediaArray(
            kinds=("image",), dtype="uint8", row=(3, 14, 14), counts="sizes", deliver=Delivery(pictures=True)
        ),
    }
    assert (
        layout_of({"media": json.loads(json.dumps({name: asdict(array) for name, array in layout.items()}))}) == layout
    )
    arrays = {"sizes": np.array([[28, 42], [14, 14], [14, 56]])}
    parts = {"image": [1, 0, 2], "video": [0, 0, 0], "audio": [0, 0, 0]}
    assert rows_per_part("patches", arrays, layout, parts) == [6, 0, 5]
    assert delivered(layout)["patches"].counts == "", "a picture each"
    described = {name: asdict(array) for name, array in layout.items()}
    described["patches"]["row"] = [588]
    with raises(OutputError, "output-damaged", key="family.media.patches.deliver.pictures"):
        layout_of({"media": described})


def test_by_hand():
    arrays = {"grids": np.array([[1, 2, 2], [1, 4, 2]]), "groups": np.array([1, 1])}
    parts = {"image": [1, 0, 1], "video": [0, 0, 0], "audio": [0, 0, 0]}
    assert rows_per_part("patches", arrays, LAYOUT, parts) == [4, 0, 8]
    assert rows_per_part("groups", arrays, LAYOUT, parts) == [1, 0, 1]


def test_media_of_two_kinds_in_one_array():
    """InternVL: tiles of images and frames of videos lie in one array, in the order of the text."""
    layout = {
        "num_tiles": MediaArray(kinds=("image", "video"), dtype="int64", row=()),
        "tiles": MediaArray(kinds=("image", "video"), dtype="uint8", row=(), counts="num_tiles"),
    }
    # documents: an image of 3 tiles and a video of 2 frames; nothing; a video of 1 frame
    arrays = {"num_tiles": np.array([3, 2, 1]), "tiles": np.array([1, 1, 1, 2, 2, 3])}
    first, second, third = split_media(arrays, layout, {"image": [1, 0, 0], "video": [1, 0, 1], "audio": [0, 0, 0]})
    assert (first["num_tiles"].tolist(), first["tiles"].tolist()) == ([3, 2], [1, 1, 1, 2, 2])
    assert (second["num_tiles"].tolist(), second["tiles"].tolist()) == ([], [])
    assert (third["num_tiles"].tolist(), third["tiles"].tolist()) == ([1], [3])


def test_what_a_row_is_once_delivered():
    sound = Delivery(mask="mask", mask_dtype="bool")
    layout = LAYOUT | {
        "features": MediaArray(kinds=("audio",), dtype="float32", row=(128,), counts="lengths", deliver=sound),
        "views": MediaArray(kinds=("image",), dtype="float32", row=(3,)),
        "crops": MediaArray(kinds=("image",), dtype="uint8", row=(3,), counts="grids", deliver=Delivery(first="views")),
        "tiles": MediaArray(kinds=("image",), dtype="uint8", row=(3,), deliver=Delivery(batch_axis=True)),
    }
    found = delivered(layout)
    assert "views" not in found, "it lies before the crops of its image"
    assert [found[name].counts for name in ("features", "mask", "crops", "patches")] == ["", "", "", "grids"]
    assert found["mask"] == MediaArray(kinds=("audio",), dtype="bool", row=())
    batch = {"tiles": np.arange(3)[None], "features": np.zeros((1, 128, 9)), "mask": np.ones((1, 9))}
    one, two = split_media(batch, found, {"image": [2, 1], "video": [0, 0], "audio": [0, 1]}, of_batch=True)
    assert (one["tiles"].tolist(), two["tiles"].tolist()) == ([[0, 1]], [[2]])
    stored = split_media({"tiles": np.arange(3)}, layout, {"image": [2, 1], "video": [0, 0], "audio": [0, 0]})
    assert [part["tiles"].tolist() for part in stored] == [[0, 1], [2]], "as stored there is no batch axis"
    assert (len(one["mask"]), len(two["mask"]), len(two["features"])) == (0, 1, 1)


def test_the_layout_goes_through_the_manifest():
    layout = {
        "a": MediaArray(
            kinds=("image", "video"), dtype="uint8", row=(3, 4), counts="b", deliver=Delivery(table="image")
        ),
        "b": MediaArray(kinds=("image", "video"), dtype="int64", row=(3,)),
    }
    described = json.loads(json.dumps({"media": {name: asdict(array) for name, array in layout.items()}}))
    assert described["media"]["a"]["kinds"] == ["image", "video"]
    assert layout_of(described) == layout


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"dtype": "object"}, ".a.dtype"),
        ({"row": [1 << 40, -2]}, ".a.row"),
        ({"row": "abc"}, ".a.row"),
        ({"counts": "absent"}, ".a.deliver"),
        ({"counts": "a"}, ".a.counts"),
        ({"kinds": ["smell"]}, ".a.kinds"),
        ({"deliver": {"repeat": 1 << 31}}, ".a.row"),
        ({"deliver": {"table": "../image"}}, ".a.deliver"),
        ({"deliver": {"colour": "red"}}, ""),
        ({"deliver": None}, ""),
    ],
)
def test_what_no_family_declares_is_refused(change, key):
    array = {"kinds": ["image"], "dtype": "uint8", "row": [3], "counts": "", "groups": False, "deliver": {}}
    assert list(layout_of({"media": {"a": array}})) == ["a"]
    with raises(OutputError, "output-damaged", key=f"family.media{key}"):
        layout_of({"media": {"a": array | change}})
