"""The collates of Kimi K2.5, Phi-4 and Qwen3-Omni against the documented steps, done by hand with the real processors.

python transcribed.py PROCESSORS FOLDER    FOLDER has a.png, b.png and a.wav. Exit 3: no usable torchvision.

The steps: conversations through the chat template, the processor's own call, placeholders expanded where that is left
to the collater, rows padded, labels built from the answers, the shift. A process of its own: see with_torchvision.py.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import with_torchvision  # noqa: F401 (first)
from helpers import decoded_sound
from PIL import Image
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoProcessor

from neatpack.loaders.online import COLLATE_FNS, build_labels, build_labels_from_template

processors, folder = Path(sys.argv[1]), Path(sys.argv[2])
picture_paths = [str(folder / f"{name}.png") for name in "ab"]
pictures = [Image.open(path).convert("RGB") for path in picture_paths]
sound = decoded_sound(folder / "a.wav")


def talk(*media, answer="It\n\nis so."):
    parts = [{"type": kind, kind: value} for kind, value in media]
    return {"conversation": [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]},
                             {"role": "assistant", "content": [{"type": "text", "text": answer}]}]}  # fmt: skip


def shifted(batch, labels):
    """Labels one to the left, everything of the shape of input_ids without its last token."""
    shape = batch["input_ids"].shape
    return {
        **{key: value[:, :-1] if value.shape == shape else value for key, value in batch.items()},
        "labels": labels[:, 1:],
    }


def same(found, expected, *keys):
    for key in keys:
        assert found[key].shape == expected[key].shape, (key, found[key].shape, expected[key].shape)
        assert found[key].dtype == expected[key].dtype or key.endswith("mask"), (key, found[key].dtype)
        assert torch.equal(found[key], expected[key].to(found[key].dtype)), key


def said(labels, tokenizer):
    return [tokenizer.decode(row[row != -100]) for row in labels]


def kimi_k25():
    """One placeholder per image, expanded to (h // 2) * (w // 2) of them, and rows of max_length tokens."""
    processor = AutoProcessor.from_pretrained(processors / "kimi-k2.5")
    examples = [talk(("image", picture_paths[0])), talk(), talk(("image", picture_paths[1]), answer="Yes.")]
    conversations = [example["conversation"] for example in examples]
    token = processor.tokenizer.convert_tokens_to_ids("<|media_pad|>")
    rows, pixels, grids = [], [], []
    for conversation, seen in zip(conversations, ([pictures[0]], [], [pictures[1]]), strict=True):
        text = processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=False)
        ids = processor.tokenizer(text, return_tensors="pt")["input_ids"][0]
        assert int((ids == token).sum()) == len(seen)
        if seen:
            made = processor.image_processor(images=seen, return_tensors="pt")
            (_, height, width) = made["image_grid_thw"][0].tolist()
            at = int((ids == token).nonzero()[0])
            ids = torch.cat([ids[:at], torch.full(((height // 2) * (width // 2),), token), ids[at + 1 :]])
            pixels.append(made["pixel_values"])
            grids.append(made["image_grid_thw"])
            whole = processor(text=text, images=seen, return_tensors="pt")
            assert torch.equal(whole["input_ids"][0], ids), "as the processor expands it, too"
        rows.append(ids)
    for max_length in (None, 1500):
        length = max_length or max(map(len, rows))
        batch = {
            "input_ids": torch.full((3, length), processor.tokenizer.pad_token_id),
            "attention_mask": torch.zeros(3, length, dtype=torch.long),
        }
        for number, ids in enumerate(rows):
            batch["input_ids"][number, : len(ids)] = ids
            batch["attention_mask"][number, : len(ids)] = 1
        batch |= {"pixel_values": torch.cat(pixels), "grid_thws": torch.cat(grids)}
        batch |= {"image_grid_hws": batch["grid_thws"][:, 1:], "n_images_per_sample": torch.tensor([1, 0, 1])}
        expected = shifted(batch, build_labels_from_template(batch["input_ids"], conversations, processor))
        found = COLLATE_FNS[type(processor).__name__](examples, processor, max_length=max_length)
        same(found, expected, *expected)
        # The template writes an empty <think></think> before an answer, which is trained on; the rest is as by search.
        searched = shifted(batch, build_labels(batch["input_ids"], conversations, processor))["labels"]
        trained = searched != -100
        assert torch.equal(found["labels"][trained], searched[trained])
        more = found["labels"].masked_fill(trained, -100)
        assert {words.strip() for words in said(more, processor.tokenizer)} <= {"<think></think>", ""}


def phi4():
    """Sounds and pictures; the turn's end is trained on, too, which a search for the answer does not find."""
    processor = AutoProcessor.from_pretrained(processors / "phi4-mm")
    end = processor.tokenizer.convert_tokens_to_ids("<|end|>")
    heard = [talk(("audio", (sound, 16_000))), talk(("audio", (sound[:9000], 16_000)), answer="Yes.")]
    seen = [talk(("image", picture_paths[0])), talk(("image", picture_paths[1]), answer="Yes.")]
    media: tuple[dict[str, Any], ...] = ({"audio": [sound, sound[:9000]]}, {"images": pictures})
    keys = (
        ("audio_input_features", "audio_embed_sizes"),
        ("image_pixel_values", "image_sizes", "image_attention_mask"),
    )
    for examples, given, arrays, mode in zip((heard, seen), media, keys, (2, 1), strict=True):
        conversations = [example["conversation"] for example in examples]
        texts = [processor.tokenizer.apply_chat_template(turns, tokenize=False) for turns in conversations]
        batch = dict(processor(text=texts, padding=True, padding_side="right", return_tensors="pt", **given))
        labels = build_labels(batch["input_ids"], conversations, processor)
        for row, ids in zip(labels, batch["input_ids"], strict=True):
            last = int((row != -100).nonzero()[-1]) + 1
            row[last] = ids[last] if ids[last] == end else row[last]
        if mode == 2:
            # Of each sound alone, and zeros behind it: in a batch the extractor lets the padding into the last frames.
            alone = [
                processor.audio_processor(heard, sampling_rate=16_000, return_tensors="pt") for heard in given["audio"]
            ]
            features = [one["audio_input_features"][0] for one in alone]
            batch["audio_input_features"] = pad_sequence(features, batch_first=True)
        expected = shifted(batch, labels)
        found = COLLATE_FNS[type(processor).__name__](examples, processor)
        same(found, expected, "input_ids", "attention_mask", "labels", *arrays)
        assert found["input_mode"] == mode
        assert said(found["labels"], processor.tokenizer) == ["It\n\nis so.<|end|>", "Yes.<|end|>"]
        columns = [{**talk(answer=answer), "audio": {"array": samples, "sampling_rate": 16_000}}
                   for answer, samples in (("It\n\nis so.", sound), ("Yes.", sound[:9000]))]  # fmt: skip
        if mode == 2:
            same(COLLATE_FNS[type(processor).__name__](columns, processor), expected, "input_ids", "labels", *arrays)


def omni():
    processor = AutoProcessor.from_pretrained(processors / "qwen3-omni")
    examples = [talk(("image", picture_paths[0]), ("audio", (sound, 16_000))), talk(),
                talk(("image", picture_paths[1]), answer="Yes.")]  # fmt: skip
    conversations = [example["conversation"] for example in examples]
    texts = [
        processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=False) for turns in conversations
    ]
    batch = dict(
        processor(
            text=texts, images=pictures, audio=[sound], padding=True, padding_side="right", return_tensors="pt"
        )
    )  # fmt: skip
    expected = shifted(batch, build_labels_from_template(batch["input_ids"], conversations, processor))
    found = COLLATE_FNS[type(processor).__name__](examples, processor)
    same(found, expected, "input_ids", "attention_mask", "labels", "pixel_values", "image_grid_thw")
    frames = found["input_features"].shape[-1]
    assert torch.equal(found["input_features"], expected["input_features"][..., :frames])
    assert int(found["feature_attention_mask"].sum()) == int(expected["feature_attention_mask"].sum())
    assert found["n_images_per_sample"].tolist() == [1, 0, 1]
    by_search = shifted(batch, build_labels(batch["input_ids"], conversations, processor))["labels"]
    assert torch.equal(found["labels"], by_search)


for check in (kimi_k25, phi4, omni):
    check()
    print(check.__name__, "equal")
