"""Media cut by microbatch: what a microbatch gets is what its samples own, and nothing is lost."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from support.errors import raises
from support.pipeline_media import COUNTS, flat, identity, lists
from torch.distributed.pipelining.microbatch import split_args_kwargs_into_chunks

from neatpack import (
    VLM_PP_MEDIA_KEY,
    chunk_step3_media,
    chunk_vlm_media,
    prepare_vlm_media_for_pp,
    stage_vlm_media_for_pp,
    wrap_vlm_collate_for_pp,
)

pytestmark = pytest.mark.net

STAGE_KEYS = ("pixel_values", "image_grid_hws", "num_patches", "patch_pixel_values", "patch_newline_mask",
              "pixel_values_videos", "video_grid_thw")  # fmt: skip
STAGE_ATTRIBUTES = [f"_vlm_{key}_chunks" for key in STAGE_KEYS]


def rows_of(batch_size, n_microbatches):
    """Rows of input_ids in each microbatch, by the schedule's own splitting."""
    args, _ = split_args_kwargs_into_chunks((torch.arange(batch_size),), {}, n_microbatches)
    return [rows.tolist() for (rows,) in args]


# --- the four layouts


def test_one_full_image_per_sample():
    pixels = torch.arange(4.0).reshape(4, 1, 1, 1)
    sizes = torch.tensor([[10, 20], [11, 21], [12, 22], [13, 23]])
    pixel_chunks, size_chunks = chunk_vlm_media(pixels, sizes, 4, 2)
    assert lists(pixel_chunks) == [[0, 1], [2, 3]]
    assert size_chunks[1].tolist() == [[12, 22], [13, 23]]
    assert pixel_chunks[0].shape == (2, 1, 1, 1)


def test_padded_patches_per_image():
    pixels = torch.arange(12.0).reshape(3, 2, 2)
    positions = torch.arange(12).reshape(3, 2, 2)
    pixel_chunks, position_chunks = chunk_vlm_media(pixels, positions, 3, 3)
    assert lists(pixel_chunks) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert lists(position_chunks) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_positions_are_not_a_grid():
    # Their products, 2 and 0, would add up to the two rows; yet a row is an image.
    positions = torch.tensor([[1, 1, 1, 2], [0, 1, 2, 3]])
    pixel_chunks, _ = chunk_vlm_media(torch.arange(2.0).reshape(2, 1, 1), positions, 2, 2)
    assert lists(pixel_chunks) == [[0], [1]]


def test_flat_patches_with_counts():
    pixels, grid = flat([(1, 2, 2), (1, 2, 1), (1, 1, 1)])
    pixel_chunks, grid_chunks = chunk_vlm_media(pixels, grid, 4, 2, torch.tensor([0, 2, 1, 0]))
    assert lists(pixel_chunks) == [[0, 0, 0, 0, 1, 1], [2]]
    assert grid_chunks[0].tolist() == [[1, 2, 2], [1, 2, 1]]
    assert grid_chunks[1].tolist() == [[1, 1, 1]]


def test_flat_patches_one_image_per_sample():
    pixels, grid = flat([(2, 2), (1, 3)])  # (h, w)
    pixel_chunks, grid_chunks = chunk_vlm_media(pixels, grid, 2, 2)
    assert lists(pixel_chunks) == [[0, 0, 0, 0], [1, 1, 1]]
    assert lists(grid_chunks) == [[2, 2], [1, 3]]


def test_flat_patches_may_have_four_dimensions():
    # Kimi-VL: a patch is [3, 14, 14]. Four patches of one image, in a batch of four.
    pixels = torch.arange(4.0).reshape(4, 1, 1, 1)
    pixel_chunks, _ = chunk_vlm_media(pixels, torch.tensor([[2, 2]]), 4, 4, [0, 0, 1, 0])
    assert lists(pixel_chunks) == [[], [], [0, 1, 2, 3], []]


def test_whole_images_with_counts():
    pixels = torch.arange(3.0).reshape(3, 1, 1, 1)
    pixel_chunks, _ = chunk_vlm_media(pixels, torch.tensor([[9, 9]] * 3), 2, 2, [3, 0])
    assert lists(pixel_chunks) == [[0, 1, 2], []]


