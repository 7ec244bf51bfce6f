"""Hugging Face Trainer, unmodified.

python jobs/recipes/hf_trainer.py OUT --model MODEL
torchrun --standalone --nproc-per-node 2 jobs/recipes/hf_trainer.py OUT --model MODEL --checkpoint folder
"""

import os

from common import GPU, PIXELS, arguments, load_model
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from neatpack import IndexedPacks

args = arguments(__doc__)
training = TrainingArguments(
    args.checkpoint, num_train_epochs=args.epochs, per_device_train_batch_size=1, dataloader_num_workers=1,
    train_sampling_strategy="sequential",  # keep the order that balances the ranks; it is shuffled by (seed, epoch)
    learning_rate=args.lr, lr_scheduler_type="constant", max_grad_norm=0.0, bf16=GPU, use_cpu=not GPU,
    logging_steps=1, save_steps=args.save_every, report_to=[], disable_tqdm=True,
)  # fmt: skip
packs = IndexedPacks(args.out, pixels=PIXELS)
last = get_last_checkpoint(args.checkpoint) if os.path.isdir(args.checkpoint) else None
# Load the checkpoint's weights here: Trainer 5.22 saves those of Qwen2.5-VL under other names than it loads.
model = load_model(last or args.model)
model.accepts_loss_kwargs = True  # one mean over the tokens of all ranks; Qwen2.5-VL's default is a mean of means
trainer = Trainer(model, training, train_dataset=packs, data_collator=packs.collater(model))
trainer.train(resume_from_checkpoint=last)
