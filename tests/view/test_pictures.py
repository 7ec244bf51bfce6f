"""Pictures from a pack are what was packed, pixel by pixel: for every family that has pixels to show."""

from importlib import import_module
from itertools import groupby

import numpy as np
import pytest
from helpers import SHARED, clip, picture, tone
from PIL import Image

from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import FAMILIES, REFUSED, family_for, load_family
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.media.pixels import padded, resize_pil, resize_torch
from neatpack.pipeline.media.video import wanted_frames
from neatpack.pipeline.records import Example, MediaRef, Turn
from neatpack.pipeline.render.sample import render_sample
from neatpack.pipeline.view.pictures import IMAGES, VIDEOS, seen_media, types_of_kinds

REAL = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3-omni", "gemma4", "kimi-k2.5", "kimi-vl", "llava-onevision",
        "internvl3", "phi4-mm", "glm4.5v", "mistral3")  # fmt: skip
MADE = tuple(name for name in FAMILIES if name not in REFUSED)
WHITE = (255, 255, 255)


@pytest.fixture(scope="module", params=[*MADE, *REAL])
def family(request, tmp_path_factory):
    if request.param in MADE:
        folder = import_module(f"processors.{request.param}").make(tmp_path_factory.mktemp("made") / "processor")
        return load_family(ProcessorKey(processor=str(folder), family="default" if request.param == "default" else ""))
    folder = SHARED / "processors" / request.param
    if not folder.is_dir():
        pytest.skip(f"../shared/processors/{request.param} is not here")
    return family_for(str(folder))


def rendered(family, *refs):
    """(measured media, sample) of a question about media."""
    turns = (Turn(role="user", parts=(*refs, "What?")), Turn(role="assistant", parts=("That.",)))
    (measured,) = measure([Example(turns=turns)], family)
    return measured.media, render_sample(measured, family, "torch")


def seen(family, media, sample, *, with_tiles=True):
    kinds = [medium.ref.kind for medium in media]
    counts = {kind: kinds.count(kind) for kind in ("image", "video", "audio")}
    tiles = [medium.grid[1:] for medium in media if medium.ref.kind == "image"] if with_tiles else ()
    return seen_media(family.name, sample.media, family.media, family.facts, counts, tiles)


def gradient(path, height, width):
    """No two places alike, and noise: a patch that is turned, swapped or shifted by a pixel differs."""
    picture(path, height, width, seed=height)
    return MediaRef(kind="image", path=str(path)), np.asarray(Image.open(path))


def is_untold(family, found) -> bool:
    """Of a family that stores floats, or that nobody has written the way back for: said, and not drawn."""
    if family.name in IMAGES:
        return False
    said = {"default": "stored as the processor itself gives it, which is not drawn"}
    untold = f"how {family.name} cuts images is not known here, so none is drawn"
    assert all(one.note == said.get(family.name, untold) and not one.pictures for one in found)
    return True


def expected_images(family, pixels, medium):
    """By the families' own resizing, and nothing of their cutting."""
    side = getattr(family.image, "side", 0)
    _, rows, columns = medium.grid
    if family.name == "kimi_vl":
        return [
            padded(resize_pil(pixels, medium.size), (rows * family.image.patch_size, columns * family.image.patch_size))
        ]
    resized = resize_torch(pixels, medium.size, "bilinear" if family.name in ("phi4_mm", "gemma3") else "bicubic")
    if family.name == "kimi_k25":
        return [padded(resized, (rows * family.image.patch_size, columns * family.image.patch_size))]
    if family.name == "phi4_mm":
        return [padded(resized, (rows * side, columns * side), WHITE)]
    if family.name == "llava_onevision":
        whole = resize_torch(pixels, (side, side))
        return [padded(resized, (rows * side, columns * side), centred=True), whole]
    if family.name in ("idefics3", "smolvlm"):
        first = resize_torch(pixels, family.image.first_size(*pixels.shape[:2]), "lanczos")
        resized = resize_torch(first, medium.size, "lanczos")
        return [resized, resize_torch(resized, (side, side), "lanczos")] if rows * columns > 1 else [resized]
    if family.name == "internvl" and rows * columns > 1:
        return [resized, resize_torch(pixels, (side, side))]
    return [resized]