def test_five_dimensions_are_images():
    pixels = torch.arange(4.0).reshape(2, 2, 1, 1, 1)  # LLaVA-OneVision: [N, crops, C, H, W]
    pixel_chunks, _ = chunk_vlm_media(pixels, torch.tensor([[9, 9], [8, 8]]), 2, 2)
    assert lists(pixel_chunks) == [[0, 1], [2, 3]]


# --- whose images


def test_counts_win_over_a_coincidence():
    # Two images in two samples, and both belong to the second.
    pixels, grid = flat([(1, 1, 2), (1, 1, 3)])
    assert lists(chunk_vlm_media(pixels, grid, 2, 2, [0, 2])[0]) == [[], [0, 0, 1, 1, 1]]
    images = torch.arange(2.0).reshape(2, 1, 1, 1)
    assert lists(chunk_vlm_media(images, torch.tensor([[5, 5]] * 2), 2, 2, [2, 0])[0]) == [[0, 1], []]


def test_one_sample_owns_all():
    pixels, grid = flat([(1, 1, 2), (1, 1, 3), (1, 1, 1)])
    assert lists(chunk_vlm_media(pixels, grid, 1, 1)[0]) == [[0, 0, 1, 1, 1, 2]]


def test_one_microbatch_needs_no_counts():
    pixels, grid = flat([(1, 1, 2), (1, 1, 3), (1, 1, 1)])
    assert lists(chunk_vlm_media(pixels, grid, 2, 1)[0]) == [[0, 0, 1, 1, 1, 2]]


def test_empty_chunks_keep_shape_and_dtype():
    pixels, grid = flat([(1, 2, 2)], width=7)
    pixel_chunks, grid_chunks = chunk_vlm_media(pixels.to(torch.bfloat16), grid, 2, 2, [0, 1])
    assert (pixel_chunks[0].shape, pixel_chunks[0].dtype) == ((0, 7), torch.bfloat16)
    assert (grid_chunks[0].shape, grid_chunks[0].dtype) == ((0, 3), torch.int64)


def test_no_image_at_all():
    pixel_chunks, grid_chunks = chunk_vlm_media(torch.empty(0, 7), torch.empty(0, 3, dtype=torch.int64), 4, 2)
    assert [chunk.shape for chunk in pixel_chunks] == [(0, 7)] * 2
    assert [chunk.shape for chunk in grid_chunks] == [(0, 3)] * 2


@pytest.mark.parametrize(("batch_size", "n_microbatches"), [(5, 4), (5, 2), (7, 3), (4, 4), (3, 1), (9, 4)])
def test_cuts_where_torch_cuts_input_ids(batch_size, n_microbatches):
    pixels, grid = flat([(1, 1, 1)] * batch_size)
    assert lists(chunk_vlm_media(pixels, grid, batch_size, n_microbatches)[0]) == rows_of(batch_size, n_microbatches)


def test_more_microbatches_than_samples():
    # torch makes only three microbatches of these, and refuses to run; ours stay as many as were asked for.
    pixels, grid = flat([(1, 1, 1)] * 3)
    assert rows_of(3, 4) == [[0], [1], [2]]
    assert lists(chunk_vlm_media(pixels, grid, 3, 4)[0]) == [[0], [1], [2], []]


@pytest.mark.parametrize(
    ("grids", "batch_size", "counts", "fields"),
    [
        ([(1, 1, 1)] * 3, 2, [1, 1], {"name": COUNTS, "counts": [1, 1], "got": 2, "expected": 3}),
        ([(1, 1, 1)] * 3, 2, [4, -1], {"name": COUNTS, "counts": [4, -1]}),
        ([(1, 1, 1)] * 3, 2, [1, 1, 1], {"name": COUNTS, "got": 3, "batch_size": 2}),
        ([(1, 1, 1)] * 3, 2, None, {"missing": COUNTS, "items": 3, "batch_size": 2}),
    ],
)
def test_counts_that_cannot_be(grids, batch_size, counts, fields):
    pixels, grid = flat(grids)
    with raises(ValueError, "batch-mismatch", **fields):
        chunk_vlm_media(pixels, grid, batch_size, 2, counts)
    with raises(ValueError, "loader-argument", batch_size=0):
        chunk_vlm_media(pixels, grid, 0, 2)


