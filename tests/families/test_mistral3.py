"""Mistral 3 and Pixtral: sizes, what is refused, and pictures put together. Tensors are compared in test_parity.py."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import SHARED, asked, picture
from processors import mistral3
from support.errors import assert_skipped, raises

from neatpack.loaders.pixels import Stored, StoredPixels, put_together
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import family_for, load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure, shrunk
from neatpack.pipeline.records import Example, Turn


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return load_family(ProcessorKey(processor=str(mistral3.make(tmp_path_factory.mktemp("mistral") / "processor"))))


def test_sizes(family):
    assert family.image.shape(100, 50) == ((112, 56), (1, 4, 2))
    assert family.image.shape(449, 449) == ((448, 448), (1, 16, 16))
    assert family.image.shape(2, 800) == ((28, 448), (1, 1, 16))
    with pytest.raises(ValueError, match="448"):
        family.image.shape(1, 900)


def test_smaller(family, tmp_path):
    image = {"type": "image", "image": str(picture(tmp_path / "a.png", 448, 224))}
    (whole,) = measure([from_conversation({"conversation": asked(image)})], family)
    areas = [whole.visual_tokens, *(shrunk(whole, level, family).visual_tokens for level in (1, 2, 3, 20))]
    assert areas == [16 * 8, 12 * 6, 8 * 4, 6 * 3, 1]


ROLES = {"system": "Be brief.", "user": "Why?", "assistant": "So."}
TURNS = tuple(Turn(role=role, parts=(text,)) for role, text in ROLES.items())  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_system_prompt_that_the_template_leaves_out_is_not_lost_in_silence():
    """Pixtral's writes it before a last question, and so never before a last answer."""
    if not Path(SHARED, "processors", "mistral3").is_dir():
        pytest.skip("../shared/processors/mistral3 is not here")
    real = family_for(str(SHARED / "processors" / "mistral3"))
    (skip,) = measure([Example(turns=TURNS)], real)
    assert_skipped(skip, "bad_row", "role system", "mistral3")
    (measured,) = measure([Example(turns=TURNS[1:])], real)
    assert real.chat.tokenizer.decode(measured.ids) == "<s>[INST]Why?[/INST]So.</s>"


def test_a_system_prompt_and_one_bos(family):
    (measured,) = measure([Example(turns=TURNS)], family)
    text = family.chat.tokenizer.decode(measured.ids)
    assert text.count("<s>") == 1 and text.startswith("<s>") and "Be brief." in text and text.endswith("So.</s>")


def test_what_is_refused(family):
    with raises(UserError, "option-conflict", option="max_pixels", family="mistral3"):
        load_family(ProcessorKey(processor=family.source, max_pixels=5))
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    asked_for = Turn(role="user", parts=("Why?",)), Turn(role="assistant", parts=("Hm.",), tool_calls=(call,))
    (skip,) = measure([Example(turns=asked_for)], family)
    assert_skipped(skip, "bad_row", "tool_calls")


def test_pictures_are_put_together_and_padded_with_zeros():
    """After the table: the byte 0 stands for another number."""
    patches = torch.arange(8 * 3 * 4, dtype=torch.uint8).view(8, 3, 2, 2)  # 2 x 3 patches of 2 x 2, and 2 x 1
    sizes = torch.tensor([[4, 6], [4, 2]])
    pictures = put_together(patches, sizes)
    assert pictures.shape == (2, 3, 4, 6)
    assert torch.equal(pictures[0, :, 2:, 2:4], patches[4]) and torch.equal(pictures[1, :, :2, :2], patches[6])
    assert not pictures[1, :, :, 2:].any()
    table = np.arange(3 * 256, dtype=np.float32).reshape(3, 256) + 1
    how = Stored(torch.from_numpy(table), counts="image_sizes", pictures=True)
    floats = StoredPixels(pictures, how, sizes).restored("cpu", torch.float32)
    assert torch.equal(floats[0, 1, 2:, 2:4], patches[4, 1] + 257.0)
    assert not floats[1, :, :, 2:].any() and (floats[1, :, :, :2] > 0).all()
