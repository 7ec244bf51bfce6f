"""Megatron-Energon: its loader shards, shuffles and saves its position. neatpack decodes and collates its samples.

neatpack export energon OUT
torchrun --standalone --nproc-per-node 2 jobs/recipes/energon_loop.py OUT --model MODEL --checkpoint ckpt
"""

import os
from functools import partial

import torch
import torch.distributed as dist
from common import PIXELS, arguments, load_model, report, start, to_device
from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, stateless
from megatron.energon.errors import reraise_exception
from torch.nn.parallel import DistributedDataParallel

from neatpack import PackCollater, num_items_in_batch
from neatpack.loaders.energon import cook_pack


class Packs(DefaultTaskEncoder):
    cookers = [Cooker(stateless(partial(cook_pack, pixels=PIXELS)))]
    batch = stateless(staticmethod(PackCollater()))


args = arguments(__doc__)
device = start()
model = DistributedDataParallel(load_model(args.model).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
# An unreadable pack ends the run. Energon's default is to log it and to skip it.
workers = WorkerConfig(
    rank=dist.get_rank(), world_size=dist.get_world_size(), num_workers=1, global_error_handler=reraise_exception
)
loader = get_savable_loader(get_train_dataset(args.out, worker_config=workers, task_encoder=Packs(), batch_size=1,
                                              shuffle_buffer_size=None, max_samples_per_sequence=None))  # fmt: skip
done, path = 0, f"{args.checkpoint}.{dist.get_rank()}"  # Energon has one state per rank
if os.path.exists(path):
    saved = torch.load(path, weights_only=False)  # Energon's state is an object of its own
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.restore_state_rank(saved["data"])
    done = saved["step"]

for step, batch in zip(range(done + 1, args.steps + 1), loader, strict=False):  # the loader is endless
    batch = to_device(batch, device)
    loss = model(**batch, num_items_in_batch=num_items_in_batch([batch])).loss
    (loss * dist.get_world_size()).backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach_())
    if step % args.save_every == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                    "data": loader.save_state_rank(), "step": step}, path)  # fmt: skip
    report(step, loss.item())
dist.destroy_process_group()
