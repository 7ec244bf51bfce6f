"""Plain torch: DistributedDataParallel.

torchrun --standalone --nproc-per-node 2 jobs/recipes/ddp.py OUT --checkpoint ckpt.pt
"""

import torch
import torch.distributed as dist
from common import ADAMW, arguments, report, resumed, save, tiny_model
from torch.nn.parallel import DistributedDataParallel

from neatpack import PackedShards, num_items_in_batch

args = arguments(__doc__)
dist.init_process_group("gloo")
model = DistributedDataParallel(tiny_model(args.model))
optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
loader = PackedShards(args.out, pixels="fp32").loader(batch_size=1, num_workers=1, model=model.module)
parts = {"model": model.module, "optimizer": optimizer, "data": loader}
step = resumed(args.checkpoint, **parts)

while loader.epoch < args.epochs:
    for batch in loader:
        loss = model(**batch, num_items_in_batch=num_items_in_batch([batch])).loss  # this rank's part of the mean
        (loss * dist.get_world_size()).backward()  # DDP averages over the ranks, and parts are added up
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        dist.all_reduce(loss.detach_())
        save(args.checkpoint, step, **parts)
        report(step, loss.item())
dist.destroy_process_group()
