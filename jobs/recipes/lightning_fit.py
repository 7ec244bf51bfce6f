"""Lightning: `Trainer.fit` with our loader. Lightning saves and loads its state with every checkpoint.

torchrun --standalone --nproc-per-node 2 jobs/recipes/lightning_fit.py OUT --model MODEL --checkpoint folder
"""

import os
from pathlib import Path

import lightning as L
import torch
from common import PIXELS, arguments, load_model, report
from lightning.pytorch.callbacks import ModelCheckpoint

from neatpack import PackedShards, num_items_in_batch


class Module(L.LightningModule):
    def __init__(self, model, lr):
        super().__init__()
        self.model, self.lr = model, lr

    def training_step(self, batch):
        loss = self.model(**batch, num_items_in_batch=num_items_in_batch([batch])).loss  # this rank's part of the mean
        self.last = self.all_gather(loss.detach()).sum().item()
        return loss * self.trainer.world_size  # DDP averages over the ranks, and the parts are added up

    def on_train_batch_end(self, *_):
        report(self.trainer.global_step, self.last)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.0)


args = arguments(__doc__)
model = load_model(args.model)
loader = PackedShards(args.out, pixels=PIXELS).loader(batch_size=1, num_workers=1, model=model)
last = max(Path(args.checkpoint).glob("*.ckpt"), default=None, key=lambda path: path.stat().st_mtime)
trainer = L.Trainer(
    strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), max_epochs=args.epochs, logger=False,
    enable_progress_bar=False, enable_model_summary=False,
    callbacks=[ModelCheckpoint(args.checkpoint, every_n_train_steps=args.save_every)],
)  # fmt: skip
trainer.fit(Module(model, args.lr), loader, ckpt_path=last)
