"""Before anything is tokenized: pictures in RGB, media counted, lengths, and what a processor tells of sizes."""

import numpy as np
import pytest
from conversations import Page, saw, talk
from helpers import DEMO_PROCESSOR, picture
from PIL import Image
from processors import phi4_mm
from support.errors import raises

from neatpack.loaders.online import (
    PreTokenizedDatasetWrapper,
    _extract_image_config,
    default_collate_fn,
    nemotron_parse_collate_fn,
)
from neatpack.loaders.online.processor import family_of
from neatpack.loaders.online.steps import (
    _count_media_per_sample,
    _drop_overlong_samples,
    _ensure_rgb,
    _estimate_media_tokens,
    _extract_media_from_conversations,
)
from neatpack.pipeline.media.image import decode_image
from neatpack.pipeline.records import MediaRef

PROCESSOR = str(DEMO_PROCESSOR)


def test_media_of_conversations(image):
    conversations = [talk([*saw("image", image), *saw("video", "a.mp4")], "x")["conversation"],
                     talk("Who?", "Me.")["conversation"], talk(saw("image", image), "y")["conversation"]]  # fmt: skip
    assert _extract_media_from_conversations(conversations) == ([image, image], ["a.mp4"])
    assert _extract_media_from_conversations(conversations[1:2]) == (None, None)
    assert _count_media_per_sample(conversations) == ([1, 0, 1], [1, 0, 0])


def test_pictures_become_rgb_in_place():
    clear, done = Image.new("RGBA", (4, 4)), Image.new("RGB", (4, 4))
    conversations = [talk([*saw("image", clear), *saw("image", done)], "x")["conversation"]]
    parts = conversations[0][0]["content"]
    assert _ensure_rgb(conversations) is conversations
    assert parts[0]["image"].mode == "RGB" and parts[2]["image"] is done
    assert _ensure_rgb([[{"role": "user", "content": "text"}]]) == [[{"role": "user", "content": "text"}]]
    examples = [talk(saw("image", clear), "x")]
    default_collate_fn(examples, PROCESSOR)
    assert examples[0]["conversation"][0]["content"][0]["image"].mode == "RGB"


def test_media_tokens_and_lengths(image):
    seen = talk(saw("image", image), "That.")["conversation"]
    sample = PreTokenizedDatasetWrapper([{"conversation": seen}], PROCESSOR)[0]
    media = int((sample["mm_token_type_ids"] > 0).sum())
    assert _estimate_media_tokens(seen, PROCESSOR) == media - 1, "beyond the one placeholder"
    length = len(sample["input_ids"])
    assert _drop_overlong_samples([seen], PROCESSOR, length) == ([seen], [0])
    with raises(ValueError, "overlong", max_length=23, tokens=24):
        _drop_overlong_samples([seen], PROCESSOR, length - 1)
    assert _drop_overlong_samples([seen, seen], PROCESSOR, None) == ([seen, seen], [0, 1])


def test_media_that_cannot_be_opened_count_nothing_and_the_others_count(image):
    absent, known = saw("image", "absent.png"), saw("image", image)
    alone = _estimate_media_tokens(talk(known, "x")["conversation"], PROCESSOR)
    assert alone > 1
    assert _estimate_media_tokens(talk(absent, "x")["conversation"], PROCESSOR) == 0
    both = talk([*absent, *known], "x")["conversation"]
    assert _estimate_media_tokens(both, PROCESSOR) == alone
    sound = talk([{"type": "audio", "audio": "a.wav"}, *known], "x")["conversation"]
    assert _estimate_media_tokens(sound, PROCESSOR) == alone, "Qwen2.5-VL hears nothing"
    # 2 placeholders and one medium that is known: as long as the same with a text in the place of the other.
    tokenizer = family_of(PROCESSOR).chat.tokenizer
    text = tokenizer.apply_chat_template(both, tokenize=False)
    length = len(tokenizer(text)["input_ids"]) + alone
    assert _drop_overlong_samples([both], PROCESSOR, length)[1] == [0]
    with raises(ValueError, "overlong", max_length=27, tokens=28):
        _drop_overlong_samples([both], PROCESSOR, length - 1)