@pytest.mark.parametrize(
    ("shape", "grid", "fields"),
    [
        ((5, 7), [[1, 2, 2], [1, 1, 2]], {"shape": [5, 7], "patches": 6}),
        ((2, 7), [[1, 2, 2], [1, 1, 2]], {"shape": [2, 7]}),  # as many rows as images, but flat: broken, not "images"
        ((3, 3, 8, 8), [[8, 8], [8, 8]], {"images": 2, "patches": 128}),
        ((5, 7), [[0.5, 2.0], [2.0, 2.0]], {"images": 2, "patches": None}),  # 1 and 4 patches, but in floats
    ],
)
def test_layouts_that_cannot_be_aligned(shape, grid, fields):
    with raises(ValueError, "batch-mismatch", name="pixel_values", **fields):
        chunk_vlm_media(torch.zeros(shape), torch.tensor(grid), 2, 2)


def test_the_axis_can_be_told():
    pixels = torch.arange(2.0).reshape(2, 1)
    grid = torch.tensor([[1, 2, 2], [1, 1, 2]])
    assert lists(chunk_vlm_media(pixels, grid, 2, 2, axis="images")[0]) == [[0], [1]]
    with raises(ValueError, "batch-mismatch", patches=6, images=None):
        chunk_vlm_media(pixels, grid, 2, 2, axis="patches")
    patches, grid = flat([(1, 1, 2), (1, 1, 3)])
    with raises(ValueError, "batch-mismatch", shape=[5, 1], images=2, patches=None):
        chunk_vlm_media(patches, grid, 2, 2, axis="images")
    with raises(ValueError, "loader-argument", argument="axis", got="frames"):
        chunk_vlm_media(pixels, grid, 2, 2, axis="frames")


# --- properties


@st.composite
def batches(draw):
    """Counts per sample, a grid row per image, the number of microbatches."""
    counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=7))
    side = st.integers(1, 3)
    grids = draw(st.lists(st.tuples(side, side, side), min_size=sum(counts), max_size=sum(counts)))
    return counts, grids, draw(st.integers(1, len(counts)))


@settings(max_examples=150)
@given(batches(), st.sampled_from(["patches", "images", "padded"]))
def test_each_microbatch_gets_the_media_of_its_samples(drawn, layout):
    counts, grids, n_microbatches = drawn
    pixels, grid = flat(grids)
    if layout != "patches":
        pixels = torch.arange(len(grids), dtype=torch.float32)
        pixels = pixels.reshape(-1, 1, 1, 1) if layout == "images" else pixels.reshape(-1, 1, 1)
    pixel_chunks, grid_chunks = chunk_vlm_media(pixels, grid, len(counts), n_microbatches, torch.tensor(counts))
    assert torch.equal(torch.cat(pixel_chunks), pixels)
    assert torch.equal(torch.cat(grid_chunks), grid)
    owner = [sample for sample, count in enumerate(counts) for _ in range(count)]
    for rows, pixel_chunk, grid_chunk in zip(
        rows_of(len(counts), n_microbatches), pixel_chunks, grid_chunks, strict=True
    ):
        own = [image for image, sample in enumerate(owner) if sample in rows]
        assert grid_chunk.tolist() == [list(grids[image]) for image in own]
        assert sorted({int(image) for image in pixel_chunk.flatten()}) == own
        if layout == "patches":
            assert len(pixel_chunk) == int(grid_chunk.prod(1).sum())


