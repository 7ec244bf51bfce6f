"""TRL: SFTTrainer, as it is. It takes data sets of `datasets` alone: it is made with one row, and given the packs then.

torchrun --standalone --nproc-per-node 2 jobs/recipes/trl_sft.py OUT --checkpoint folder
"""

import os

from common import ADAMW, arguments, noting, report, tiny_model
from datasets import Dataset
from transformers import AutoModelForImageTextToText, AutoTokenizer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from neatpack.loaders.hf import IndexedPacks


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs, **_):
        self.loss = logs.get("loss")

    def on_save(self, args, state, control, **_):
        report(state.global_step, self.loss)


args = arguments(__doc__)
training = SFTConfig(
    args.checkpoint, num_train_epochs=args.epochs, per_device_train_batch_size=1, dataloader_num_workers=1,
    train_sampling_strategy="sequential",  # the order that balances the ranks, shuffled by (seed, epoch)
    learning_rate=ADAMW["lr"], max_grad_norm=0.0, lr_scheduler_type="constant",
    logging_steps=1, save_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, bf16=False,
)  # fmt: skip
packs = IndexedPacks(args.out, pixels="fp32")
last = get_last_checkpoint(args.checkpoint) if os.path.isdir(args.checkpoint) else None
# The weights, too: Trainer saves those of Qwen2.5-VL under other names than it reads them by, and only warns.
model = noting(AutoModelForImageTextToText.from_pretrained(last)) if last else tiny_model(args.model)
model.accepts_loss_kwargs = True  # one mean over the tokens of all ranks; Qwen2.5-VL says False: a mean of means
trainer = SFTTrainer(
    model, training, train_dataset=Dataset.from_dict({"input_ids": [[1]], "labels": [[1]]}),
    data_collator=packs.collater(model), processing_class=AutoTokenizer.from_pretrained(args.model),
    callbacks=[Report()],
)  # fmt: skip
trainer.train_dataset = packs
trainer.train(resume_from_checkpoint=last)
