"""Collates give what the wrapper and pad_collate_fn give, and call what the API names."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from conversations import Page, saw, talk, tokenizer_of, trained
from PIL import Image
from places import DEMO_PROCESSOR, REAL_PROCESSORS
from processors import default, gemma4, kimi_k25, kimi_vl, phi4_mm, qwen3_omni
from support.data import clip, picture, tone
from support.errors import logged, raises
from support.workers import run_with_torchvision
from transformers import AutoProcessor, AutoTokenizer

from neatpack import prepare_vlm_media_for_pp
from neatpack.loaders import online
from neatpack.loaders.online import (
    COLLATE_FNS,
    PreTokenizedDatasetWrapper,
    build_labels_from_template,
    default_collate_fn,
    gemma4_prefix_collate_fn,
    kimi_k25_vl_collate_fn,
    kimi_vl_collate_fn,
    neat_pack_dataset_vlm,
    nemotron_parse_collate_fn,
    pad_collate_fn,
    phi4_mm_collate_fn,
    qwen2_5_collate_fn,
    qwen3_omni_collate_fn,
)

pytestmark = pytest.mark.net

PROCESSOR = str(DEMO_PROCESSOR)


# ---------------------------------------------------------------- every collater


def test_the_default_equals_wrapper_and_padding(image):
    examples = [talk(saw("image", image), "That."), talk("Who?", "Me.", "And?", "You.")]
    batch = default_collate_fn(examples, PROCESSOR)
    samples = PreTokenizedDatasetWrapper(examples, PROCESSOR, inject_fake_images=False)
    expected = pad_collate_fn([samples[0], samples[1]], tokenizer_of(PROCESSOR))
    assert batch.keys() == expected.keys()
    assert all(torch.equal(batch[key], expected[key]) for key in batch)
    assert batch["n_images_per_sample"].tolist() == [1, 0]
    assert trained(batch, tokenizer_of(PROCESSOR), 1) == "Me.<|im_end|>You.<|im_end|>"
    again = qwen2_5_collate_fn(examples, PROCESSOR, pixel_dtype=torch.bfloat16)
    assert all(torch.equal(batch[key], again[key]) for key in batch)


@pytest.mark.parametrize(
    ("collate", "dtype"),
    [
        (default_collate_fn, torch.bfloat16),
        (qwen2_5_collate_fn, torch.float32),
        (COLLATE_FNS["default"], torch.bfloat16),
    ],
)
def test_pixels_are_bf16_where_the_model_is_not_asked(image, collate, dtype):
    """And as the processor gives them, or as one asks; the same numbers, rounded."""
    examples = [talk(saw("image", image), "That.")]
    whole = collate(examples, PROCESSOR, pixel_dtype=None)["pixel_values"]
    assert whole.dtype == torch.float32
    assert torch.equal(collate(examples, PROCESSOR)["pixel_values"], whole.to(dtype))
    assert collate(examples, PROCESSOR)["pixel_values"].dtype == dtype
    assert collate(examples, PROCESSOR, pixel_dtype=torch.float16)["pixel_values"].dtype == torch.float16


def test_pixels_of_padded_samples(image, tmp_path):
    film = str(clip(tmp_path / "a.mp4"))
    samples = PreTokenizedDatasetWrapper([talk([*saw("image", image), *saw("video", film)], "That.")], PROCESSOR)
    for dtype, expected in ((torch.float32, torch.float32), (None, torch.float32)):
        batch = pad_collate_fn([samples[0]], PROCESSOR, pixel_dtype=dtype)
        assert {batch["pixel_values"].dtype, batch["pixel_values_videos"].dtype} == {expected}
    batch = pad_collate_fn([samples[0]], PROCESSOR)
    assert {batch["pixel_values"].dtype, batch["pixel_values_videos"].dtype} == {torch.bfloat16}
    assert batch["image_grid_thw"].dtype == torch.long


def test_rows_have_max_length(image):
    """Before the shift: one shape for pipelines and torch.compile, whatever is in the batch."""
    examples = [talk(saw("image", image), "That."), talk("Who?", "Me.")]
    for chosen in (examples, examples[1:]):
        batch = default_collate_fn(chosen, PROCESSOR, max_length=128)
        shapes = {batch[key].shape for key in ("input_ids", "attention_mask", "labels", "mm_token_type_ids")}
        assert shapes == {(len(chosen), 127)}
    shorter = default_collate_fn(examples, PROCESSOR)
    length = shorter["input_ids"].shape[1]
    padded = default_collate_fn(examples, PROCESSOR, max_length=128)
    assert torch.equal(padded["input_ids"][:, :length], shorter["input_ids"])
    assert torch.equal(padded["labels"][:, :length], shorter["labels"])
    assert not padded["attention_mask"][:, length + 1 :].any() and (padded["labels"][:, length:] == -100).all()


def test_what_a_conversation_does_not_say_counts_too(caplog, tmp_path):
    """A sound in a column of the example: the sample is longer than its conversation tells, and dropped later."""
    processor = str(phi4_mm.make(tmp_path / "phi"))
    heard = talk([{"type": "audio"}, {"type": "text", "text": "Write it down."}], "La.")
    examples = [{**heard, "audio": (np.zeros(160_000, dtype=np.float32), 16_000)}, talk("Who?", "Me.")]
    with caplog.at_level(logging.WARNING):
        batch = phi4_mm_collate_fn(examples, processor, max_length=64)
    assert batch["input_ids"].shape == (1, 63) and "audio_input_features" not in batch
    assert [args[0] for args in logged(caplog, "loaders.online.collates")] == [0]
    with raises(ValueError, "overlong", max_length=64, tokens=136):
        phi4_mm_collate_fn(examples[:1], processor, max_length=64)


def test_labels_are_the_next_tokens():
    batch = default_collate_fn([talk("Who?", "Me.")], PROCESSOR)
    ids, labels = batch["input_ids"][0], batch["labels"][0]
    known = labels[:-1] != -100
    assert torch.equal(labels[:-1][known], ids[1:][known])


def test_text_only_batches_have_no_media():
    assert default_collate_fn([talk("Who?", "Me.")], PROCESSOR).keys() == {
        "input_ids", "attention_mask", "labels", "mm_token_type_ids",
    }  # fmt: skip


def test_long_samples_are_dropped_and_told(caplog):
    examples = [talk("Count.", " ".join(map(str, range(99)))), talk("Who?", "Me.")]
    with caplog.at_level(logging.WARNING):
        batch = default_collate_fn(examples, PROCESSOR, max_length=40)
    assert len(batch["input_ids"]) == 1
    assert [args[0] for args in logged(caplog, "loaders.online.steps")] == [0]
    with raises(ValueError, "overlong", max_length=5, tokens=301):
        default_collate_fn(examples, PROCESSOR, max_length=5)
    with raises(ValueError, "batch-mismatch", examples=0):
        default_collate_fn([], PROCESSOR)


def test_a_hook_before_the_labels():
    seen = {}

    def hook(batch, processor):
        seen.update(batch)
        assert processor == PROCESSOR
        return batch

    batch = default_collate_fn(
        [talk("Who?", "Me."), talk("Who are you?", "I am I.")], PROCESSOR, _post_tokenize_hook=hook
    )
    assert "labels" not in seen and seen["input_ids"].shape[1] == batch["input_ids"].shape[1] + 1
    plain = default_collate_fn([talk("Who?", "Me."), talk("Who are you?", "I am I.")], PROCESSOR)
    assert all(torch.equal(batch[key], plain[key]) for key in plain)


def test_padding_is_not_trained_on_where_an_answer_has_no_end():
    def cut(batch, processor):
        for key in ("input_ids", "attention_mask"):
            batch[key][:, -4:] = 0
        return batch

    batch = default_collate_fn([talk("Count.", "1 2 3 4 5 6 7 8 9")], PROCESSOR, _post_tokenize_hook=cut)
    assert (batch["labels"][0, -4:] == -100).all()
    assert (batch["labels"][0] != -100).any()


def test_omni(tmp_path):
    processor = str(qwen3_omni.make(tmp_path / "omni"))
    examples = [talk(saw("audio", str(tone(tmp_path / "a.wav", 1.0))), "A tone."), talk("Who?", "Me."),
                talk(saw("audio", str(tone(tmp_path / "b.wav", 0.5))), "Another.")]  # fmt: skip
    batch = qwen3_omni_collate_fn(examples, processor)
    assert batch["input_features"].shape == (2, 128, 100)
    assert batch["feature_attention_mask"].sum(1).tolist() == [100, 50]
    assert batch["n_audios_per_sample"].tolist() == [1, 0, 1]
    film = talk(saw("video", str(clip(tmp_path / "mute.mp4"))), "Grey.")
    quiet, heard = (qwen3_omni_collate_fn([film], processor, use_audio_in_video=use) for use in (False, True))
    assert all(torch.equal(quiet[key], heard[key]) for key in quiet), "there is nothing to hear"


@pytest.mark.parametrize(
    ("make", "collate"), [(kimi_vl.make, kimi_vl_collate_fn), (kimi_k25.make, kimi_k25_vl_collate_fn)]
)
def test_kimi_rows_have_one_length(tmp_path, image, make, collate):
    processor = str(make(tmp_path / "kimi"))
    examples = [talk(saw("image", image), "That."), talk("Who?", "Me.")]
    batch = collate(examples, processor, max_length=128)
    assert batch["input_ids"].shape == batch["labels"].shape == (2, 127), "128 and the shift"
    tokenizer = tokenizer_of(processor)
    expanded = int((batch["input_ids"][0] == tokenizer.convert_tokens_to_ids(kimi_vl.PAD)).sum())
    assert expanded == int((batch["mm_token_type_ids"][0] == 1).sum()) > 1
    assert trained(batch, tokenizer) == "That.<|im_end|>"
    assert collate(examples, processor)["input_ids"].shape[1] < 127
    with raises(ValueError, "overlong", max_length=4):
        collate(examples, processor, max_length=4)


def test_phi4_hears(tmp_path):
    processor = str(phi4_mm.make(tmp_path / "phi"))
    samples = np.sin(np.arange(16_000) / 30).astype(np.float32)
    parts = talk([{"type": "audio", "audio": (samples, 16_000)}, {"type": "text", "text": "Write it down."}], "La.")
    tagged = {**talk("<|audio_1|>Write it down.", "La."), "audio": (samples, 16_000)}
    batches = [phi4_mm_collate_fn([example], processor) for example in (parts, tagged)]
    assert batches[0]["input_mode"] == 2
    assert batches[0].keys() == batches[1].keys()
    assert all(torch.equal(torch.as_tensor(batches[0][key]), torch.as_tensor(batches[1][key])) for key in batches[0])
    assert phi4_mm_collate_fn([talk("Who?", "Me.")], processor)["input_mode"] == 0


THOUGHT = "<|channel>thought\n<channel|>"


@pytest.fixture(scope="module")
def gemma(tmp_path_factory) -> str:
    return str(gemma4.make(tmp_path_factory.mktemp("gemma") / "processor"))


def test_gemma_thinks_first_where_it_is_told(gemma):
    tokenizer = tokenizer_of(gemma)
    examples = [talk("Who?", "Me."), talk("Who?", "Me.", "And then?", "You.")]
    batch = gemma4_prefix_collate_fn(examples, gemma)
    texts = [tokenizer.decode(row) for row in batch["input_ids"]]
    assert [text.count(f"<|turn>model\n{THOUGHT}") for text in texts] == [1, 2]
    assert trained(batch, tokenizer, 1) == "Me.<turn|>You.<turn|>"
    plain = default_collate_fn(examples, gemma)
    assert [tokenizer.decode(row) for row in plain["input_ids"]][1] == texts[1].replace(THOUGHT, "")
    assert trained(plain, tokenizer, 1) == "Me.<turn|>You.<turn|>"


def test_gemmas_own_thoughts_are_kept(gemma):
    """By the default and by the wrapper, where the template keeps them; as tokens, and trained on."""
    tokenizer, said = tokenizer_of(gemma), "<|channel>thought\nHm.<channel|>Yes."
    (conversation,) = examples = [talk("Who?", said)]
    sample = PreTokenizedDatasetWrapper(examples, gemma, inject_fake_images=False)[0]
    batch = default_collate_fn(examples, gemma)
    expected = tokenizer.apply_chat_template(conversation["conversation"], tokenize=False)
    assert tokenizer.decode(sample["input_ids"]) == expected
    assert torch.equal(batch["input_ids"][0], sample["input_ids"][:-1])
    assert trained(batch, tokenizer) == f"{said}<turn|>"
    assert int((batch["input_ids"] == tokenizer.convert_tokens_to_ids("<|channel>")).sum()) == 1
    # Behind every model turn, as its document says: also before a thought of the assistant's own.
    both = gemma4_prefix_collate_fn(examples, gemma)
    assert f"{THOUGHT}{said}" in tokenizer.decode(both["input_ids"][0])
    assert trained(both, tokenizer) == f"{said}<turn|>"


def test_gemmas_prefix_counts_against_max_length(gemma, caplog):
    examples = [talk("Who?", "Me."), talk("Who?", "Me.", "And then?", "You.")]
    lengths = [gemma4_prefix_collate_fn([example], gemma)["input_ids"].shape[1] + 1 for example in examples]
    exact = gemma4_prefix_collate_fn(examples, gemma, max_length=max(lengths))
    assert exact["input_ids"].shape == exact["labels"].shape == (2, max(lengths) - 1)
    unbounded = gemma4_prefix_collate_fn(examples, gemma)
    assert all(torch.equal(exact[key], unbounded[key]) for key in unbounded)
    with caplog.at_level(logging.WARNING):
        dropped = gemma4_prefix_collate_fn(examples, gemma, max_length=max(lengths) - 1)
    assert dropped["input_ids"].shape == (1, max(lengths) - 2)
    assert [args[:2] for args in logged(caplog, "loaders.online.steps")] == [(1, max(lengths))]
    wide = gemma4_prefix_collate_fn(examples, gemma, max_length=90)
    assert wide["input_ids"].shape == wide["mm_token_type_ids"].shape == (2, 89)
    assert trained(wide, tokenizer_of(gemma), 1) == "Me.<turn|>You.<turn|>"


def test_the_prefix_goes_in_once(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(str(gemma4.make(tmp_path / "gemma")))
    texts = ["<|turn>model\nA<turn|>\n<|turn>model\nB<turn|>", "<|turn>model\nC<turn|>"]
    rows = [torch.tensor(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    length = len(rows[0])
    ids = torch.stack(
        [rows[0], torch.nn.functional.pad(rows[1], (0, length - len(rows[1])), value=tokenizer.pad_token_id or 0)]
    )
    mask = torch.tensor([[1] * length, [1] * len(rows[1]) + [0] * (length - len(rows[1]))])
    batch = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": torch.zeros_like(ids),
             "other": torch.ones_like(ids), "others": torch.ones(5, length, dtype=torch.long),
             "floats": torch.ones(2, length)}  # fmt: skip
    once = online._inject_thinking_prefix_tokens(batch, tokenizer)
    assert once is batch, "changed in place"
    prefix = len(tokenizer.encode("<|channel>thought\n<channel|>", add_special_tokens=False))
    assert once["input_ids"].shape == once["attention_mask"].shape == once["other"].shape == (2, length + 2 * prefix)
    assert once["attention_mask"].sum(1).tolist() == [length + 2 * prefix, len(rows[1]) + prefix]
    assert once["other"].sum(1).tolist() == [length, length], "zeros where the prefix is"
    assert once["others"].tolist() == [[1] * length + [0] * 2 * prefix] * 5
    assert once["floats"].shape == (2, length)
    twice = online._inject_thinking_prefix_tokens(dict(once), tokenizer)
    assert torch.equal(twice["input_ids"], once["input_ids"])


def test_a_processor_that_no_family_knows(tmp_path, image):
    """LLaVA's, of transformers: the default collater gives what the processor's own call gives."""
    processor = AutoProcessor.from_pretrained(str(default.make(tmp_path / "llava")))
    examples = [talk(saw("image", Image.open(image)), "That."), talk("Who?", "Me.", "And?", "You.")]
    batch = default_collate_fn(examples, processor)
    processor.tokenizer.padding_side = "right"
    expected = processor.apply_chat_template([e["conversation"] for e in examples], tokenize=True, return_dict=True,
                                             return_tensors="pt", processor_kwargs={"padding": True})  # fmt: skip
    for key in ("input_ids", "attention_mask"):
        assert torch.equal(batch[key], expected[key][:, :-1]), key
    assert torch.equal(batch["pixel_values"], expected["pixel_values"].bfloat16())
    assert trained(batch, processor.tokenizer, 1).count("Me.") == 1
    assert torch.equal(
        batch["labels"],
        build_labels_from_template(expected["input_ids"], [e["conversation"] for e in examples], processor)[:, 1:],
    )


def test_nemotron_reads_a_page(tokenizer, image):
    page = Page(tokenizer)
    examples = [talk(saw("image", image), "A title and a table."), talk(saw("image", Image.open(image)), "Short.")]
    batch = nemotron_parse_collate_fn(examples, page, task_prompt="Read: ")
    assert batch["pixel_values"].shape == (2, 3, 4, 4)
    assert batch["decoder_input_ids"].shape == batch["decoder_attention_mask"].shape == batch["labels"].shape
    end = tokenizer.eos_token
    assert [trained(batch, tokenizer, row).lstrip() for row in (0, 1)] == [f"A title and a table.{end}", f"Short.{end}"]
    assert tokenizer.decode(batch["decoder_input_ids"][0]).startswith("Read: A title")
    with raises(ValueError, "row-invalid", example=0, images=0):
        nemotron_parse_collate_fn([talk("Who?", "Me.")], page)
    fixed = nemotron_parse_collate_fn(examples, page, task_prompt="Read: ", max_length=40)
    assert fixed["labels"].shape == fixed["decoder_input_ids"].shape == (2, 39)
    assert [trained(fixed, tokenizer, row) for row in (0, 1)] == [trained(batch, tokenizer, row) for row in (0, 1)]
    longer = len(tokenizer.encode(f"Read: A title and a table.{end}"))
    shorter = nemotron_parse_collate_fn(examples, page, task_prompt="Read: ", max_length=longer - 1)
    assert len(shorter["pixel_values"]) == len(shorter["labels"]) == 1, "the page goes with its text"
    with raises(ValueError, "overlong", max_length=3, tokens=11):
        nemotron_parse_collate_fn(examples, page, task_prompt="Read: ", max_length=3)


def test_collates_by_class():
    named = {name: collate.__name__.removesuffix("_collate_fn") for name, collate in COLLATE_FNS.items()}
    assert named == {
        "Qwen2VLProcessor": "default", "Qwen2_5_VLProcessor": "qwen2_5", "Qwen3VLProcessor": "default",
        "Qwen3VLMoeProcessor": "default", "Qwen3OmniMoeProcessor": "qwen3_omni", "KimiVLProcessor": "kimi_vl",
        "KimiK25Processor": "kimi_k25_vl", "Kimi_K25Processor": "kimi_k25_vl", "Phi4MMProcessor": "phi4_mm",
        "Phi4MultimodalProcessor": "phi4_mm", "NemotronParseProcessor": "nemotron_parse", "Gemma4Processor": "default",
        "default": "default",
    }  # fmt: skip


MAKERS = {"phi4_mm": phi4_mm.make, "kimi_vl": kimi_vl.make, "kimi_k25_vl": kimi_k25.make, "qwen3_omni": qwen3_omni.make}


@pytest.mark.parametrize("collate", list(dict.fromkeys(COLLATE_FNS.values())))
def test_every_collate_can_be_told_a_length(collate, tmp_path, tokenizer, image):
    name = collate.__name__.removesuffix("_collate_fn")
    if name == "nemotron_parse":
        processor, examples = Page(tokenizer), [talk(saw("image", image), "That.")]
    else:
        processor = str(MAKERS[name](tmp_path / "p")) if name in MAKERS else PROCESSOR
        examples = [talk("Who?", "Me."), talk("Who?", "Me.", "And?", "You.")]
    batch = collate(examples, processor=processor, max_length=80)
    assert batch["input_ids"].shape == batch["labels"].shape == (len(examples), 79)


# ---------------------------------------------------------------- names of the API are those that are called


def _packs(processor, image):
    examples = [talk(saw("image", image), "That.") | {"mm_inputs_meta": {"images_meta": [[60, 90]], "videos_meta": [
        [10, 64, 96, 5.0, 2.0]]}}]  # fmt: skip
    return neat_pack_dataset_vlm(PreTokenizedDatasetWrapper(examples, processor), 4096, ds_raw=examples)


def _chunks(processor, image):
    pixels = {"pixel_values": torch.zeros(4, 2), "image_grid_thw": torch.tensor([[1, 2, 2]])}
    return prepare_vlm_media_for_pp({"input_ids": torch.zeros(1, 2), **pixels}, 1, 1)


def _collate(name, *, kind="image", **more):
    return lambda processor, image: COLLATE_FNS[name]([talk(saw(kind, image), "That.")], processor, **more)


CALLED = {
    "_ensure_rgb": _collate("default"),
    "_count_media_per_sample": _collate("default"),
    "_drop_overlong_samples": _collate("default", max_length=400),
    "_estimate_media_tokens": _collate("default", max_length=400),
    "_extract_media_from_conversations": _collate("NemotronParseProcessor"),
    "_extract_assistant_text": _collate("NemotronParseProcessor"),
    "_expand_image_tokens": _collate("KimiK25Processor"),
    "_inject_thinking_prefix_tokens": lambda processor, image: gemma4_prefix_collate_fn([talk("A?", "B.")], processor),
    "_extract_image_config": _packs,
    "_estimate_sample_length": _packs,
    "_estimate_image_tokens": _packs,
    "_estimate_video_tokens": _packs,
    "_smart_resize_image": _packs,
    "_select_image_grid": _chunks,
}


class Called(Exception):
    pass


@pytest.mark.parametrize("name", CALLED)
def test_a_patched_name_is_what_our_code_calls(name, monkeypatch, tmp_path, tokenizer, image):
    """Patched in the package, where the names are documented, or in the module that it lives in."""
    makers = {"_expand_image_tokens": kimi_k25.make, "_inject_thinking_prefix_tokens": gemma4.make}
    reads_pages = name in ("_extract_media_from_conversations", "_extract_assistant_text")
    processor = Page(tokenizer) if reads_pages else str(makers[name](tmp_path / "p")) if name in makers else PROCESSOR
    CALLED[name](processor, image)
    original = getattr(online, name)

    def patched(*arguments, **more):
        raise Called(name)

    with monkeypatch.context() as patch:
        patch.setattr(online, name, patched)
        with pytest.raises(Called):
            CALLED[name](processor, image)
    assert getattr(online, name) is original
    CALLED[name](processor, image)


@pytest.fixture(scope="module")
def compared(tmp_path_factory, shared):
    """By processor: what is wrong. All in one process: what it imports takes longer than a processor does."""
    folder = tmp_path_factory.mktemp("pictures")
    picture(folder / "a.png", 130, 200)
    picture(folder / "b.png", 90, 61)
    processors = [str(shared / "processors" / name) for name in REAL_PROCESSORS]
    said = run_with_torchvision(Path(__file__).with_name("hf_online.py"), str(folder), *processors)
    return dict(map(json.loads, said.splitlines()[-len(processors) :]))


@pytest.mark.parametrize("name", REAL_PROCESSORS)
def test_a_real_hf_processor_object(compared, name):
    """Online users hand in the processor itself: the same tensors as by its own call."""
    assert compared[name] is None, compared[name]