@settings(max_examples=100)
@given(batches(), batches(), st.integers(1, 5))
def test_a_whole_batch_loses_nothing(images, videos, n_microbatches):
    samples = min(len(images[0]), len(videos[0]))
    counts = {"n_images_per_sample": images[0][:samples], "n_videos_per_sample": videos[0][:samples]}
    pixels, grid = flat(images[1][: sum(counts["n_images_per_sample"])])
    frames, video_grid = flat(videos[1][: sum(counts["n_videos_per_sample"])])
    ids = torch.arange(samples)[:, None]
    batch = {"input_ids": ids, "pixel_values": pixels, "image_grid_thw": grid, "pixel_values_videos": frames,
             "video_grid_thw": video_grid} | {key: torch.tensor(value) for key, value in counts.items()}  # fmt: skip
    out = prepare_vlm_media_for_pp(batch, samples, n_microbatches)
    assert out is batch
    assert set(out) == {"input_ids", VLM_PP_MEDIA_KEY}
    chunks = out[VLM_PP_MEDIA_KEY]
    whole = {"pixel_values": pixels, "image_grid_hws": grid, "image_grid_thw": grid, "pixel_values_videos": frames,
             "video_grid_thw": video_grid}  # fmt: skip
    assert {key for key, value in chunks.items() if value is not None} == set(whole)
    for key, tensor in whole.items():
        assert len(chunks[key]) == n_microbatches
        assert torch.equal(torch.cat(chunks[key]), tensor)


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=6), st.integers(1, 6))
def test_step3_crops_follow_their_images(samples, n_microbatches):
    num_patches = torch.tensor([crops for sample in samples for crops in sample], dtype=torch.int64)
    pixels = torch.arange(len(num_patches), dtype=torch.float32).reshape(-1, 1, 1, 1)
    crops = pixels.flatten().repeat_interleave(num_patches)
    newline = torch.arange(len(crops)) % 2 == 0
    counts = [len(sample) for sample in samples]
    chunks = chunk_step3_media(pixels, len(samples), n_microbatches, num_patches, crops, newline, counts)
    assert torch.equal(torch.cat(chunks["patch_newline_mask"]), newline)
    assert torch.equal(torch.cat(chunks["patch_pixel_values"]), crops)
    assert [len(chunk) for chunk in chunks["patch_newline_mask"]] == [len(c) for c in chunks["patch_pixel_values"]]
    for image, number, crop in zip(
        chunks["pixel_values"], chunks["num_patches"], chunks["patch_pixel_values"], strict=True
    ):
        assert torch.equal(crop, image.flatten().repeat_interleave(number))


# --- Step3


def test_step3_literal():
    pixels = torch.arange(4.0).reshape(4, 1, 1, 1)
    crops = torch.tensor([10.0, 11, 12, 30, 31])
    chunks = chunk_step3_media(pixels, 4, 2, torch.tensor([3, 0, 0, 2]), crops, crops > 11)
    assert {key: lists(value) for key, value in chunks.items()} == {
        "pixel_values": [[0, 1], [2, 3]],
        "num_patches": [[3, 0], [0, 2]],
        "patch_pixel_values": [[10, 11, 12], [30, 31]],
        "patch_newline_mask": [[False, False, True], [True, True]],
    }


def test_step3_without_crops():
    plain = chunk_step3_media(torch.zeros(2, 3, 4, 4), 2, 2)
    assert set(plain) == {"pixel_values", "num_patches"}
    assert [chunk.tolist() for chunk in plain["num_patches"]] == [[0], [0]]
    assert plain["num_patches"][0].dtype == torch.long
    none = chunk_step3_media(torch.zeros(2, 3, 4, 4), 2, 2, torch.tensor([0, 0]), torch.zeros(0, 3, 2, 2))
    assert [chunk.shape for chunk in none["patch_pixel_values"]] == [(0, 3, 2, 2)] * 2


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"patch_pixel_values": torch.zeros(3, 1)}, {"name": "patch_pixel_values", "got": 3, "expected": 0}),
        (
            {"num_patches": torch.tensor([1, 1]), "patch_pixel_values": torch.zeros(3, 1)},
            {"name": "patch_pixel_values", "expected": 2},
        ),
        (
            {"num_patches": torch.tensor([1, 1]), "patch_newline_mask": torch.zeros(3)},
            {"name": "patch_newline_mask", "got": 3},
        ),
        ({"num_patches": torch.tensor([1])}, {"name": "num_patches", "got": 1, "expected": 2}),
        ({"n_images_per_sample": [3, 0]}, {"name": COUNTS, "got": 3, "expected": 2}),
    ],
)
def test_step3_that_does_not_fit(arguments, fields):
    with raises(ValueError, "batch-mismatch", **fields):
        chunk_step3_media(torch.zeros(2, 3, 4, 4), 2, 2, **arguments)


