"""Train a tiny Qwen2.5-VL of transformers with random weights on the demo's shards.

    python jobs/demo/train.py META OUT

The first loss is computed twice: for a pack, and for the same conversations one by one. Those are read from the data
files, and transformers computes positions, mask and shift.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from neatpack import PackedShards, PreTokenizedDatasetWrapper
from neatpack.format.members import Document
from neatpack.loaders.online.datasets import _convert_sharegpt_to_conversation

PROCESSOR = Path(__file__).parent / "processor"
STEPS = 5


def tiny_model() -> Any:
    torch.manual_seed(0)
    models: Any = AutoModelForImageTextToText  # which has no types
    return models.from_config(AutoConfig.from_pretrained(PROCESSOR)).float().train()


def conversations(meta: Path, documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    """Read the rows of a pack from the files that the meta JSON names."""
    entries = json.loads(meta.read_text())
    for document in documents:
        entry = entries[document.dataset]
        text = (meta.parent / entry["file_name"]).read_text(encoding="utf-8")
        if entry["file_name"].endswith(".json"):
            row = json.loads(text)[document.row]
        else:
            row = json.loads(text.split("\n")[document.row])
        media = str(meta.parent / entry["media_dir"])
        yield _convert_sharegpt_to_conversation(row, entry["columns"], entry["tags"], media)


@torch.no_grad()
def loss_one_by_one(model: Any, examples: list[dict[str, Any]]) -> tuple[float, int]:
    """Return the mean over all trained tokens, and their number."""
    samples = PreTokenizedDatasetWrapper(examples, str(PROCESSOR), inject_fake_images=False)
    total, trained = 0.0, 0
    for index in range(len(examples)):
        sample = samples.tokenized(index)
        inputs = {name: sample[name][None] for name in ("input_ids", "labels", "mm_token_type_ids")}
        if sample["n_images"]:
            inputs |= {"pixel_values": sample["pixel_values"].float(), "image_grid_thw": sample["image_grid_thw"]}
        number = int((sample["labels"][1:] >= 0).sum())
        total += float(model(**inputs).loss) * number
        trained += number
    return total / trained, trained


def train(meta: Path, out: Path, steps: int = STEPS) -> list[float]:
    """Train and return the loss of each step."""
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    shards = PackedShards(str(out), rank=0, world_size=1, seed=0, pixels="fp32")
    loader = shards.loader(batch_size=1, num_workers=0, model=model)
    order, losses = shards.order(), []
    for step, batch in enumerate(loader, start=1):
        loss = model(**batch).loss
        if step == 1:
            number = int(order[0])
            documents = shards.reader.read_pack(number).documents
            alone, trained = loss_one_by_one(model, list(conversations(meta, documents)))
            print(f"  pack {number}: {len(documents)} conversations, {trained:,} trained tokens")
            print(f"  loss of the pack, in one forward pass         {loss.item():.6f}")
            print(f"  loss of its conversations, one by one         {alone:.6f}")
            print(f"  difference                                    {abs(loss.item() - alone):8.1e}")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step == steps:
            break
    print(f"  loss of {steps} training steps: {' '.join(f'{loss:.3f}' for loss in losses)}", flush=True)
    return losses


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]))
