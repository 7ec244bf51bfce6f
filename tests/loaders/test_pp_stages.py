"""A model cut into two pipeline stages, in two processes, computes what the whole model does in one.

Packs go through the packed collater, wrapped for pipeline parallelism; stage 0 takes its media where
`stage_vlm_media_for_pp` put them. Run as a script, this file is one of the two processes.
"""

import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers import DEMO_PROCESSOR
from tiny_models import tiny_model
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.microbatch import TensorChunkSpec

from neatpack import VLM_PP_MEDIA_KEY, neat_packed_vlm_collater, stage_vlm_media_for_pp, wrap_vlm_collate_for_pp
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.mrope import mrope_positions

# As many images as packs, and not one in each; equal grids, which nothing but the right order tells apart.
PACKS = [
    [[3, (4, 4), 2], [5], [2, (4, 4), 1]],
    [[9], [7]],
    [[1, (4, 4), 4]],
    [[2], [1, (2, 6), 8]],
]
TEXT_PACKS = [[[6]], [[2], [3]], [[4, 1]], [[5]]]
LENGTH = 28  # of every pack, so that all are padded

# name: schedule, microbatches, packs, whether the stages are told their shapes
CASES = {
    "gpipe-2": (ScheduleGPipe, 2, PACKS, True),
    "gpipe-4": (ScheduleGPipe, 4, PACKS, True),
    "1f1b-4": (Schedule1F1B, 4, PACKS, True),
    "shapes-inferred-2": (ScheduleGPipe, 2, PACKS, False),
    "shapes-inferred-4": (ScheduleGPipe, 4, PACKS, False),
    "text-only-2": (ScheduleGPipe, 2, TEXT_PACKS, True),
}


def pack_of(documents, rng, model_config):
    """A pack as PackedShards gives it. A document is a list of text lengths and (rows, columns) of patches."""
    ids, positions, types, grids = [], [], [], []
    for document in documents:
        own_types, own_grids = [], []
        for part in document:
            if isinstance(part, int):
                own_types += [0] * part
            else:
                own_grids.append((1, *part))
                own_types += [1] * (part[0] * part[1] // 4)
        text = rng.integers(0, 2000, len(own_types))
        ids.append(np.where(own_types, model_config.image_token_id, text))
        positions.append(mrope_positions(np.array(own_types), own_grids, merge_size=2))
        types.append(own_types)
        grids += own_grids
    lengths = torch.tensor([len(document) for document in ids])
    ids = np.concatenate(ids)
    num_patches = sum(rows * columns for _, rows, columns in grids)
    return {
        "input_ids": torch.from_numpy(ids),
        "labels": torch.from_numpy(np.where(rng.random(len(ids)) < 0.5, rng.integers(0, 2000, len(ids)), -100)),
        "position_ids": torch.from_numpy(np.concatenate(positions, axis=1)),
        "mm_token_type_ids": torch.from_numpy(np.concatenate(types)),
        "attention_mask": torch.arange(1, len(lengths) + 1).repeat_interleave(lengths),
        "seq_lens": lengths,
        "seq_lens_padded": lengths,
        "n_images": len(grids),
        "n_videos": 0,
        "pixel_values": torch.from_numpy(rng.standard_normal((num_patches, 3 * 2 * 14 * 14), dtype=np.float32)),
        "image_grid_thw": torch.tensor(grids, dtype=torch.int64).reshape(-1, 3),
    }


def packs_for(packs, model):
    rng = np.random.default_rng(0)
    return [pack_of(documents, rng, model.config) for documents in packs]


collate = partial(neat_packed_vlm_collater, max_length=LENGTH, attn_implementation="sdpa")


def loss_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


class Stage(torch.nn.Module):
    """Some of the decoder's layers; mask and positions come to each stage as they are in the batch."""

    def __init__(self, model, layers):
        super().__init__()
        self.rotary = model.model.language_model.rotary_emb
        self.layers = torch.nn.ModuleList(model.model.language_model.layers[i] for i in layers)

    def decode(self, hidden, attention_mask, position_ids):
        embeddings = self.rotary(hidden, position_ids)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=attention_mask, position_embeddings=embeddings)
        return hidden


class FirstStage(Stage):
    def __init__(self, model):
        super().__init__(model, [0])
        self.visual, self.embed = model.model.visual, model.model.language_model.embed_tokens
        self.image_token = model.config.image_token_id

    def forward(self, input_ids, attention_mask, position_ids):
        hidden = self.embed(input_ids)
        if self._vlm_pixel_values_chunks is not None:
            number, self._vlm_chunk_idx = self._vlm_chunk_idx, self._vlm_chunk_idx + 1  # type: ignore[has-type]
            pixels, grid = self._vlm_pixel_values_chunks[number], self._vlm_image_grid_hws_chunks[number]  # type: ignore[index]
            if len(grid):
                features = self.visual(pixels, grid_thw=grid).pooler_output
                places = (input_ids == self.image_token)[..., None].expand_as(hidden)
                assert places.sum() == features.numel(), "the media of another microbatch"
                hidden = hidden.masked_scatter(places, features)
        return self.decode(hidden, attention_mask, position_ids)


class LastStage(Stage):
    def __init__(self, model):
        super().__init__(model, [1])
        self.norm, self.head = model.model.language_model.norm, model.lm_head

    def forward(self, hidden, attention_mask, position_ids):
        return self.head(self.norm(self.decode(hidden, attention_mask, position_ids)))


