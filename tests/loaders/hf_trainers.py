"""Run by tests/loaders/test_hf.py in one process and in two: what HF Trainer and accelerate make of our datasets."""

import contextlib
import json
import os
import sys

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForImageTextToText, Trainer, TrainingArguments

from neatpack import PackedShards
from neatpack.errors import UserError
from neatpack.loaders.hf import IndexedPacks

out, processor, folder = sys.argv[1:]
torch.set_num_threads(1)
result: dict[str, object] = {}


def refusal(iterate) -> dict:
    """Code and fields of the error; nothing if there is none."""
    try:
        iterate()
    except UserError as error:
        return {"code": error.code} | error.fields
    return {}


config = AutoConfig.from_pretrained(processor)
model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa").float()
seen: list[int] = []
model.register_forward_pre_hook(lambda _, __, inputs: seen.append(int(inputs["input_ids"].sum())), with_kwargs=True)


def trainer(dataset, collater, **options) -> Trainer:
    settings = TrainingArguments(
        folder, num_train_epochs=2, per_device_train_batch_size=1, use_cpu=True, save_strategy="steps", report_to=[],
        save_steps=len(packs) // world_size + 1, disable_tqdm=True, **options,
    )  # fmt: skip
    return Trainer(model, settings, train_dataset=dataset, data_collator=collater)


# Trainer with its defaults, and once more from its first checkpoint, in the second epoch
world_size = int(os.environ["WORLD_SIZE"])
packs = IndexedPacks(out, pixels="fp32")
with contextlib.redirect_stdout(sys.stderr):
    trained = trainer(packs, packs.collater(model))
    trained.train()
    whole, seen[:] = list(seen), []
    resumed = trainer(IndexedPacks(out, pixels="fp32"), packs.collater(model))
    resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-{len(packs) // world_size + 1}")
steps = trained.state.global_step
result["defaults"] = {"seen": whole, "resumed": list(seen), "steps": steps, "length": len(packs)}

# Packs by index without the collater that they need, in a worker, too; and drawn at random by process 0 for all
result["no collater"] = refusal(trainer(IndexedPacks(out), None).train)
result["no collater in a worker"] = refusal(trainer(IndexedPacks(out), None, dataloader_num_workers=1).train)
if world_size == 1:  # of several, process 0 alone reads and refuses, and the others wait until it ends
    dispatching = trainer(packs, packs.collater(model), accelerator_config={"dispatch_batches": True})
    result["drawn"] = refusal(dispatching.train)

# PackedShards, which has no items by index; and a loader of it, which accelerate leaves as it is
stream = PackedShards(out, pixels="fp32")
result["trainer"] = refusal(trainer(stream, stream.collater(model)).train)
for dispatch in (True, False):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    ours = PackedShards(out, pixels="fp32").loader()
    loader = accelerator.prepare(ours)
    read = [int(batch["input_ids"].sum()) for batch in loader]
    result[f"dispatch {dispatch}"] = {"same": loader is ours, "read": read, "epoch": ours.state_dict()["epoch"]}

# Packs by index, which process 0 is to read for all
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
packs = IndexedPacks(out)
loader = accelerator.prepare(DataLoader(packs, batch_size=1, collate_fn=packs.collater()))
result["indexed"] = refusal(lambda: list(loader))

# Batches that are skipped to resume, as by HF Trainer whose get_train_dataloader gives a loader of ours
result["skipping"] = refusal(lambda: list(skip_first_batches(PackedShards(out).loader(), 1)))

# A loader that is not prepared is nobody's but ours
result["ours"] = [int(batch["input_ids"].sum()) for batch in PackedShards(out).loader()]
# In the planned order, the epochs one after the other
accelerator = Accelerator(cpu=True)
packs = IndexedPacks(out)
loader = accelerator.prepare(DataLoader(packs, batch_size=1, collate_fn=packs.collater()))
result["prepared"] = [[int(batch["input_ids"].sum()) for batch in loader] for _ in range(2)]

print(json.dumps(result), flush=True)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