@pytest.mark.parametrize(("height", "width"), [(70, 130), (333, 97), (500, 720)])
def test_a_picture_is_what_the_model_sees(family, tmp_path, height, width):
    ref, pixels = gradient(tmp_path / "a.png", height, width)
    media, sample = rendered(family, ref)
    ((found,),) = [found for found in seen(family, media, sample).values() if found]
    if is_untold(family, [found]):
        return
    drawn = [picture.pixels for picture in found.pictures]
    wanted = expected_images(family, pixels, media[0])
    assert [picture.shape for picture in drawn] == [picture.shape for picture in wanted]
    assert all(np.array_equal(*pair) for pair in zip(drawn, wanted, strict=True))
    assert found.note == ("its global view is stored as floats and not drawn" if family.name == "phi4_mm" else "")


def test_several_pictures_are_told_apart(family, tmp_path):
    refs = [gradient(tmp_path / f"{size[0]}.png", *size) for size in ((60, 90), (150, 80), (200, 210))]
    media, sample = rendered(family, *(ref for ref, _ in refs))
    found = seen(family, media, sample)["image"]
    assert len(found) == 3
    if is_untold(family, found):
        return
    for one, (_, pixels), medium in zip(found, refs, media, strict=True):
        if family.name == "llava_onevision":  # one tile each, in a square of the mean colour
            colour = [int(mean * 255) for mean in family.image.image_mean]
            square = padded(pixels, (max(pixels.shape),) * 2, colour, centred=True)
            wanted = [resize_torch(square, medium.size)]
        else:
            wanted = expected_images(family, pixels, medium)
        assert all(np.array_equal(p.pixels, w) for p, w in zip(one.pictures, wanted, strict=True))


def test_a_video_is_its_frames(family, tmp_path):
    if "video" not in family.takes or family.name not in VIDEOS:
        return
    media, sample = rendered(family, clip(tmp_path / "a.mp4", frames=9))
    (found,) = seen(family, media, sample)["video"]
    frames = [resize_torch(frame, media[0].size) for frame in wanted_frames(media[0])]
    if family.name == "smolvlm":
        frames = [expected_images(family, frame, media[0])[0] for frame in wanted_frames(media[0])]
    if family.name == "kimi_k25":
        patch = family.video.patch_size
        frames = [padded(frame, tuple(side * patch for side in media[0].grid[1:])) for frame in frames]
    drawn = [picture.pixels for picture in found.pictures]
    frames += [frames[-1]] * (len(drawn) - len(frames))  # the last one fills a temporal patch
    assert len(drawn) - len(media[0].frames) in (0, 1)
    assert all(np.array_equal(*pair) for pair in zip(drawn, frames, strict=True))


@pytest.mark.parametrize(("name", "counted", "tiles"), [("internvl", "num_patches", [1, 3, 3]),
                                                        ("smolvlm", "num_tiles", [10, 3, 7])])  # fmt: skip
