"""NeMo Automodel's contract, with its own loss and its own filter of forward arguments.

torchrun --standalone --nproc-per-node 2 jobs/recipes/nemo_loop.py OUT --model MODEL --checkpoint ckpt.pt

Like its VLM recipe, this takes the shifted labels out of the batch before the forward pass. The loss is a sum over the
label tokens of all ranks and micro-batches of a step, divided by their number.
"""

import torch
import torch.distributed as dist
from common import PIXELS, arguments, load_model, report, resume, save, start, to_device
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.components.loss.utils import calculate_loss
from nemo_automodel.components.utils.model_utils import filter_forward_kwargs
from torch.nn.parallel import DistributedDataParallel

from neatpack import PackedShards, neat_packed_vlm_collater, num_items_in_batch

args = arguments(__doc__)
device = start()
model = DistributedDataParallel(load_model(args.model).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
loader = PackedShards(args.out, pixels=PIXELS).loader(num_workers=1, collate_fn=neat_packed_vlm_collater)
parts = {"model": model.module, "optimizer": optimizer, "data": loader}
step = resume(args.checkpoint, **parts)

while loader.epoch < args.epochs:
    for batch in loader:
        batch = to_device(batch, device)
        items, labels = int(num_items_in_batch([batch])), batch.pop("labels")
        logits = model(**filter_forward_kwargs(model.module, batch)).logits
        loss = calculate_loss(MaskedCrossEntropy(), logits=logits, labels=labels, num_label_tokens=items)
        (loss * dist.get_world_size()).backward()  # DDP averages over the ranks, and the parts are added up
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        dist.all_reduce(loss.detach_())
        if step % args.save_every == 0:
            save(args.checkpoint, step, **parts)
        report(step, loss.item())
dist.destroy_process_group()
