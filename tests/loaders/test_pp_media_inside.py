"""What test_pp_media.py proves by internals."""

import torch
from places import DEMO_PROCESSOR
from support.errors import raises
from support.pipeline_media import COUNTS, flat, identity, lists

from neatpack import VLM_PP_MEDIA_KEY, prepare_vlm_media_for_pp, wrap_vlm_collate_for_pp
from neatpack.format.layout import MediaArray
from neatpack.loaders.pp_media import _VLM_MEDIA_KEYS, _select_image_grid
from neatpack.pipeline.families.registry import family_for

# --- a batch


def test_the_keys():
    assert VLM_PP_MEDIA_KEY == "_vlm_pp_media_chunks"
    assert _VLM_MEDIA_KEYS == (
        "pixel_values", "patch_pixel_values", "num_patches", "patch_newline_mask", "image_grid_hws", "image_grid_thw",
        "image_sizes", "image_position_ids", "n_images_per_sample", "pixel_values_videos", "video_grid_thw",
        "n_videos_per_sample",
    )  # fmt: skip


def test_grid_preference():
    hws, thw, sizes, positions = (torch.tensor([i]) for i in range(4))
    assert _select_image_grid(hws, thw, sizes, positions) is hws
    assert _select_image_grid(None, thw, sizes, positions) is thw
    assert _select_image_grid(None, None, sizes, positions) is sizes
    assert _select_image_grid(None, None, None, positions) is positions
    assert _select_image_grid(None, None, None, None) is None


def test_a_family_tells_the_axis():
    layout = family_for(str(DEMO_PROCESSOR)).media
    pixels, grid = flat([(1, 2, 2), (1, 1, 1)])
    batch = {"input_ids": torch.zeros(2, 3), "pixel_values": pixels, "image_grid_thw": grid}
    chunks = prepare_vlm_media_for_pp(batch, 2, 2, layout)[VLM_PP_MEDIA_KEY]
    assert lists(chunks["pixel_values"]) == [[0, 0, 0, 0], [1]]
    images = {"input_ids": torch.zeros(2, 3), "pixel_values": torch.zeros(2, 3, 8, 8), "image_grid_thw": grid}
    with raises(ValueError, "batch-mismatch", name="pixel_values", expected=5):
        prepare_vlm_media_for_pp(dict(images), 2, 2, layout)
    with raises(ValueError, "batch-mismatch", name="pixel_values", expected=5):
        wrap_vlm_collate_for_pp(identity, 2, layout)(dict(images))
    assert len(prepare_vlm_media_for_pp(images, 2, 2)[VLM_PP_MEDIA_KEY]["pixel_values"][0]) == 1  # guessed: images


AUDIO_LAYOUT = {
    "features": MediaArray(kinds=("audio",), dtype="float32", row=(), counts="lengths"),
    "lengths": MediaArray(kinds=("audio",), dtype="int64", row=()),
    "batch_num_images": MediaArray(kinds=("image",), dtype="int64", row=(), groups=True),
}


def test_arrays_that_only_the_family_names_are_cut_by_its_layout():
    """Sounds of 2 and 3 frames in samples 0 and 2; documents of 1, 2 and 1 pictures in two microbatches."""
    batch = {
        "input_ids": torch.zeros(4, 3),
        "features": torch.arange(5),
        "lengths": torch.tensor([2, 3]),
        "n_audios_per_sample": torch.tensor([1, 0, 1, 0]),
        "batch_num_images": torch.tensor([1, 2, 1]),
        "n_images_per_sample": torch.tensor([1, 2, 0, 1]),
    }
    result = prepare_vlm_media_for_pp(batch, 4, 2, AUDIO_LAYOUT)
    chunks = result[VLM_PP_MEDIA_KEY]
    assert lists(chunks["features"]) == [[0, 1], [2, 3, 4]]
    assert lists(chunks["lengths"]) == [[2], [3]]
    assert lists(chunks["batch_num_images"]) == [[1, 2], [1]]
    assert result.keys() == {"input_ids", VLM_PP_MEDIA_KEY}


def test_an_array_of_two_kinds():
    """Tiles of images and frames of videos in one array; a batch without videos has no counts of them."""
    both = ("image", "video")
    layout = {
        "num_tiles": MediaArray(kinds=both, dtype="int64", row=()),
        "tiles": MediaArray(kinds=both, dtype="uint8", row=(), counts="num_tiles"),
    }
    batch = {"input_ids": torch.zeros(2, 3), "num_tiles": torch.tensor([2, 1, 3]), "tiles": torch.arange(6)}
    images, videos = torch.tensor([1, 1]), torch.tensor([0, 1])
    counted = {**batch, "n_images_per_sample": images, "n_videos_per_sample": videos}
    assert lists(prepare_vlm_media_for_pp(counted, 2, 2, layout)[VLM_PP_MEDIA_KEY]["tiles"]) == [[0, 1], [2, 3, 4, 5]]
    images_only = {**batch, "n_images_per_sample": torch.tensor([2, 1])}
    assert lists(prepare_vlm_media_for_pp(images_only, 2, 2, layout)[VLM_PP_MEDIA_KEY]["tiles"]) == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    with raises(ValueError, "batch-mismatch", arrays=["num_tiles", "tiles"], missing=COUNTS):
        prepare_vlm_media_for_pp(batch, 2, 2, layout)


def test_rows_without_what_counts_them():
    batch = {"input_ids": torch.zeros(2, 3), "features": torch.arange(5), "n_audios_per_sample": torch.tensor([1, 1])}
    with raises(ValueError, "batch-mismatch", name="features", missing="lengths"):
        prepare_vlm_media_for_pp(batch, 2, 2, AUDIO_LAYOUT)


def test_sounds_that_nobody_owns():
    batch = {"input_ids": torch.zeros(2, 3), "features": torch.arange(6), "lengths": torch.tensor([2, 3, 1])}
    with raises(ValueError, "batch-mismatch", missing="n_audios_per_sample", items=3, batch_size=2):
        prepare_vlm_media_for_pp(batch, 2, 2, AUDIO_LAYOUT)
