"""Rows of media arrays go back to whom they came from, however they are counted."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from neatpack.pipeline.layout import MediaArray, layout_of, rows_per_part, split_media

LAYOUT = {
    "grids": MediaArray(kind="image", dtype="int64", row=(3,)),
    "patches": MediaArray(kind="image", dtype="uint8", row=(), counts="grids"),
    "groups": MediaArray(kind="image", dtype="int64", row=(), groups=True),
    "num_chunks": MediaArray(kind="video", dtype="int64", row=()),
    "chunk_grids": MediaArray(kind="video", dtype="int64", row=(2,), counts="num_chunks"),
    "frames": MediaArray(kind="video", dtype="uint8", row=(), counts="chunk_grids"),
    "lengths": MediaArray(kind="audio", dtype="int64", row=()),
    "features": MediaArray(kind="audio", dtype="float32", row=(), counts="lengths"),
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


def test_by_hand():
    arrays = {"grids": np.array([[1, 2, 2], [1, 4, 2]]), "groups": np.array([1, 1])}
    parts = {"image": [1, 0, 1], "video": [0, 0, 0], "audio": [0, 0, 0]}
    assert rows_per_part("patches", arrays, LAYOUT, parts) == [4, 0, 8]
    assert rows_per_part("groups", arrays, LAYOUT, parts) == [1, 0, 1]


@pytest.mark.parametrize(("name", "axis"), [("grids", "images"), ("patches", "grids"), ("groups", "groups"),
                                            ("chunk_grids", "num_chunks"), ("lengths", "audios")])  # fmt: skip
def test_what_a_row_is(name, axis):
    assert LAYOUT[name].axis == axis


def test_a_padded_array_has_a_row_for_each_medium():
    padded = MediaArray(kind="audio", dtype="float32", row=(128,), counts="lengths", mask="mask")
    assert padded.axis == "audios"


def test_the_layout_goes_through_the_manifest():
    described = {"media": {"a": {"kind": "image", "dtype": "uint8", "row": [3, 4], "counts": "b"}}}
    assert layout_of(described) == {"a": MediaArray(kind="image", dtype="uint8", row=(3, 4), counts="b")}