def run_stage(rank, folder):
    """One of the two processes: every case, with its results saved."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = tiny_model("qwen2_5_vl")
    part = FirstStage(model) if rank == 0 else LastStage(model)
    results = {}
    for case, (schedule_class, n_microbatches, packs, told) in CASES.items():
        wrapped = wrap_vlm_collate_for_pp(collate, n_microbatches, family_for(str(DEMO_PROCESSOR)).media)
        batch = wrapped(packs_for(packs, model))
        shapes = []  # of a microbatch's input and output
        if told:
            rows = len(packs) // n_microbatches
            ids = torch.empty(rows, LENGTH, dtype=torch.int64)
            hidden = torch.empty(rows, LENGTH, 64, requires_grad=True)
            logits = torch.empty(rows, LENGTH, 2048, requires_grad=True)
            shapes = [ids, hidden, logits][rank : rank + 2]
        stage = PipelineStage(part, rank, 2, torch.device("cpu"), *shapes)
        schedule = schedule_class(
            stage,
            n_microbatches,
            loss_fn=loss_of,
            kwargs_chunk_spec={"attention_mask": TensorChunkSpec(0), "position_ids": TensorChunkSpec(1)},
            scale_grads=False,
        )
        pp = SimpleNamespace(info=SimpleNamespace(has_first_stage=rank == 0, stages=None if told else [stage]))
        kwargs = {"attention_mask": batch["attention_mask"], "position_ids": batch["position_ids"]}
        part.zero_grad()
        again = dict(batch)
        result = {}
        with stage_vlm_media_for_pp(pp, [part], batch):
            if rank == 0:
                schedule.step(batch["input_ids"], **kwargs)
            else:
                losses = []
                result["logits"] = schedule.step(target=batch["labels"], losses=losses, **kwargs).detach()
                result["loss"] = torch.stack(losses).sum().detach()
        # torch learns the shapes anew when training turns to evaluation.
        with stage_vlm_media_for_pp(pp, [part], again), torch.no_grad():
            arguments = {"target": batch["labels"]} if rank else {}
            evaluated = schedule.eval(*([] if rank else [batch["input_ids"]]), **arguments, **kwargs)
        if rank:
            result["evaluated"] = evaluated
        result["gradients"] = {name: p.grad.clone() for name, p in part.named_parameters() if p.grad is not None}
        results[case] = result
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def piped(launcher, folder):
    """Results of both processes, by case."""
    codes, printed = launcher.launch(Path(__file__), [folder], folder / "output")
    report = "\n".join(f"--- rank {rank}\n{text[-3000:]}" for rank, text in enumerate(printed))
    assert codes == [0, 0], f"exit codes {codes}\n{report}"
    first, last = (torch.load(folder / f"{rank}.pt") for rank in range(2))
    return {case: (first[case], last[case]) for case in CASES}


@pytest.fixture(scope="module")
def model():
    return tiny_model("qwen2_5_vl")


def whole(model, packs, **changed):
    """Logits, loss and gradients of the model in one piece, on the whole batch at once."""
    batch = collate(packs_for(packs, model)) | changed
    names = ("input_ids", "attention_mask", "position_ids", "pixel_values", "image_grid_thw")
    logits = model(**{name: batch[name] for name in names if name in batch}).logits
    loss = loss_of(logits, batch["labels"])
    model.zero_grad()
    loss.backward()
    return logits.detach(), loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def test_stages_equal_the_whole_model(launcher, tmp_path, model):
    """One test for all cases: starting two processes takes ten times as long as what they compute."""
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    for case, (first, last) in piped(launcher, tmp_path).items():
        print(case)  # shown if it fails
        packs = CASES[case][2]
        logits, loss, gradients = whole(model, packs)
        close(last["logits"], logits)
        close(last["evaluated"], logits)
        close(last["loss"], loss)
        vision = {name: g for name, g in gradients.items() if name.startswith("model.visual.") and g is not None}
        names = [name for name in first["gradients"] if name.startswith("visual.")]
        assert len(names) == len(vision)
        assert bool(names) == (packs is PACKS)
        for name in names:
            scale = vision[f"model.{name}"].abs().max().clamp(min=1)
            close(first["gradients"][name] / scale, vision[f"model.{name}"] / scale, atol=1e-4)


def test_media_are_cut_alike_for_every_mask(model):
    packs = packs_for(PACKS, model)
    assert collate(packs)["n_images_per_sample"].tolist() == [2, 0, 1, 1]
    for kind in ("sdpa", "flash_attention_2", "thd"):
        chunks = wrap_vlm_collate_for_pp(partial(collate, attn_implementation=kind), 4)(packs)[VLM_PP_MEDIA_KEY]
        for pack, pixels, grid in zip(packs, chunks["pixel_values"], chunks["image_grid_thw"], strict=True):
            assert torch.equal(pixels, pack["pixel_values"].bfloat16())
            assert torch.equal(grid, pack["image_grid_thw"])


def test_the_comparison_sees_swapped_images(model):
    logits, _, _ = whole(model, PACKS)
    pixels = collate(packs_for(PACKS, model))["pixel_values"]
    swapped = torch.cat([pixels[16:32], pixels[:16], pixels[32:]])  # the first two images, both of 4 x 4
    assert (whole(model, PACKS, pixel_values=swapped)[0] - logits).abs().max() > 1e-2


if __name__ == "__main__":
    run_stage(int(os.environ["RANK"]), sys.argv[1])