def test_step3_batch():
    batch = {"input_ids": torch.zeros(2, 5), "pixel_values": torch.arange(2.0).reshape(2, 1, 1, 1),
             "num_patches": torch.tensor([2, 1]), "patch_pixel_values": torch.tensor([7.0, 8, 9]),
             "image_sizes": torch.tensor([[5, 6], [7, 8]])}  # fmt: skip
    chunks = prepare_vlm_media_for_pp(batch, 2, 2)[VLM_PP_MEDIA_KEY]
    assert lists(chunks["patch_pixel_values"]) == [[7, 8], [9]]
    assert lists(chunks["num_patches"]) == [[2], [1]]
    assert lists(chunks["image_sizes"]) == lists(chunks["image_grid_hws"]) == [[5, 6], [7, 8]]
    assert chunks["patch_newline_mask"] is None
    # num_patches is per image, so a row of pixel_values is an image, whatever its shape.
    pooled = {"pixel_values": torch.arange(2.0).reshape(2, 1), "num_patches": torch.tensor([0, 0])}
    assert lists(prepare_vlm_media_for_pp(pooled, 2, 2)[VLM_PP_MEDIA_KEY]["pixel_values"]) == [[0], [1]]


def test_num_patches_of_internvl_count_tiles():
    batch = {"input_ids": torch.zeros(2, 5), "pixel_values": torch.arange(5.0).reshape(5, 1, 1, 1),
             "num_patches": torch.tensor([1, 3, 1]), "n_images_per_sample": torch.tensor([1, 2])}  # fmt: skip
    chunks = prepare_vlm_media_for_pp(batch, 2, 2)[VLM_PP_MEDIA_KEY]
    assert lists(chunks["pixel_values"]) == [[0], [1, 2, 3, 4]]
    assert lists(chunks["num_patches"]) == [[1], [3, 1]]
    assert set(batch) == {"input_ids", VLM_PP_MEDIA_KEY}


def test_every_grid_is_kept_under_its_name():
    pixels, grid = flat([(1, 1, 2), (1, 1, 1)])
    sizes = torch.tensor([[28, 56], [28, 28]])
    batch = {"input_ids": torch.zeros(2, 3), "pixel_values": pixels, "image_grid_thw": grid, "image_sizes": sizes}
    chunks = prepare_vlm_media_for_pp(batch, 2, 2)[VLM_PP_MEDIA_KEY]
    assert set(chunks) == {*STAGE_KEYS, "image_grid_thw", "image_sizes"}
    assert lists(chunks["image_grid_hws"]) == lists(chunks["image_grid_thw"]) == [[1, 1, 2], [1, 1, 1]]
    assert lists(chunks["image_sizes"]) == [[28, 56], [28, 28]]
    assert chunks["pixel_values_videos"] is None
    with raises(ValueError, "batch-mismatch", name="image_sizes", got=1, expected=2):
        prepare_vlm_media_for_pp({"pixel_values": pixels, "image_grid_thw": grid, "image_sizes": sizes[:1]}, 2, 2)


def test_images_without_a_grid():
    batch = {"input_ids": torch.zeros(2, 3), "pixel_values": torch.arange(3.0).reshape(3, 1, 1, 1),
             "n_images_per_sample": torch.tensor([1, 2])}  # fmt: skip
    chunks = prepare_vlm_media_for_pp(batch, 2, 2)[VLM_PP_MEDIA_KEY]
    assert lists(chunks["pixel_values"]) == [[0], [1, 2]]
    assert chunks["image_grid_hws"] is None
    with raises(ValueError, "batch-mismatch", name="pixel_values", shape=[8, 7], images=None, patches=None):
        prepare_vlm_media_for_pp({"pixel_values": torch.zeros(8, 7)}, 8, 2)


def test_videos_only():
    frames, grid = flat([(2, 1, 1), (1, 1, 1)])
    batch = {"input_ids": torch.zeros(2, 3), "pixel_values_videos": frames, "video_grid_thw": grid,
             "n_videos_per_sample": torch.tensor([0, 2]), "n_images_per_sample": torch.tensor([0, 0])}  # fmt: skip
    chunks = prepare_vlm_media_for_pp(batch, 2, 2)[VLM_PP_MEDIA_KEY]
    assert lists(chunks["pixel_values_videos"]) == [[], [0, 0, 1]]
    assert chunks["pixel_values"] is None
    assert set(batch) == {"input_ids", VLM_PP_MEDIA_KEY}


