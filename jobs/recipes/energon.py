"""A tiny model trained through Megatron-Energon from packed shards, with exact resume.

neatpack export energon OUT
python jobs/recipes/energon.py OUT --model jobs/demo/processor --checkpoint energon.pt

Energon shuffles, shards and keeps its place; neatpack cooks its samples and makes batches. A line of JSON per step.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, stateless
from megatron.energon.errors import reraise_exception
from transformers import AutoConfig, AutoModelForImageTextToText

from neatpack import neat_packed_vlm_collater
from neatpack.loaders.energon import cook_pack


class Packs(DefaultTaskEncoder):  # type: ignore[misc]  # Energon is untyped
    cookers = [Cooker(cook_pack)]

    @stateless  # type: ignore[untyped-decorator]
    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return neat_packed_vlm_collater(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="a finished output, exported for Energon")
    parser.add_argument("--model", required=True, help="directory with a config.json; weights are random")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--checkpoint", help="saved after every step, and resumed from")
    args = parser.parse_args()
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(args.model)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa").float().train()  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # A pack that cannot be read ends the run; Energon's default logs it and goes on without it.
    workers = WorkerConfig(rank=0, world_size=1, num_workers=1, global_error_handler=reraise_exception)
    packs = get_train_dataset(
        args.out, worker_config=workers, batch_size=1, shuffle_buffer_size=8, max_samples_per_sequence=None,
        task_encoder=Packs(),
    )  # fmt: skip
    loader = get_savable_loader(packs)
    done = 0
    if args.checkpoint and Path(args.checkpoint).exists():
        saved = torch.load(args.checkpoint, weights_only=False)  # Energon's state is an object of its own
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.restore_state_rank(saved["loader"])
        done = saved["step"]
    for step, batch in zip(range(done + 1, args.steps + 1), loader, strict=False):
        labels = batch.pop("labels")  # shifted already, so they are the shift_labels, too
        inputs = {key: value for key, value in batch.items() if not key.startswith(("_", "n_"))}
        loss = model(**inputs, labels=labels, shift_labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(json.dumps({"step": step, "loss": float(loss.detach())}), flush=True)
        if args.checkpoint:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state | {"loader": loader.save_state_rank()}, f"{args.checkpoint}.part")
            os.replace(f"{args.checkpoint}.part", args.checkpoint)


if __name__ == "__main__":
    main()