def test_frames_in_the_array_of_pictures_are_told_from_them(name, counted, tiles, tmp_path):
    """By an array that says which is which, in text order; outputs from before it have pictures alone."""
    family = load_family(ProcessorKey(processor=str(import_module(f"processors.{name}").make(tmp_path / "p"))))
    (first, a), (last, b) = gradient(tmp_path / "a.png", 50, 50), gradient(tmp_path / "b.png", 120, 56)
    film = clip(tmp_path / "a.mp4", frames=3, rate=1)
    media, sample = rendered(family, first, film, last)
    found = seen(family, media, sample)
    for one, pixels, medium in zip(found["image"], (a, b), (media[0], media[2]), strict=True):
        wanted = expected_images(family, pixels, medium)
        assert all(np.array_equal(p.pixels, w) for p, w in zip(one.pictures, wanted, strict=True))
    (one,) = found["video"]
    frames = [expected_images(family, frame, media[1])[0] for frame in wanted_frames(media[1])]
    assert all(np.array_equal(p.pixels, frame) for p, frame in zip(one.pictures, frames, strict=True))
    types = types_of_kinds(sample.mm_token_type_ids, sample.media)
    assert sample.media[counted].tolist() == tiles, "two tiles and the whole; 3 x 3, 3 x 2"
    assert [len(list(run)) for kind, run in groupby(types[types > 0])] == [4 * number for number in tiles]
    assert np.unique(types).tolist() == [0, 1, 2]
    wrong = {**sample.media, counted: np.array([1, 2, 3])}
    assert np.array_equal(types_of_kinds(sample.mm_token_type_ids, wrong), sample.mm_token_type_ids)
    media, sample = rendered(family, first, last)
    old = {name: array for name, array in sample.media.items() if name != "visual_kinds"}
    images = seen_media(name, old, family.media, family.facts, {"image": 2, "video": 0, "audio": 0})["image"]
    assert [len(one.pictures) for one in images] == [1, 1]


def test_a_sound_has_a_length_and_a_shape(family, tmp_path):
    if "audio" not in family.takes:
        return
    ref = MediaRef(kind="audio", path=str(tone(tmp_path / "a.wav", 2.0)))
    media, sample = rendered(family, ref)
    (found,) = seen(family, media, sample)["audio"]
    assert found.seconds == pytest.approx(2.0, abs=0.05)
    assert 0 <= found.loudness.min() < found.loudness.max() <= 1 and len(found.loudness) > 190


def test_tiles_whose_places_are_not_stored_are_not_guessed(tmp_path):
    family = load_family(ProcessorKey(processor=str(import_module("processors.internvl").make(tmp_path / "p"))))
    ref, pixels = gradient(tmp_path / "a.png", 70, 130)
    media, sample = rendered(family, ref)
    (found,) = seen(family, media, sample, with_tiles=False)["image"]
    tiles = media[0].grid[1] * media[0].grid[2]
    assert tiles > 1
    assert found.note == f"how its other {tiles} tiles are arranged is not stored, so they are not drawn"
    (whole,) = found.pictures
    assert np.array_equal(whole.pixels, resize_torch(pixels, (family.image.side,) * 2))


def test_the_families_that_are_drawn():
    drawn = {
        "qwen2_vl",
        "qwen3_vl",
        "qwen2_5_omni",
        "qwen3_omni",
        "gemma4",
        "kimi_vl",
        "kimi_k25",
        "llava_onevision",
        "internvl",
        "phi4_mm",
    }
    assert drawn <= {*IMAGES} <= {*FAMILIES}
    assert drawn - {"kimi_vl", "phi4_mm"} <= {*VIDEOS} <= {*FAMILIES}


def test_numbers_that_do_not_fit_are_told(demo_family, tmp_path):
    ref, _ = gradient(tmp_path / "a.png", 70, 130)
    media, sample = rendered(demo_family, ref)
    counts = {"image": 1, "video": 0, "audio": 0}
    for facts in ({"merge_size": 3}, {"merge_size": 0}, {"merge_size": "2"}, {}):
        ((found,), _, _) = seen_media("qwen2_vl", sample.media, demo_family.media, facts, counts).values()
        assert found.note.startswith("not drawn: its arrays are not as qwen2_vl cuts images (") or not found.pictures
    ((found,), _, _) = seen_media("nobody", sample.media, demo_family.media, demo_family.facts, counts).values()
    assert found.note == "how nobody cuts images is not known here, so none is drawn"
