"""A tiny model trained from packed shards on NeMo Automodel's contract, with its loss and its forward's filter.

torchrun --standalone --nproc-per-node 2 jobs/recipes/nemo_automodel.py OUT --model jobs/demo/processor

As in its VLM recipe: labels are taken out of the batch before the forward, and the loss is a sum over the label tokens
of all ranks and micro-batches of a step, divided by their number. A line of JSON per step.
"""

import argparse
import json
import sys
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.sort(key=lambda path: Path(path).resolve() == Path(__file__).resolve().parent)  # last: this has NeMo's name

import torch
import torch.distributed as dist
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.components.loss.utils import calculate_loss
from nemo_automodel.components.utils.model_utils import filter_forward_kwargs
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForImageTextToText

from neatpack import PackedShards, neat_packed_vlm_collater


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="a finished output of neatpack")
    parser.add_argument("--model", required=True, help="directory with a config.json; weights are random")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--micro-batches", type=int, default=2, help="of one pack each, in a step of a rank")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(args.model)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    ddp = DistributedDataParallel(model.float().train(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    # Its sampler wants numbered samples; ours are dealt out already, balanced over the ranks.
    loader = iter(DataLoader(PackedShards(args.out), collate_fn=neat_packed_vlm_collater))
    for step in range(1, args.steps + 1):
        if not (batches := list(islice(loader, args.micro_batches))):
            break
        metrics = train_step(ddp, optimizer, batches)
        if dist.get_rank() == 0:
            print(json.dumps({"step": step, **metrics}), flush=True)
    dist.destroy_process_group()


def train_step(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, batches: list[dict[str, Any]]
) -> dict[str, float]:
    """One update: its loss, how many label tokens that is the mean of, and the norm of the gradients."""
    count = torch.tensor(sum(int((batch["labels"] != -100).sum()) for batch in batches))
    dist.all_reduce(count)
    total = torch.zeros(())
    for number, batch in enumerate(batches, 1):
        labels = batch.pop("labels")
        with ddp.no_sync() if number < len(batches) else nullcontext():
            logits = ddp(**filter_forward_kwargs(ddp.module, batch)).logits
            loss = calculate_loss(MaskedCrossEntropy(), logits=logits, labels=labels, num_label_tokens=int(count))
            (loss * dist.get_world_size()).backward()  # DDP averages over ranks: undo that
        total += loss.detach()
    dist.all_reduce(total)
    norm = torch.nn.utils.clip_grad_norm_(ddp.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": float(total), "num_label_tokens": int(count), "grad_norm": float(norm)}


if __name__ == "__main__":
    main()
