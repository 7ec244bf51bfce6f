"""A tiny model trained from packed shards by DDP: the whole loop, with exact resume.

torchrun --standalone --nproc-per-node 2 jobs/train_tiny.py OUT --model jobs/demo/processor --checkpoint ckpt.pt

Runs on CPUs (gloo). Started again with the same --checkpoint it goes on where it was saved, with any number of ranks.
Prints a line of JSON per step: step, epoch, loss, and the packs that each rank trained on.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForImageTextToText

from neatpack import PackedShards, neat_packed_vlm_collater

MODEL_KEYS = ("input_ids", "attention_mask", "position_ids", "mm_token_type_ids", "pixel_values", "image_grid_thw")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="a finished output of neatpack")
    parser.add_argument("--model", required=True, help="directory with a config.json; weights are random")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--checkpoint", help="saved after every step, and resumed from")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(args)
    finally:
        dist.destroy_process_group()


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(args.model)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    ddp = DistributedDataParallel(model.float().train(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    dataset = PackedShards(args.out, seed=0, pixels="fp32")
    step = 0
    if args.checkpoint and Path(args.checkpoint).exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["data"])
        step = saved["step"]

    for state, packs, batch in batches(dataset, args.num_workers):
        if step == args.steps:
            break
        step += 1
        loss = train_step(ddp, optimizer, batch)
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, packs)
        if dist.get_rank() == 0:
            print(json.dumps({"step": step, "epoch": state["epoch"], "loss": loss, "packs": everyone}), flush=True)
            if args.checkpoint:
                save(args.checkpoint, model, optimizer, state, step)


def batches(dataset: PackedShards, num_workers: int) -> Iterator[tuple[dict[str, int], list[int], dict[str, Any]]]:
    """Epoch after epoch: the loader's state after a batch is trained, its pack numbers, and the batch."""
    while True:
        loader = DataLoader(dataset, batch_size=1, num_workers=num_workers, collate_fn=with_numbers)
        for count, (packs, batch) in enumerate(loader, 1):
            # Counted here, where batches are trained, and not in the workers, which read ahead.
            yield dataset.state_at(count), packs, batch
        dataset.set_epoch(dataset.epoch + 1)


def with_numbers(packs: list[dict[str, Any]]) -> tuple[list[int], dict[str, Any]]:
    return [pack["pack"] for pack in packs], neat_packed_vlm_collater(packs)


def train_step(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, batch: dict[str, Any]) -> float:
    """One update; the loss is the mean over the target tokens of all ranks, as if they were one batch."""
    logits = ddp(**{key: batch[key] for key in MODEL_KEYS if key in batch}).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
    totals = torch.tensor([float(loss), float((batch["labels"] != -100).sum())], dtype=torch.float64)
    dist.all_reduce(totals)
    optimizer.zero_grad()
    # DDP averages over ranks: undo that.
    (loss * (dist.get_world_size() / totals[1])).float().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(totals[0] / totals[1])


def save(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, int], step: int) -> None:
    """Whole or not at all: a kill while saving leaves the checkpoint before."""
    part = f"{path}.part"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": state, "step": step}, part)
    os.replace(part, path)


if __name__ == "__main__":
    main()
