"""Megatron-Energon shards, shuffles and keeps its place; neatpack cooks its samples and makes batches of them.

neatpack export energon OUT
torchrun --standalone --nproc-per-node 2 jobs/recipes/energon_loop.py OUT --checkpoint ckpt
"""

import os
from functools import partial

import torch
import torch.distributed as dist
from common import ADAMW, arguments, report, tiny_model
from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, stateless
from megatron.energon.errors import reraise_exception
from torch.nn.parallel import DistributedDataParallel

from neatpack import PackCollater, num_items_in_batch
from neatpack.loaders.energon import cook_pack


class Packs(DefaultTaskEncoder):
    cookers = [Cooker(stateless(partial(cook_pack, pixels="fp32")))]
    batch = stateless(staticmethod(PackCollater()))


args = arguments(__doc__)
dist.init_process_group("gloo")
model = DistributedDataParallel(tiny_model(args.model))
optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
# A pack that cannot be read ends the run; Energon's default logs it and goes on without it.
workers = WorkerConfig(
    rank=dist.get_rank(), world_size=dist.get_world_size(), num_workers=1, global_error_handler=reraise_exception
)
loader = get_savable_loader(get_train_dataset(args.out, worker_config=workers, task_encoder=Packs(), batch_size=1,
                                              shuffle_buffer_size=None, max_samples_per_sequence=None))  # fmt: skip
done, mine = 0, f"{args.checkpoint}.{dist.get_rank()}"
if os.path.exists(mine):
    saved = torch.load(mine, weights_only=False)  # Energon's state is an object of its own
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.restore_state_rank(saved["data"])
    done = saved["step"]

for step, batch in zip(range(done + 1, args.steps + 1), loader, strict=False):  # it has no end
    loss = model(**batch, num_items_in_batch=num_items_in_batch([batch])).loss
    (loss * dist.get_world_size()).backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach_())
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                "data": loader.save_state_rank(), "step": step}, mine)  # fmt: skip
    report(step, loss.item())
dist.destroy_process_group()
