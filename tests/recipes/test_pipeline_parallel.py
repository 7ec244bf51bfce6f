"""jobs/recipes/pipeline_parallel.py: a model in stages, in two processes, computes what it does in one.

Real classes of transformers, packs of images and videos as PackedShards gives them, torch's own schedules. Run as a
script, this file is one of the two processes.
"""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from places import DEMO_PROCESSOR, ROOT
from processors import qwen3_vl
from support.data import TinyData, clip, mixed_rows
from support.packed import eight_packs, tiny_config
from tiny_models import save_model, tiny_model, with_large_weights
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from neatpack import PackedShards, run_pack, wrap_vlm_collate_for_pp

sys.path.insert(0, str(ROOT / "jobs" / "recipes"))
import pipeline_parallel as recipe  # type: ignore[import-not-found]

pytestmark = [pytest.mark.trainer, pytest.mark.net]

PACK_SIZE = 384
KINDS = ["qwen2_5_vl", "qwen3_vl"]
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
CASES = [(kind, isolate, schedule) for kind in KINDS for isolate, schedule in
         [("positions", "gpipe"), ("positions", "1f1b"), ("mask", "1f1b"), ("varlen", "gpipe")]]  # fmt: skip


def model_of(kind, isolate):
    """Four layers: two for each stage, as many as Qwen3-VL adds pictures to here."""
    config = tiny_model(kind).config
    config.text_config.num_hidden_layers = 4
    config.text_config.layer_types = ["full_attention"] * 4
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = kind == "qwen3_vl"
    torch.manual_seed(0)
    model = with_large_weights(type(tiny_model(kind))._from_config(config, attn_implementation="sdpa"))
    if isolate == "varlen":
        model.get_decoder().config._attn_implementation = "flash_reference"
    return model


def batches(folder, kind, isolate, wrap=lambda collate: collate):
    """Two steps of four packs, of text, pictures and videos."""
    packs = PackedShards(folder / kind, rank=0, world_size=1, pixels="fp32")
    collater = packs.collater(model_of(kind, isolate), max_length=PACK_SIZE, isolate=isolate)
    return list(packs.loader(batch_size=4, collate_fn=wrap(collater)))[:2]


def gradients_of(module):
    return {name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None}


def run_stage(folder):
    """One of the two processes: losses and gradients of every case."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for kind, isolate, schedule in CASES:
        wrap = partial(wrap_vlm_collate_for_pp, n_microbatches=recipe.NUM_MICROBATCHES)
        steps = batches(folder, kind, isolate, wrap)
        pipeline = recipe.Pipeline(model_of(kind, isolate), SCHEDULES[schedule], steps[0])
        losses = [pipeline.step(batch) for batch in steps]
        pipeline.add_tied_gradients()
        results[kind, isolate, schedule] = losses, gradients_of(pipeline.part)
    torch.save(results, folder / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Packs of text, pictures and videos for both processors."""
    folder = tmp_path_factory.mktemp("stages")
    data = mixed_rows(TinyData(folder / "data"), num_text=24, num_images=12)
    for number in range(3):
        clip(data.folder / f"{number}.mp4", frames=4 + 2 * number)
        data.row([("user", "<video>What?"), ("assistant", "It is grey.")], videos=[f"{number}.mp4"])
    meta = data.write()
    processors = {"qwen2_5_vl": str(DEMO_PROCESSOR), "qwen3_vl": str(qwen3_vl.make(folder / "processor"))}
    for kind, processor in processors.items():
        run_pack(tiny_config(meta, folder / kind, processor=processor, pack_size=PACK_SIZE, video_min_pixels=4096))
    return folder


def whole(folder, kind, isolate):
    """Losses and gradients of the model in one process, each batch at once."""
    model, losses = model_of(kind, isolate), []
    for batch in batches(folder, kind, isolate):
        loss = model(**batch).loss
        loss.backward()
        losses.append(loss.item())
    return losses, gradients_of(model)


def full_name(name, rank):
    """The name in the whole model of a weight of a stage, whose layers are counted from 0."""
    inner = name.removeprefix("body.")
    if name.startswith("head."):
        return f"lm_head.{name.removeprefix('head.')}"
    if rank == 0:
        return f"model.{inner}"
    first, number, *rest = inner.split(".")
    return ".".join(["model.language_model", first, *([str(int(number) + 2)] if number.isdigit() else [number]), *rest])


def test_stages_equal_the_whole_model(launcher, folder):
    """Loss and every gradient, by GPipe and 1F1B."""
    codes, printed = launcher.launch(Path(__file__), [folder], folder / "output")
    assert codes == [0, 0], "\n".join(text[-3000:] for text in printed)
    stages = [torch.load(folder / f"{rank}.pt") for rank in range(2)]
    for kind, isolate, schedule in CASES:
        losses, gradients = whole(folder, kind, isolate)
        assert losses[0] != pytest.approx(losses[1], rel=1e-3)
        found = {}
        for rank, results in enumerate(stages):
            own_losses, own = results[kind, isolate, schedule]
            assert own_losses == pytest.approx(losses, rel=1e-5), (kind, isolate, schedule)
            found |= {full_name(name, rank): gradient for name, gradient in own.items()}
        tied = kind == "qwen3_vl"  # then the whole model has one weight for both
        assert found.keys() - ({"lm_head.weight"} if tied else set()) == gradients.keys()
        for name, gradient in found.items():
            expected = gradients["model.language_model.embed_tokens.weight" if tied and "lm_head" in name else name]
            scale = max(1.0, float(expected.abs().max()))
            assert float((gradient - expected).abs().max()) <= 1e-5 * scale, (kind, isolate, schedule, name)


def test_packs_of_the_comparison_differ_in_media(folder):
    for kind in KINDS:
        counts = [(pack["n_images"], pack["n_videos"]) for pack in PackedShards(folder / kind)]
        assert len(set(counts)) > 3 and any(videos for _, videos in counts) and len(counts) >= 8


def trained(out, folder):
    """Losses of the recipe's steps, by the whole model in one process."""
    model = recipe.load_model(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    packs = PackedShards(out, rank=0, world_size=1, pixels="fp32")
    loader, losses = packs.loader(batch_size=recipe.BATCH_SIZE, model=model), []
    while loader.epoch < 2:
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def test_recipe_trains_as_one_process_does_and_resumes(launcher, tmp_path):
    out, model = eight_packs(tmp_path), save_model(tmp_path / "model")
    options = ["--model", model, "--checkpoint", tmp_path / "checkpoint", "--epochs", "2", "--save-every", "1",
               "--lr", "3e-3"]  # fmt: skip
    losses = {}
    for kill_at in (3, 0):
        codes, printed = launcher.launch(
            ROOT / "tests" / "recipes" / "harness.py", ["pipeline_parallel", out, *options],
            tmp_path / f"output-{kill_at}", environment={"NEATPACK_KILL_AT": str(kill_at)},
        )  # fmt: skip
        assert any(codes) == bool(kill_at), "\n".join(text[-3000:] for text in printed)
        lines = [json.loads(line) for line in printed[0].splitlines() if line.startswith('{"step"')]
        assert [line["step"] for line in lines] == ([1, 2, 3] if kill_at else [4])
        losses |= {line["step"]: line["loss"] for line in lines}
    assert list(losses.values()) == pytest.approx(trained(out, model), rel=1e-5)


if __name__ == "__main__":
    run_stage(Path(sys.argv[1]))
