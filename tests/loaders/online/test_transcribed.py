"""Collates against the steps that the API documents, done by hand, tensor by tensor; and used as a trainer would."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conversations import tokenizer_of
from PIL import Image
from places import DEMO_PROCESSOR, SHARED
from processors import gemma4, kimi_k25, kimi_vl, nemotron_parse, phi4_mm, qwen3_omni
from support.data import picture, tone
from support.packed import packed_family
from support.workers import run_with_torchvision
from tiny_models import tiny_gemma4, tiny_kimi_k25, tiny_model, tiny_phi4_mm
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from neatpack.loaders.online import (
    COLLATE_FNS,
    build_labels,
    gemma4_prefix_collate_fn,
    kimi_vl_collate_fn,
    nemotron_parse_collate_fn,
)

pytestmark = pytest.mark.net


def talk(*media, answer="It is so."):
    parts = [{"type": kind, kind: value} for kind, value in media]
    return {"conversation": [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]},
                             {"role": "assistant", "content": [{"type": "text", "text": answer}]}]}  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("images")
    return [str(picture(folder / f"{number}.png", *size)) for number, size in enumerate([(60, 90), (130, 75)])]


@pytest.mark.slow
def test_kimi_k25_phi4_and_omni_with_their_real_processors(shared, tmp_path):
    picture(tmp_path / "a.png", 130, 200)
    picture(tmp_path / "b.png", 90, 61)
    tone(tmp_path / "a.wav", 1.3)
    script = Path(__file__).with_name("transcribed.py")
    lines = run_with_torchvision(script, str(shared / "processors"), str(tmp_path)).splitlines()
    assert lines == ["kimi_k25 equal", "phi4 equal", "omni equal"]


@pytest.mark.parametrize("real", [False, True], ids=["double", "real"])
def test_kimi_vl(real, images, tmp_path):
    """The processor's call is the double's; vocabulary, specials and template are the real ones where they are."""
    folder = SHARED / "processors" / "kimi-vl" if real else kimi_vl.make(tmp_path / "p")
    if not folder.is_dir():
        pytest.skip("../shared/processors/kimi-vl is not here")
    tokenizer, padding = tokenizer_of(str(folder)), packed_family(str(folder), tmp_path).chat.padding_id
    said = json.loads((folder / "preprocessor_config.json").read_text())
    own = {key: said[key] for key in ("in_token_limit", "image_mean", "image_std")}
    processor = kimi_vl.Double(tokenizer, kimi_vl.IMAGE | own)
    examples = [talk(("image", images[0])), talk(), talk(*(("image", path) for path in images), answer="Yes.")]
    conversations = [example["conversation"] for example in examples]
    seen = [[images[0]], [], images]
    made = [
        processor([Image.open(path) for path in paths], tokenizer.apply_chat_template(turns, tokenize=False))
        for paths, turns in zip(seen, conversations, strict=True)
    ]
    rows = [torch.tensor(one["input_ids"]) for one in made]
    for max_length in (None, 600):
        more = (max_length or max(map(len, rows))) - max(map(len, rows))
        ids = pad_sequence(rows, batch_first=True, padding_value=padding)
        ids = torch.nn.functional.pad(ids, (0, more), value=padding)
        mask = torch.arange(ids.shape[1])[None] < torch.tensor([len(row) for row in rows])[:, None]
        labels = build_labels(ids, conversations, tokenizer)
        batch = kimi_vl_collate_fn(examples, str(folder), max_length=max_length)
        assert torch.equal(batch["input_ids"], ids[:, :-1])
        assert torch.equal(batch["attention_mask"], mask[:, :-1].long())
        assert torch.equal(batch["labels"], labels[:, 1:])
        assert (batch["labels"] != -100).sum(1).min() > 1, "an answer and its end at least"
        assert torch.equal(
            batch["pixel_values"], torch.cat([one["pixel_values"] for one in made if "pixel_values" in one])
        )
        grids = [torch.as_tensor(one["image_grid_hws"]) for one in made if "image_grid_hws" in one]
        assert torch.equal(batch["image_grid_hws"], torch.cat(grids))
        assert batch["n_images_per_sample"].tolist() == [1, 0, 2]


class Page:
    """The call protocol of Nemotron-Parse's processor, which is remote code: pages of one size, texts padded."""

    def __init__(self, folder):
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))

    def __call__(self, images, text, **options):
        pages = np.stack([np.asarray(image.resize((6, 4)), dtype=np.float32) / 255 for image in images])
        return {"pixel_values": torch.from_numpy(pages), **self.tokenizer(text, **options)}