def test_what_cannot_be_trained_on_has_a_length_too(image):
    """A prompt that nobody answers, and a role that nobody knows: the template's tokens and the media's."""
    prompt = talk(saw("image", image))["conversation"]
    critic = [*talk(saw("image", image), "x")["conversation"], {"role": "critic", "content": "No."}]
    tokenizer = family_of(PROCESSOR).chat.tokenizer
    for conversation in (prompt, critic):
        media = _estimate_media_tokens(conversation, PROCESSOR)
        assert media == _estimate_media_tokens(talk(saw("image", image), "x")["conversation"], PROCESSOR) > 1
        length = len(tokenizer(tokenizer.apply_chat_template(conversation, tokenize=False))["input_ids"]) + media
        assert _drop_overlong_samples([conversation], PROCESSOR, length)[1] == [0]
        with raises(ValueError, "overlong"):
            _drop_overlong_samples([conversation], PROCESSOR, length - 1)


class Sized:
    """An image processor as one of transformers is seen: numbers of the class, and of the object over them."""

    patch_size, merge_size = 14, 2
    size = {"shortest_edge": 3136, "longest_edge": 1_003_520}

    def __init__(self, **own):
        vars(self).update(own)


@pytest.mark.parametrize(
    ("own", "bounds"),
    [
        ({}, (3136, 1_003_520)),
        ({"size": {"min_pixels": 784, "max_pixels": 7840}}, (784, 7840)),
        ({"size": {"shortest_edge": 784, "longest_edge": 7840}}, (784, 7840)),
        ({"size": {"max_pixels": 7840}}, (3136, 7840)),
        ({"size": None, "min_pixels": None}, (3136, 1_003_520)),
        ({"min_pixels": 784, "size": {"min_pixels": 1, "max_pixels": 7840}}, (784, 7840)),
    ],
)
def test_sizes_of_a_processor(own, bounds):
    processor = type("Any", (), {"image_processor": Sized(**own)})()
    assert _extract_image_config(processor) == {
        "factor": 28, "patch_size": 14, "merge_size": 2, "min_pixels": bounds[0], "max_pixels": bounds[1],
    }  # fmt: skip
    config = _extract_image_config(family_of(PROCESSOR))
    assert config is not None and config["merge_size"] == 2


def test_pictures_are_decoded_as_packing_decodes_them(tokenizer, tmp_path):
    """A page turned by EXIF, one with alpha and one of 16-bit grey, as `decode_image` has them."""
    seen: list[Image.Image] = []

    class Seeing(Page):
        def __call__(self, images, *arguments, **more):
            seen.extend(images)
            return super().__call__(images, *arguments, **more)

    turned = picture(tmp_path / "turned.jpg", 20, 30, exif=_turned())
    clear = picture(tmp_path / "clear.png", 20, 30, mode="RGBA")
    deep = tmp_path / "deep.png"
    Image.fromarray(np.full((20, 30), 40_000, dtype=np.uint16)).save(deep)
    examples = [talk(saw("image", str(path)), "A.") for path in (turned, clear, deep)]
    nemotron_parse_collate_fn(examples, Seeing(tokenizer), task_prompt="Read: ")
    for image, path in zip(seen, (turned, clear, deep), strict=True):
        expected = decode_image(MediaRef(kind="image", path=str(path)))
        assert np.array_equal(np.asarray(image), expected), path
    assert seen[0].size == (20, 30), "turned: 30 high and 20 wide"
    (conversation,) = _ensure_rgb([talk(saw("image", Image.open(deep)), "x")["conversation"]])
    held = conversation[0]["content"][0]["image"]
    assert held.mode == "RGB" and np.asarray(held)[0, 0].tolist() == [40_000 >> 8] * 3


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def test_sounds_in_a_column_are_not_counted(tmp_path):
    """A sample is longer than its conversation tells: the collate drops it later."""
    heard = talk([{"type": "audio"}, {"type": "text", "text": "Write it down."}], "La.")
    assert _drop_overlong_samples([heard["conversation"]], str(phi4_mm.make(tmp_path / "phi")), 64)[1] == [0]
