"""FSDP2 (fully_shard), with torch.distributed.checkpoint: a run may resume with another number of ranks.

torchrun --standalone --nproc-per-node 2 jobs/recipes/fsdp2.py OUT --model MODEL --checkpoint folder
"""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import PIXELS, arguments, load_model, report, start, to_device
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from neatpack import PackedShards, num_items_in_batch

args = arguments(__doc__)
device = start()
model = load_model(args.model).to(device)
mesh = init_device_mesh(device.type, (dist.get_world_size(),))
for layer in model.model.language_model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
loader = PackedShards(args.out, pixels=PIXELS).loader(batch_size=1, num_workers=1, model=model)
step, checkpoints = 0, sorted(Path(args.checkpoint).glob("step-*/.metadata"))  # .metadata is written last
if checkpoints:
    weights, moments = get_state_dict(model, optimizer)
    saved = {"model": weights, "optimizer": moments, "data": loader.state_dict(), "step": 0}
    dcp.load(saved, checkpoint_id=checkpoints[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    loader.load_state_dict(saved["data"])
    step = saved["step"]

while loader.epoch < args.epochs:
    for batch in loader:
        batch = to_device(batch, device)
        loss = model(**batch, num_items_in_batch=num_items_in_batch([batch])).loss
        (loss * dist.get_world_size()).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        dist.all_reduce(loss.detach_())
        if step % args.save_every == 0:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "data": loader.state_dict(), "step": step}
            dcp.save(state, checkpoint_id=f"{args.checkpoint}/step-{step:06d}")
        report(step, loss.item())
dist.destroy_process_group()
