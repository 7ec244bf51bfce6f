"""Every tensor of a rendered sample, against HF tokenizer, image processor and model on the same conversation."""

import copy
import re

import numpy as np
import pytest
import torch
from helpers import bare_model, picture
from PIL import Image, ImageOps
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from neatpack.loaders.pixels import looked_up
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.qwen2_vl import image_config
from neatpack.pipeline.families.registry import load_family, processor_files
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.records import Example, Measured, MediaRef, Turn
from neatpack.pipeline.render.sample import render_sample

EXIF = Image.Exif()
EXIF[0x0112] = 6

PICTURES = {
    "odd.jpg": dict(height=301, width=517),
    "tiny.png": dict(height=3, width=5),
    "tall.jpg": dict(height=700, width=33),
    "rgba.png": dict(height=120, width=90, mode="RGBA"),
    "palette.png": dict(height=77, width=200, mode="P"),
    "gray.jpg": dict(height=200, width=200, mode="L"),
    "gray_alpha.png": dict(height=99, width=101, mode="LA"),
    "turned.jpg": dict(height=140, width=311, exif=EXIF),
    "exact.png": dict(height=112, width=224),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return {name: str(picture(folder / name, seed=i, **spec)) for i, (name, spec) in enumerate(PICTURES.items())}


def image(path):
    return MediaRef(kind="image", path=path)


def conversations(pictures):
    """Text only; several images in one turn and over several turns; every picture once; awkward text."""
    several = [image(pictures[name]) for name in ("odd.jpg", "rgba.png", "turned.jpg")]
    yield Example(turns=(Turn(role="user", parts=("Hello there",)), Turn(role="assistant", parts=("Hi.",))))
    yield Example(
        turns=(
            Turn(role="system", parts=("Answer in verse.",)),
            Turn(role="user", parts=(several[0], several[1], "Compare them: 图片 𝄞")),
            Turn(role="assistant", parts=("\n\nThe first is larger. ",)),
            Turn(role="user", parts=("And", several[2], "this?")),
            Turn(role="assistant", parts=("It is turned.\n",)),
        )
    )
    for path in pictures.values():
        question = Turn(role="user", parts=(image(path), "What is it?"))
        yield Example(turns=(question, Turn(role="assistant", parts=("A pattern.",))))


def hf_inputs(example, family):
    """Text, ids, pixels and grids as the HF processor makes them: expanded text, tokenizer, PIL image processor."""
    images = [ImageOps.exif_transpose(Image.open(ref.path)) for ref in example.media]
    config = copy.deepcopy(
        {
            k: v
            for k, v in image_config(processor_files(family.source), ProcessorKey(processor=""), "").items()
            if k != "image_processor_type"
        }
    )
    processor = Qwen2VLImageProcessorPil(**config)  # which writes into what it is given
    features = processor(images=images, return_tensors="np") if images else {}
    messages = [
        {"role": turn.role, "content": [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
                                        for part in turn.parts]}
        for turn in example.turns
    ]  # fmt: skip
    text = family.chat.tokenizer.apply_chat_template(messages, tokenize=False)
    for grid in features.get("image_grid_thw", []):
        text = text.replace("<|image_pad|>", "<|hole|>" * int(grid.prod() // family.image.merge_size**2), 1)
    text = text.replace("<|hole|>", "<|image_pad|>")
    return text, np.array(family.chat.tokenizer(text)["input_ids"]), features


def hf_positions(ids, grids, family, processor):
    """The installed model class's own get_rope_index."""
    tensor = torch.tensor(ids)[None]
    types = (tensor == family.chat.placeholder_ids["image"]).int()
    grid = torch.tensor(grids) if len(grids) else None
    positions, _ = bare_model(processor).get_rope_index(tensor, mm_token_type_ids=types, image_grid_thw=grid)
    return positions[:, 0].numpy(), types[0].numpy()


def hf_labels(text, family):
    """Labels by places in the text: tokens wholly between the line break of an assistant header and its <|im_end|>."""
    encoded = family.chat.tokenizer(text, return_offsets_mapping=True)
    turns = [match.span(1) for match in re.finditer(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", text, re.DOTALL)]
    return [
        token if any(first <= start and end <= last for first, last in turns) else -100
        for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    ]


def test_every_tensor_equals_the_hf_processors(family, processor, pictures):
    for example in conversations(pictures):
        (measured,) = measure([example], family)
        assert isinstance(measured, Measured), measured
        sample = render_sample(measured, family, "pil")
        text, ids, features = hf_inputs(example, family)
        grids = features.get("image_grid_thw", np.zeros((0, 3), dtype=np.int64))
        positions, types = hf_positions(ids, grids, family, processor)

        assert measured.tokens == len(ids) - 1
        assert sample.input_ids.tolist() == ids[:-1].tolist()
        assert sample.labels.tolist() == hf_labels(text, family)[1:]
        assert sample.mm_token_type_ids.tolist() == types[:-1].tolist()
        assert np.array_equal(sample.position_ids, positions[:, :-1])
        assert np.array_equal(sample.media["image_grid_thw"], grids)
        if len(grids):
            table = torch.from_numpy(family.tables("pil")["image"])
            stored, expected = (
                torch.from_numpy(sample.media["pixel_values"]),
                torch.from_numpy(features["pixel_values"]),
            )
            for dtype in (torch.float32, torch.bfloat16):
                restored = looked_up(stored, table, family.image.temporal_patch_size, dtype)
                assert restored.dtype == dtype
                assert torch.equal(restored, expected.to(dtype))


def test_the_comparison_can_fail(family, pictures):
    """A picture rendered by the other backend differs: equality above is not a matter of loose comparison."""
    example = list(conversations(pictures))[2]
    (measured,) = measure([example], family)
    pil, other = (render_sample(measured, family, resize).media["pixel_values"] for resize in ("pil", "torch"))
    assert pil.shape == other.shape
    assert not np.array_equal(pil, other)


def test_the_fingerprint_is_of_the_processor_and_not_of_its_use(processor):
    fresh, used = (load_family(ProcessorKey(processor=processor)) for _ in range(2))
    used.chat.tokenizer(["a", "a b c"], padding=True, truncation=True, max_length=2)
    assert fresh.fingerprint == used.fingerprint
    changed = load_family(ProcessorKey(processor=processor))
    changed.chat.tokenizer.chat_template += " "
    assert changed.fingerprint != fresh.fingerprint
