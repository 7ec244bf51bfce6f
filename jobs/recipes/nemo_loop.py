"""NeMo Automodel's contract, with its own loss and its own filter of what a forward takes.

torchrun --standalone --nproc-per-node 2 jobs/recipes/nemo_loop.py OUT --checkpoint ckpt.pt

As its VLM recipe does: labels, which are shifted already, are taken out before the forward, and the loss is a sum over
the label tokens of all ranks and micro-batches of a step, divided by their number.
"""

import torch
import torch.distributed as dist
from common import ADAMW, arguments, report, resumed, save, tiny_model
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.components.loss.utils import calculate_loss
from nemo_automodel.components.utils.model_utils import filter_forward_kwargs
from torch.nn.parallel import DistributedDataParallel

from neatpack import PackedShards, neat_packed_vlm_collater, num_items_in_batch

args = arguments(__doc__)
dist.init_process_group("gloo")
model = DistributedDataParallel(tiny_model(args.model))
optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
loader = PackedShards(args.out, pixels="fp32").loader(num_workers=1, collate_fn=neat_packed_vlm_collater)
parts = {"model": model.module, "optimizer": optimizer, "data": loader}
step = resumed(args.checkpoint, **parts)

while loader.epoch < args.epochs:
    for batch in loader:
        items, labels = int(num_items_in_batch([batch])), batch.pop("labels")
        logits = model(**filter_forward_kwargs(model.module, batch)).logits
        loss = calculate_loss(MaskedCrossEntropy(), logits=logits, labels=labels, num_label_tokens=items)
        (loss * dist.get_world_size()).backward()  # DDP averages over the ranks, and parts are added up
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        dist.all_reduce(loss.detach_())
        save(args.checkpoint, step, **parts)
        report(step, loss.item())
dist.destroy_process_group()
