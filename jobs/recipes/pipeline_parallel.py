"""Pipeline parallelism: torch.distributed.pipelining, a Qwen-VL model in as many stages as there are ranks.

torchrun --standalone --nproc-per-node 2 jobs/recipes/pipeline_parallel.py OUT --model MODEL --checkpoint folder

Every rank reads the same packs: the first stage takes tokens and media, the last one labels, and all of them positions.
"""

from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import PIXELS, arguments, load_model, report, start, to_device
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from neatpack import PackedShards, get_kwargs_chunk_spec, stage_vlm_media_for_pp, wrap_vlm_collate_for_pp

BATCH_SIZE, NUM_MICROBATCHES = 4, 2
MEDIA = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw")
# What every stage needs, as torch sends only activations from stage to stage. A collater makes some of these.
KWARGS = ("position_ids", "attention_mask", "use_cache", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q",
          "max_length_k")  # fmt: skip


class Stage(torch.nn.Module):
    """Some layers of the decoder: the first stage has the vision tower and embeddings, too, the last one the head."""

    def __init__(self, model, number, num_stages):
        super().__init__()
        text = model.model.language_model
        first, last = (len(text.layers) * n // num_stages for n in (number, number + 1))
        text.layers = text.layers[first:last]
        self.is_first, is_last = number == 0, number == num_stages - 1
        levels = len(getattr(model.config.vision_config, "deepstack_visual_indexes", ()))
        if self.is_first and levels > last:
            raise ValueError(f"Qwen3-VL adds pictures to its first {levels} layers; the first stage has only {last}")
        self.body = model.model if self.is_first else text
        if not is_last:
            text.norm = torch.nn.Identity()
        if not self.is_first:
            del text.embed_tokens
        self.head = model.lm_head if is_last else torch.nn.Identity()
        self._vlm_chunk_idx: int | None = None  # stage_vlm_media_for_pp sets it

    def forward(self, inputs, **kwargs):
        name = "input_ids" if self.is_first else "inputs_embeds"
        media = self.take_media() if self.is_first else {}
        return self.head(self.body(**{name: inputs}, **kwargs, **media).last_hidden_state)

    def take_media(self):
        """Media of the next microbatch, where stage_vlm_media_for_pp has put them; none in batches without media."""
        if self._vlm_chunk_idx is None:
            return {}
        number, self._vlm_chunk_idx = self._vlm_chunk_idx, self._vlm_chunk_idx + 1
        chunks = {name: getattr(self, f"_vlm_{name}_chunks") for name in MEDIA}
        return {name: rows[number] for name, rows in chunks.items() if rows is not None and len(rows[number])}


class Pipeline:
    """The stage of this rank and its schedule."""

    def __init__(self, model, make_schedule, example):
        rank, self.size = dist.get_rank(), dist.get_world_size()
        weights = [model.get_input_embeddings().weight, model.lm_head.weight]
        self.ends = dist.new_group([0, self.size - 1])
        self.part = Stage(model, rank, self.size)
        own = weights[:1] * (rank == 0) + weights[1:] * (rank == self.size - 1)
        self.tied = own if weights[0] is weights[1] and self.size > 1 else []
        stage = PipelineStage(self.part, rank, self.size, weights[0].device)
        self.schedule = make_schedule(
            stage, NUM_MICROBATCHES, loss_fn=self.loss_of, kwargs_chunk_spec=get_kwargs_chunk_spec(kwargs_of(example)),
            scale_grads=False,
        )  # fmt: skip
        self.pp = SimpleNamespace(info=SimpleNamespace(has_first_stage=rank == 0, stages=[stage]))
        self.is_last, self.num_items = rank == self.size - 1, 1

    def loss_of(self, logits, labels):
        """This microbatch's part of the mean over the tokens of the step. Labels are shifted already."""
        total = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        return total / self.num_items

    def step(self, batch):
        """Add the gradients of a batch to the parameters of `part`, and return its loss, on every rank."""
        self.num_items = (batch["labels"] != -100).sum()
        inputs = [batch["input_ids"]] * self.pp.info.has_first_stage
        losses: list[torch.Tensor] = []
        wanted = {"target": batch["labels"], "losses": losses} if self.is_last else {}
        with stage_vlm_media_for_pp(self.pp, [self.part], batch):
            self.schedule.step(*inputs, **wanted, **kwargs_of(batch))
        loss = torch.stack(losses).sum().detach() if self.is_last else torch.zeros((), device=batch["labels"].device)
        dist.broadcast(loss, src=self.size - 1)
        return loss.item()

    def add_tied_gradients(self):
        """Before the optimizer's step: tied embeddings are in the first stage, and as the head in the last one."""
        for weight in self.tied:
            dist.all_reduce(weight.grad, group=self.ends)


def kwargs_of(batch):
    return {name: batch[name] for name in KWARGS if name in batch}


def main():
    args = arguments(__doc__)
    device = start()
    model = load_model(args.model).to(device)
    # All stages are of one data-parallel rank. Activations have one shape, and so have the rows of all batches.
    packs = PackedShards(args.out, rank=0, world_size=1, pixels=PIXELS)
    collater = packs.collater(model, max_length=packs.reader.manifest.identity.config["pack_size"])
    collate = wrap_vlm_collate_for_pp(collater, NUM_MICROBATCHES)
    loader = packs.loader(batch_size=BATCH_SIZE, num_workers=1, collate_fn=collate)
    pipeline = Pipeline(model, Schedule1F1B, to_device(collate([packs.pack(0)] * BATCH_SIZE), device))
    part = pipeline.part
    optimizer = torch.optim.AdamW(part.parameters(), lr=args.lr, weight_decay=0.0)

    def state(step):
        weights, moments = get_state_dict(part, optimizer)
        return {f"stage-{dist.get_rank()}": {"model": weights, "optimizer": moments}, "data": loader, "step": step}

    step, checkpoints = 0, sorted(Path(args.checkpoint).glob("step-*/.metadata"))  # .metadata is written last
    if checkpoints:
        dcp.load(saved := state(0), checkpoint_id=checkpoints[-1].parent)
        own = saved[f"stage-{dist.get_rank()}"]
        set_state_dict(part, optimizer, model_state_dict=own["model"], optim_state_dict=own["optimizer"])
        step = saved["step"]

    while loader.epoch < args.epochs:
        for batch in loader:
            loss = pipeline.step(to_device(batch, device))
            pipeline.add_tied_gradients()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % args.save_every == 0:
                dcp.save(state(step), checkpoint_id=f"{args.checkpoint}/step-{step:06d}")
            report(step, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