def test_token_types_unmask_a_coincidence():
    # Two images in two samples, no counts: one each, says the shape; both in the first, say the tokens.
    pixels, grid = flat([(1, 1, 1), (1, 1, 1)])
    batch = {"input_ids": torch.zeros(2, 3), "pixel_values": pixels, "image_grid_thw": grid}
    with raises(ValueError, "batch-mismatch", samples=[1], kind="image"):
        prepare_vlm_media_for_pp(batch | {"mm_token_type_ids": torch.tensor([[1, 0, 1], [0, 0, 0]])}, 2, 2)
    fine = batch | {"mm_token_type_ids": torch.tensor([[1, 0, 0], [0, 1, 0]])}
    assert lists(prepare_vlm_media_for_pp(fine, 2, 2)[VLM_PP_MEDIA_KEY]["pixel_values"]) == [[0], [1]]
    assert "mm_token_type_ids" in fine
    videos = {"input_ids": torch.zeros(2, 3), "pixel_values_videos": pixels, "video_grid_thw": grid,
              "mm_token_type_ids": torch.tensor([[2, 0, 1], [0, 1, 0]])}  # fmt: skip
    with raises(ValueError, "batch-mismatch", samples=[1], kind="video"):
        prepare_vlm_media_for_pp(videos, 2, 2)


@pytest.mark.parametrize(
    ("orphan", "fields"),
    [
        ({"image_grid_thw": torch.ones(1, 3)}, {"arrays": ["image_grid_thw"], "missing": "pixel_values"}),
        ({"n_images_per_sample": torch.tensor([1, 0])}, {"arrays": [COUNTS], "missing": "pixel_values"}),
        ({"video_grid_thw": torch.ones(1, 3)}, {"arrays": ["video_grid_thw"], "missing": "pixel_values_videos"}),
        ({"pixel_values": [torch.zeros(3, 4, 4)]}, {"name": "pixel_values", "got": "list"}),
    ],
)
def test_half_a_medium(orphan, fields):
    batch = {"input_ids": torch.zeros(2, 3), **orphan}
    with raises(ValueError, "batch-mismatch", **fields):
        prepare_vlm_media_for_pp(batch, 2, 1)
    assert set(batch) == {"input_ids", *orphan}  # a refused batch stays as it was


# --- packs end to end


def thd(rows):
    pixels, grid = flat([(1, 1, 2), (1, 1, 1), (1, 1, 3)])
    ids = torch.arange(12).reshape(rows) if rows else torch.arange(12)
    return {"input_ids": ids, "labels": ids, "qkv_format": "thd", "pixel_values": pixels, "image_grid_thw": grid,
            "cu_seqlens": torch.tensor([0, 6, 12]), "n_images_per_sample": torch.tensor([1, 2])}  # fmt: skip


@pytest.mark.parametrize("rows", [(2, 6), (1, 12), None])
def test_thd_batches(rows):
    for n_microbatches, expected in ((1, [[0, 0, 1, 2, 2, 2]]), (2, [[0, 0], [1, 2, 2, 2]])):
        batch = wrap_vlm_collate_for_pp(thd, n_microbatches)(rows)
        assert lists(batch[VLM_PP_MEDIA_KEY]["pixel_values"]) == expected
        assert set(batch) == {"input_ids", "labels", "qkv_format", "cu_seqlens", VLM_PP_MEDIA_KEY}


def test_wrapper_lets_pass_what_has_no_media():
    wrapped = wrap_vlm_collate_for_pp(identity, 2)
    text = {"input_ids": torch.zeros(2, 3), "labels": torch.zeros(2, 3), "pixel_values": None}
    assert wrapped(text) is text
    assert set(text) == {"input_ids", "labels", "pixel_values"}
    for other in (None, [1, 2], torch.zeros(2), "batch"):
        assert wrapped(other) is other  # type: ignore[comparison-overlap]


def test_wrapper_drops_counts_of_nothing():
    batch = {"input_ids": torch.zeros(2, 3), "n_images_per_sample": torch.tensor([0, 0])}
    assert set(wrap_vlm_collate_for_pp(identity, 2)(batch)) == {"input_ids"}


def test_wrapper_can_be_sent_to_a_worker():
    wrapped = pickle.loads(pickle.dumps(wrap_vlm_collate_for_pp(thd, 2)))
    assert len(wrapped((2, 6))[VLM_PP_MEDIA_KEY]["pixel_values"]) == 2


