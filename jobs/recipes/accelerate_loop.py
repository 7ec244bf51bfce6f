"""accelerate: your own loop around `accelerator.prepare(model, optimizer, loader)`.

torchrun --standalone --nproc-per-node 2 jobs/recipes/accelerate_loop.py OUT --model MODEL --checkpoint folder
"""

from pathlib import Path

import torch
from accelerate import Accelerator
from common import GPU, PIXELS, arguments, load_model, report
from torch.utils.data import DataLoader

from neatpack import IndexedPacks, num_items_in_batch

args = arguments(__doc__)
accelerator = Accelerator(cpu=not GPU)
model = load_model(args.model)
packs = IndexedPacks(args.out, pixels=PIXELS)
loader = DataLoader(packs, batch_size=1, num_workers=1, collate_fn=packs.collater(model))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
step = 0
if checkpoints := sorted(Path(args.checkpoint).glob("step-*")):
    accelerator.load_state(str(checkpoints[-1]))
    step = int(checkpoints[-1].name.removeprefix("step-"))

for epoch in range(step // len(loader), args.epochs):
    loader.set_epoch(epoch)
    for batch in accelerator.skip_first_batches(loader, step - epoch * len(loader)):
        loss = model(**batch, num_items_in_batch=num_items_in_batch([batch])).loss
        accelerator.backward(loss * accelerator.num_processes)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % args.save_every == 0:
            accelerator.save_state(f"{args.checkpoint}/part")
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:  # whole or not at all
                Path(args.checkpoint, "part").rename(f"{args.checkpoint}/step-{step:06d}")
            accelerator.wait_for_everyone()
        report(step, accelerator.reduce(loss.detach()).item())
