"""Lightning: `Trainer.fit` with the loader as it is. Lightning saves and loads its state with every checkpoint.

python jobs/recipes/lightning_fit.py OUT --checkpoint folder
"""

from pathlib import Path

import lightning as L
import torch
from common import ADAMW, arguments, report, tiny_model
from lightning.pytorch.callbacks import ModelCheckpoint

from neatpack import PackedShards, num_items_in_batch


class Tiny(L.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch):
        loss = self.model(**batch, num_items_in_batch=num_items_in_batch([batch])).loss
        self.last = self.all_gather(loss.detach()).sum().item()
        return loss * self.trainer.world_size

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), **ADAMW)


class Save(ModelCheckpoint):
    def on_train_batch_end(self, trainer, module, *rest):
        super().on_train_batch_end(trainer, module, *rest)
        report(trainer.global_step, module.last)


args = arguments(__doc__)
model = tiny_model(args.model)
loader = PackedShards(args.out, pixels="fp32").loader(batch_size=1, num_workers=1, model=model)
last = max(Path(args.checkpoint).glob("*.ckpt"), default=None, key=lambda path: path.stat().st_mtime)
trainer = L.Trainer(
    accelerator="cpu", strategy="ddp", devices=2, max_epochs=args.epochs, logger=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[Save(args.checkpoint, every_n_train_steps=1)],
)  # fmt: skip
trainer.fit(Tiny(model), loader, ckpt_path=last)