def test_wrapper_needs_rows_and_microbatches():
    pixels, grid = flat([(1, 1, 1)])
    with raises(ValueError, "batch-mismatch", missing="input_ids"):
        wrap_vlm_collate_for_pp(identity, 2)({"pixel_values": pixels, "image_grid_thw": grid})
    with raises(ValueError, "loader-argument", argument="n_microbatches", got=0):
        wrap_vlm_collate_for_pp(identity, 0)


# --- staging


def pp_of(first=True, **info):
    return SimpleNamespace(info=SimpleNamespace(has_first_stage=first, **info))


def staged_batch():
    pixels, grid = flat([(1, 1, 2), (1, 1, 1)])
    return wrap_vlm_collate_for_pp(identity, 2)(
        {"input_ids": torch.zeros(2, 3), "pixel_values": pixels, "image_grid_thw": grid}
    )


def test_staging():
    batch, parts = staged_batch(), [torch.nn.Identity(), torch.nn.Identity()]
    chunks = batch[VLM_PP_MEDIA_KEY]
    with stage_vlm_media_for_pp(pp_of(), parts, batch):
        assert set(batch) == {"input_ids"}
        assert parts[0]._vlm_pixel_values_chunks is chunks["pixel_values"]
        assert parts[0]._vlm_image_grid_hws_chunks is chunks["image_grid_hws"]
        assert parts[0]._vlm_image_grid_thw_chunks is chunks["image_grid_thw"]
        assert parts[0]._vlm_chunk_idx == 0
        assert all(getattr(parts[0], name) is None for name in STAGE_ATTRIBUTES[2:])
        assert not hasattr(parts[1], "_vlm_chunk_idx")
        parts[0]._vlm_chunk_idx = 2
    assert all(getattr(parts[0], name) is None for name in (*STAGE_ATTRIBUTES, "_vlm_image_grid_thw_chunks"))
    assert parts[0]._vlm_chunk_idx is None


def test_staging_detaches_on_exceptions():
    batch, part = staged_batch(), torch.nn.Identity()
    with pytest.raises(ZeroDivisionError), stage_vlm_media_for_pp(pp_of(), [part], batch):
        assert part._vlm_pixel_values_chunks is not None
        raise ZeroDivisionError
    assert all(getattr(part, name) is None for name in (*STAGE_ATTRIBUTES, "_vlm_chunk_idx"))


def test_other_ranks_only_lose_the_key():
    batch, part = staged_batch(), torch.nn.Identity()
    with stage_vlm_media_for_pp(pp_of(first=False), [part], batch):
        assert set(batch) == {"input_ids"}
        assert not hasattr(part, "_vlm_chunk_idx")


def test_staging_a_text_batch():
    part = torch.nn.Identity()
    with stage_vlm_media_for_pp(pp_of(), [part], {"input_ids": torch.zeros(2, 3)}):
        assert all(getattr(part, name) is None for name in (*STAGE_ATTRIBUTES, "_vlm_chunk_idx"))


def test_a_forward_too_many_is_noticed():
    batch, part = staged_batch(), torch.nn.Identity()
    with (
        raises(RuntimeError, "batch-mismatch", taken=3, chunks=2),
        stage_vlm_media_for_pp(pp_of(), [part], batch),
    ):
        part._vlm_chunk_idx = 3
    assert part._vlm_pixel_values_chunks is None


def test_the_schedule_numbers_the_chunks():
    class Stage:
        def __init__(self, submod):
            self.submod = submod

        def forward_one_chunk(self, fwd_chunk_id, args, kwargs=None):
            self.submod._vlm_chunk_idx += 1
            return self.submod._vlm_chunk_idx - 1, fwd_chunk_id, args

    batch, part = staged_batch(), torch.nn.Identity()
    stage, other = Stage(part), Stage(torch.nn.Identity())
    with stage_vlm_media_for_pp(pp_of(stages=[other, stage]), [part, other.submod], batch):
        part._vlm_chunk_idx += 1  # type: ignore[operator]  # the forward by which torch learns the shapes
        assert stage.forward_one_chunk(0, ("a",)) == (0, 0, ("a",))
        assert stage.forward_one_chunk(1, ("b",), kwargs={}) == (1, 1, ("b",))
    part._vlm_chunk_idx = 5
    assert stage.forward_one_chunk(0, ()) == (5, 0, ())  # numbered no more