@pytest.mark.parametrize("side", ["right", "left"])
def test_nemotron_parse(side, images, tmp_path):
    """Prompt and answer as one text, the prompt masked, the decoder's inputs and labels shifted against each other."""
    processor = Page(nemotron_parse.make(tmp_path / "p"))
    tokenizer = processor.tokenizer
    tokenizer.padding_side = side
    prompt = "</s><s><predict_bbox><predict_classes><output_markdown>"
    answers = ["# A title\n\nand a longer text.", "Short."]
    examples = [talk(("image", path), answer=answer) for path, answer in zip(images, answers, strict=True)]
    texts = [f"{prompt}{answer}{tokenizer.eos_token}" for answer in answers]
    pages = [Image.open(path).convert("RGB") for path in images]
    made = processor(pages, texts, padding=True, add_special_tokens=False, return_tensors="pt")
    labels = torch.full_like(made["input_ids"], -100)
    for row, ids, mask in zip(labels, made["input_ids"], made["attention_mask"], strict=True):
        begin = int(mask.argmax()) + len(tokenizer.encode(prompt, add_special_tokens=False))
        end = int(mask.argmax()) + int(mask.sum())
        row[begin:end] = ids[begin:end]
    batch = nemotron_parse_collate_fn(examples, processor)
    assert torch.equal(batch["pixel_values"], made["pixel_values"].bfloat16())
    for name in ("input_ids", "decoder_input_ids"):
        assert torch.equal(batch[name], made["input_ids"][:, :-1])
    for name in ("attention_mask", "decoder_attention_mask"):
        assert torch.equal(batch[name], made["attention_mask"][:, :-1])
    assert torch.equal(batch["labels"], labels[:, 1:])
    said = [tokenizer.decode(row[row != -100]) for row in batch["labels"]]
    assert said == [f"{answer}{tokenizer.eos_token}" for answer in answers]
    assert batch["n_images_per_sample"].tolist() == [1, 1]


# ---------------------------------------------------------------- as a trainer uses it

MODELS = {
    "Qwen2VLProcessor": (lambda _: DEMO_PROCESSOR, lambda _: tiny_model("qwen2_vl")),
    "Qwen2_5_VLProcessor": (lambda _: DEMO_PROCESSOR, lambda _: tiny_model("qwen2_5_vl")),
    "Qwen3OmniMoeProcessor": (qwen3_omni.make, lambda _: tiny_model("qwen3_omni")),
    "KimiK25Processor": (kimi_k25.make, tiny_kimi_k25),
    "Phi4MultimodalProcessor": (phi4_mm.make, tiny_phi4_mm),
    "Gemma4Processor": (gemma4.make, tiny_gemma4),
}
NOT_FOR_MODELS = ("n_images_per_sample", "n_videos_per_sample", "input_mode", "grid_thws", "image_grid_hws")


def loss_of(model, batch):
    """Labels are shifted already: shift_labels says so to the losses of transformers."""
    given = {key: value for key, value in batch.items() if key not in NOT_FOR_MODELS}
    with torch.no_grad():
        return float(model(**given, shift_labels=given["labels"]).loss)


@pytest.mark.parametrize("name", MODELS)
def test_a_loader_a_collate_and_a_model(name, images, tmp_path):
    """An entry of COLLATE_FNS in a DataLoader: the loss of a batch is that of its samples, at a fixed length, too."""
    make, model_of = MODELS[name]
    processor = str(make(tmp_path / "p"))
    model = model_of(packed_family(processor, tmp_path))
    dtype = next(model.parameters()).dtype
    examples = [talk(("image", images[0])), talk(("image", images[1]), answer="Yes, and no.")]

    def batches(size, max_length):
        collate = partial(COLLATE_FNS[name], processor=processor, max_length=max_length, pixel_dtype=dtype)
        return list(DataLoader(examples, batch_size=size, collate_fn=collate))

    (both,) = batches(2, None)
    alone = batches(1, None)
    counts = [int((batch["labels"] != -100).sum()) for batch in alone]
    expected = sum(loss_of(model, batch) * count for batch, count in zip(alone, counts, strict=True)) / sum(counts)
    assert loss_of(model, both) == pytest.approx(expected, rel=1e-4)
    (fixed,) = batches(2, 2048)
    assert fixed["input_ids"].shape == (2, 2047)
    assert loss_of(model, fixed) == pytest.approx(expected, rel=1e-4)
    assert loss_of(model, both | {"labels": both["labels"].roll(1, 1)}) != pytest.approx(expected, rel=1e-3)


def test_gemma_with_an_empty_thought(images, tmp_path):
    """The model sees the thought, and is not trained on it: another loss, of as many targets."""
    processor = str(gemma4.make(tmp_path / "p"))
    model = tiny_gemma4(packed_family(processor, tmp_path))
    collates = (COLLATE_FNS["Gemma4Processor"], gemma4_prefix_collate_fn)
    plain, thinking = (fn([talk(("image", images[0]))], processor, pixel_dtype=torch.float64) for fn in collates)
    assert int((plain["labels"] != -100).sum()) == int((thinking["labels"] != -100).sum())
    assert loss_of(model, thinking) != pytest.approx(loss_of(model, plain), rel=1e-4)
