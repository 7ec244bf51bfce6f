"""Exact lengths, what truncation keeps and what shrinking makes of it, on the demo's processor."""

import numpy as np
import pytest
from helpers import picture
from PIL import ExifTags, Image

from neatpack.pipeline.measure.length import expansions, measure, shrunk, truncated
from neatpack.pipeline.records import Example, Measured, MeasuredMedia, MediaRef, Skip, Turn


def talk(*turns: tuple[str | MediaRef, ...]) -> Example:
    """User and assistant in turn."""
    roles = ("user", "assistant")
    return Example(turns=tuple(Turn(role=roles[n % 2], parts=parts) for n, parts in enumerate(turns)))  # type: ignore[arg-type]


@pytest.fixture
def image(tmp_path) -> MediaRef:
    """56 x 112: 4 x 8 patches, 8 tokens."""
    return MediaRef(kind="image", path=str(picture(tmp_path / "a.png", 56, 112)))


def measured(example: Example, family) -> Measured:
    (result,) = measure([example], family)
    assert isinstance(result, Measured)
    return result


def test_a_picture_adds_its_tokens_less_its_placeholder(demo_family, image):
    with_image, without = (measured(talk((*parts, "Who?"), ("Me.",)), demo_family) for parts in ((image,), ()))
    assert with_image.visual_tokens == 8 and without.visual_tokens == 0
    assert with_image.tokens == without.tokens + 8 + 2, "two markers"
    assert len(with_image.ids) == len(without.ids) + 1 + 2, "one placeholder in the ids"
    ((place, ids),) = expansions(with_image.ids, with_image.media, demo_family)
    assert with_image.ids[place] == demo_family.chat.placeholder_ids["image"]
    assert ids.tolist() == [demo_family.chat.placeholder_ids["image"]] * 8
    assert with_image.num_media == {"image": 1, "video": 0, "audio": 0}


def test_media_are_ordered_by_their_placeholders(demo_family):
    """A template may write all images before all videos, whatever the order of the conversation."""
    tokens = demo_family.chat.placeholder_ids
    video, one, two = (MeasuredMedia(ref=MediaRef(kind=kind, path=path), grid=(1, 2, 2))
                       for kind, path in (("video", "v"), ("image", "1"), ("image", "2")))  # fmt: skip
    ids = np.array([5, tokens["image"], 6, tokens["image"], tokens["video"]], dtype=np.int32)
    assert demo_family.in_text_order(ids, [video, one, two]) == [one, two, video]
    assert demo_family.in_text_order(ids[:1], [video, one]) == [video, one], "expanded already"


def test_bytes_of_pictures_are_told_apart(demo_family):
    """A picture of 2 x 2 patches and a video of 4 x 2: 588 bytes a patch, and 24 of a grid (three int64)."""
    picture, video = (MeasuredMedia(ref=MediaRef(kind=kind, path=kind), grid=grid)
                      for kind, grid in (("image", (1, 2, 2)), ("video", (2, 2, 2))))  # fmt: skip
    sizes = {name: demo_family.stored_bytes(media) for name, media in
             (("picture", [picture]), ("video", [video]), ("both", [video, picture]))}  # fmt: skip
    assert sizes["picture"] == (4 * 588 + 24, 4 * 588 + 24) and sizes["video"][1] == 0
    assert sizes["both"] == (sizes["picture"][0] + sizes["video"][0], sizes["picture"][0])


def test_results_keep_their_places_around_a_skip(demo_family, image):
    missing = MediaRef(kind="image", path="/nowhere/a.png")
    sound = MediaRef(kind="audio", path="/nowhere/a.wav")
    seen: list[int] = []
    examples = [talk(("A",), ("B",)), talk((missing, "A"), ("B",)), talk((sound,), ("B",)), talk((image,), ("B",))]
    results = measure(examples, demo_family, seen.append)
    assert [result.reason if isinstance(result, Skip) else "" for result in results] == [
        "", "missing_media", "audio_unsupported", "",
    ]  # fmt: skip
    assert seen == [1, 3], "told before a decoder sees the media of an example; the sound is not even opened"


def test_a_plain_jpeg_is_measured_without_a_decoder(demo_family, tmp_path):
    """The journal has a row on disk before a decoder may crash at it, and not else."""
    turned_by_exif = Image.Exif()
    turned_by_exif[ExifTags.Base.Orientation] = 6
    plain, turned = (
        MediaRef(kind="image", path=str(picture(tmp_path / name, 56, 112, **more)))
        for name, more in (("a.jpg", {}), ("b.jpg", {"exif": turned_by_exif}))
    )
    seen: list[int] = []
    results = measure([talk((each, "A"), ("B",)) for each in (plain, turned)], demo_family, seen.append)
    assert [result.media[0].grid for result in results] == [(1, 4, 8), (1, 8, 4)]
    assert seen == [1], "EXIF is Pillow's"


def test_truncation_ends_outside_a_medium(demo_family, image):
    whole = measured(talk(("Who?",), ("Me.",), (image, "And?"), ("You.",)), demo_family)
    ((place, _),) = expansions(whole.ids, whole.media, demo_family)
    assert np.array_equal(truncated(whole, whole.tokens, demo_family).ids, whole.ids)
    cut = truncated(whole, place + 4, demo_family)  # inside the picture
    assert cut is not None and cut.media == () and cut.visual_tokens == 0
    assert cut.ids.tolist() == whole.ids[: place - 1].tolist(), "its opening marker goes with it"
    assert cut.tokens == place - 2
    assert truncated(whole, 5, demo_family) is None, "no target is left"


def test_shrinking_halves_the_area_step_by_step(demo_family, tmp_path):
    path = str(picture(tmp_path / "b.png", 448, 448))
    whole = measured(talk((MediaRef(kind="image", path=path),), ("B",)), demo_family)
    steps = [shrunk(whole, level, demo_family) for level in (1, 2, 3)]
    tokens = [whole.visual_tokens, *(step.visual_tokens for step in steps if step)]
    assert tokens == sorted(tokens, reverse=True) and len(set(tokens)) == len(tokens)
    assert all(step.tokens - step.visual_tokens == whole.tokens - whole.visual_tokens for step in steps if step)
    assert shrunk(measured(talk(("A",), ("B",)), demo_family), 1, demo_family) is None
