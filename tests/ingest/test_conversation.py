"""The conversations of the online datasets: what is taken of them, and what the template makes of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.errors import assert_skipped

from neatpack.loaders.online import PackedDatasetWrapper, PreTokenizedDatasetWrapper, default_collate_fn
from neatpack.loaders.online.tokenized import SampleError, tokenized_example
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.ingest.conversation import from_conversation, to_conversation
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.records import Example, Skip

ASKED = {"role": "user", "content": "How warm is it?"}
ANSWER = {"role": "assistant", "content": "Warm."}
PIXELS = np.arange(60 * 84 * 3, dtype=np.uint8).reshape(60, 84, 3)


def shown(image: Any, **more: Any) -> dict[str, Any]:
    return {"type": "image", "image": image, **more}


def text_of(family: Any, sample: dict[str, Any], key: str = "input_ids") -> str:
    return str(family.chat.tokenizer.decode(sample[key][sample[key] != -100]))


# ---------------------------------------------------------------- pictures in memory


FORMS = {
    "PIL": Image.fromarray(PIXELS),
    "bytes last": PIXELS,
    "bytes first": PIXELS.transpose(2, 0, 1),
    "whole numbers": PIXELS.astype(np.int64),
    "floats of bytes": PIXELS.astype(np.float64),
    "fractions": (PIXELS / 255).astype(np.float32),
    "tensor": torch.from_numpy(PIXELS).permute(2, 0, 1),
    "tensor of fractions": torch.from_numpy(PIXELS).permute(2, 0, 1) / 255,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_picture_in_memory_is_the_same_in_every_form(form: str, demo_family: Any) -> None:
    expected, found = (
        tokenized_example({"conversation": [{"role": "user", "content": [shown(image)]}, ANSWER]}, demo_family)
        for image in (FORMS["PIL"], FORMS[form])
    )
    for key in ("input_ids", "labels", "pixel_values", "image_grid_thw"):
        assert torch.equal(found[key], expected[key]), key


@pytest.mark.parametrize("shape", [(40, 60), (40, 60, 1), (1, 40, 60), (40, 60, 4), (4, 40, 60)])
def test_grey_and_transparent_arrays(shape: tuple[int, ...]) -> None:
    example = from_conversation({"conversation": [{"role": "user", "content": [shown(np.zeros(shape, np.uint8))]}]})
    assert isinstance(example, Example)
    assert example.media[0].held.size == (60, 40)
    assert example.media[0].held.mode == ("RGBA" if 4 in shape else "L")


def test_half_precision_and_gradients() -> None:
    image = torch.full((3, 4, 6), 0.5, dtype=torch.bfloat16, requires_grad=True)
    example = from_conversation({"conversation": [{"role": "user", "content": [shown(image)]}]})
    assert isinstance(example, Example)
    assert np.asarray(example.media[0].held).tolist() == [[[128] * 3] * 6] * 4


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.zeros((2, 3, 40, 60)), ("[2, 3, 40, 60]",)),
        (np.zeros((40, 60, 2)), ("[40, 60, 2]",)),
        (np.zeros((0, 60, 3)), ("[0, 60, 3]",)),
        (np.full((4, 4, 3), -0.5), ("float64", "-0.5")),
        (np.full((4, 4, 3), 7.5), ("float64", "7.5")),
        (np.full((4, 4, 3), 256), ("int64", "256")),
        (np.zeros((4, 4, 3), bool), ("bool",)),
    ],
)
def test_what_is_no_picture(array: np.ndarray, named: tuple[str, ...]) -> None:
    found = from_conversation({"conversation": [{"role": "user", "content": [shown(array)]}]})
    assert_skipped(found, "bad_row", "turn 0", *named)


def test_a_picture_in_memory_of_the_size_that_is_asked_for(demo_family: Any) -> None:
    asked = shown(PIXELS, resized_height=112, resized_width=56)
    sample = tokenized_example({"conversation": [{"role": "user", "content": [asked]}, ANSWER]}, demo_family)
    assert sample["image_grid_thw"].tolist() == [[1, 8, 4]]


# ---------------------------------------------------------------- turns


def test_without_an_answer_it_can_be_asked_about_and_not_packed(demo_family: Any) -> None:
    prompt, answered = {"conversation": [ASKED]}, {"conversation": [ASKED, ANSWER]}
    samples = PreTokenizedDatasetWrapper([prompt, answered], demo_family, max_retries=0)
    assert (samples[0]["labels"] == -100).all()
    assert text_of(demo_family, samples.tokenized(0)).endswith("How warm is it?<|im_end|>\n")
    batch = default_collate_fn([prompt, answered], demo_family)
    assert (batch["labels"] != -100).any(dim=1).tolist() == [False, True]

    example = from_conversation(prompt)
    assert isinstance(example, Example)
    (skip,) = measure([example], demo_family)
    assert isinstance(skip, Skip)
    assert skip.reason == "no_target"
    packs = PackedDatasetWrapper(samples, [[0, 1]], 512)
    assert packs[0]["seq_lens"].tolist()[0] == len(samples.tokenized(1)["input_ids"]) - 1
    assert packs.dropped == {"no_target": 1}


@pytest.mark.parametrize("role", ["system", "assistant", "tool"])
def test_media_in_any_turn(role: str, demo_family: Any) -> None:
    """They are no target, and neither are their markers."""
    seen = {"role": role, "content": [shown(PIXELS), {"type": "text", "text": "Seen."}]}
    turns = {"system": [seen, ASKED, ANSWER], "assistant": [ASKED, seen], "tool": [ASKED, ANSWER, seen, ANSWER]}[role]
    sample = tokenized_example({"conversation": turns}, demo_family)
    assert sample["image_grid_thw"].tolist() == [[1, 4, 6]]
    assert int((sample["mm_token_type_ids"] == 1).sum()) == 6
    answers = {"system": "Warm.", "assistant": "Seen.", "tool": "Warm.<|im_end|>Warm."}
    assert text_of(demo_family, sample, "labels") == answers[role] + "<|im_end|>"


def test_media_that_the_template_leaves_out_are_named(shared: Path) -> None:
    family = family_for(str(shared / "processors" / "qwen3-vl"))
    system = {"role": "system", "content": [shown(PIXELS), {"type": "text", "text": "Look."}]}
    with pytest.raises(SampleError) as caught:
        tokenized_example({"conversation": [system, ASKED, ANSWER]}, family)
    assert caught.value.reason == "bad_row"


def test_tools_are_written_by_the_template(shared: Path) -> None:
    family = family_for(str(shared / "processors" / "qwen3-vl"))
    tool = {"type": "function", "function": {"name": "thermometer", "description": "Measures.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}}  # fmt: skip
    call = {"type": "function", "function": {"name": "thermometer", "arguments": {"place": "Rome"}}}
    talk: list[dict[str, Any]] = [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "thermometer", "content": [{"type": "text", "text": "28 degrees"}]},
        ANSWER,
    ]
    sample = tokenized_example({"conversation": talk, "tools": [tool]}, family)
    whole = family.chat.tokenizer.apply_chat_template(
        [{**turn, "content": "28 degrees"} if turn["role"] == "tool" else turn for turn in talk],
        tools=[tool],
        tokenize=False,
    )
    assert text_of(family, sample) == whole
    assert "<tools>" in whole and "<tool_response>\n28 degrees\n</tool_response>" in whole
    assert text_of(family, sample, "labels").startswith('<tool_call>\n{"name": "thermometer", "arguments": ')


def test_there_and_back() -> None:
    parts = [shown("a.png", max_pixels=784), {"type": "video", "video": "b.mp4", "fps": 2.0, "max_frames": 8}]
    example = from_conversation({"conversation": [{"role": "user", "content": parts}, ANSWER]})
    assert isinstance(example, Example)
    again = to_conversation(example)
    assert again["conversation"][0]["content"] == parts
    assert from_conversation(again) == example
