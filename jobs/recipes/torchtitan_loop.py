"""A loop like torchtitan's: a device mesh, a global batch size, micro-steps, and DCP for every state.

torchrun --standalone --nproc-per-node 2 jobs/recipes/torchtitan_loop.py OUT --model MODEL --checkpoint folder

The packs of a step are the same on one rank with two micro-steps as on two ranks with one, and so are its losses.
"""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import PIXELS, arguments, load_model, report, start, to_device
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from neatpack import PackedShards, num_items_in_batch, steps

GLOBAL_BATCH_SIZE = 2

args = arguments(__doc__)
device = start()
mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
model = fully_shard(load_model(args.model).to(device), mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
packs = PackedShards(args.out, rank=mesh["dp"].get_local_rank(), world_size=mesh["dp"].size(), pixels=PIXELS)
loader = packs.loader(batch_size=1, num_workers=1, model=model)


def state(step):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "dataloader": loader, "step": step}  # the loader is Stateful


step, checkpoints = 0, sorted(Path(args.checkpoint).glob("step-*/.metadata"))  # .metadata is written last
if checkpoints:
    dcp.load(saved := state(0), checkpoint_id=checkpoints[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    step = saved["step"]

while loader.epoch < args.epochs:
    for micro_steps in steps(loader, GLOBAL_BATCH_SIZE // mesh["dp"].size()):
        micro_steps = [to_device(batch, device) for batch in micro_steps]
        items, total = num_items_in_batch(micro_steps, mesh["dp"].get_group()), torch.zeros((), device=device)
        for batch in micro_steps:
            loss = model(**batch, num_items_in_batch=items).loss
            (loss * mesh["dp"].size()).backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        dist.all_reduce(total, group=mesh["dp"].get_group())
        if step % args.save_every == 0:
            dcp.save(state(step), checkpoint_id=f"{args.checkpoint}/step-{step:06d}")
        report(step, total.item())
dist.destroy_process_group()
