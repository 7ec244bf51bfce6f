"""Plain torch: DistributedDataParallel.

torchrun --standalone --nproc-per-node 2 jobs/recipes/ddp.py OUT --model MODEL --checkpoint ckpt.pt
"""

import torch
import torch.distributed as dist
from common import PIXELS, arguments, load_model, report, resume, save, start, to_device
from torch.nn.parallel import DistributedDataParallel

from neatpack import PackedShards, num_items_in_batch

args = arguments(__doc__)
device = start()
model = DistributedDataParallel(load_model(args.model).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
loader = PackedShards(args.out, pixels=PIXELS).loader(batch_size=1, num_workers=1, model=model.module)
parts = {"model": model.module, "optimizer": optimizer, "data": loader}
step = resume(args.checkpoint, **parts)

while loader.epoch < args.epochs:
    for batch in loader:
        batch = to_device(batch, device)
        loss = model(**batch, num_items_in_batch=num_items_in_batch([batch])).loss  # this rank's part of the mean
        (loss * dist.get_world_size()).backward()  # DDP averages over the ranks, and the parts are added up
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        dist.all_reduce(loss.detach_())
        if step % args.save_every == 0:
            save(args.checkpoint, step, **parts)
        report(step, loss.item())
dist.destroy_process_group()
