"""The collates with real HF processor objects, against those processors' own calls; a process of its own.

python hf_online.py FOLDER PROCESSOR...    FOLDER has a.png and b.png. Exit 3: no usable torchvision.
Prints a line of JSON per processor: its directory's name, and what is wrong with it, or null.
"""

import json
import sys
import traceback
from pathlib import Path

import torch
import with_torchvision  # noqa: F401 (first)
from PIL import Image
from transformers import AutoProcessor

from neatpack.loaders.online import (
    COLLATE_FNS,
    LengthGroupedSampler,
    PreTokenizedDatasetWrapper,
    build_labels_from_template,
    neat_pack_dataset_vlm,
)

paths = [f"{sys.argv[1]}/{name}.png" for name in "ab"]


def talk(*media):
    parts = [{"type": "image", "image": path} for path in media]
    return {"conversation": [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]},
                             {"role": "assistant", "content": [{"type": "text", "text": "It\n\nis."}]}]}  # fmt: skip


def compare(processor):
    examples = [talk(paths[0]), talk(), talk(*paths)]
    batch = COLLATE_FNS[type(processor).__name__](examples, processor)
    texts = [processor.apply_chat_template(example["conversation"], tokenize=False) for example in examples]
    images = [Image.open(path) for path in (paths[0], *paths)]
    processor.tokenizer.padding_side = "right"
    expected = processor(text=texts, images=images, padding=True, return_tensors="pt")
    for key in ("input_ids", "attention_mask"):
        assert torch.equal(batch[key], expected[key][:, :-1]), key
    # Qwen2.5-VL's own collater leaves pixels as they are, the default makes bf16 of them.
    dtype = torch.float32 if type(processor).__name__ == "Qwen2_5_VLProcessor" else torch.bfloat16
    assert torch.equal(batch["image_grid_thw"], expected["image_grid_thw"])
    assert batch["pixel_values"].dtype == dtype and torch.equal(
        batch["pixel_values"], expected["pixel_values"].to(dtype)
    )
    labels = build_labels_from_template(expected["input_ids"], [e["conversation"] for e in examples], processor)
    assert torch.equal(batch["labels"], labels[:, 1:])
    assert batch["n_images_per_sample"].tolist() == [1, 0, 2]
    samples = PreTokenizedDatasetWrapper(examples, processor)
    assert torch.equal(samples[2]["input_ids"], expected["input_ids"][2][expected["attention_mask"][2].bool()])
    packs = neat_pack_dataset_vlm(samples, 8192, ds_raw=examples, processor=processor)
    assert packs[0]["seq_lens"].tolist()[-1] > 0 and not packs.dropped
    assert sorted(LengthGroupedSampler(examples, processor=processor)) == [0, 1, 2]


for folder in sys.argv[2:]:
    wrong = None
    try:
        compare(AutoProcessor.from_pretrained(folder))
    except Exception:
        wrong = traceback.format_exc()
    print(json.dumps([Path(folder).name, wrong]))
