"""Packed training equals unpacked training: logits, loss and gradients of a pack are those of its documents alone.

The documents alone run as transformers runs them: plain causal attention, positions from the model's own
get_rope_index. Packs come from the pipeline, through shards and loader.
"""

import json
import shutil

import pytest
import torch
from places import DEMO_PROCESSOR
from support.data import TinyData, clip, mixed_rows, picture
from support.packed import tiny_config
from tiny_models import tiny_model

from neatpack import PackedShards, neat_packed_vlm_collater, run_pack

pytestmark = pytest.mark.net

FAMILIES = {"qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl"}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Outputs by (family, alignment): text, one and several images per row, and text-only packs with the fake image."""
    folder = tmp_path_factory.mktemp("equivalence")
    data = mixed_rows(TinyData(folder / "data"), num_text=20, num_images=8)
    names = ["20.png", "23.png", "26.png"]
    data.row([("user", "<image><image>Which?"), ("assistant", "Both."), ("user", "And <image>?"), ("assistant", "No.")],
             images=names)  # fmt: skip
    meta = data.write()
    made = {}
    for family in ("qwen2_vl", "qwen3_vl"):
        for align in (1, 8):
            out = folder / f"{family}-{align}"
            run_pack(tiny_config(meta, out, family=family, align=align, processor=str(DEMO_PROCESSOR)))
            made[family, align] = out
    return made


MODEL_KEYS = ("input_ids", "attention_mask", "position_ids", "mm_token_type_ids", "pixel_values", "image_grid_thw")


def model_inputs(batch):
    return {key: batch[key] for key in MODEL_KEYS if key in batch}


def documents_of(pack):
    """Each document as a batch of its own, with no positions and no mask: the model makes them."""
    start = image = patch = 0
    for length, padded in zip(pack["seq_lens"].tolist(), pack["seq_lens_padded"].tolist(), strict=True):
        inside = slice(start, start + length)
        document = {key: pack[key][inside].long()[None] for key in ("input_ids", "labels", "mm_token_type_ids")}
        num_tokens, grids = int(document["mm_token_type_ids"].sum()), []
        while sum(int(grid.prod()) // 4 for grid in grids) < num_tokens:  # type: ignore[misc]
            grids.append(pack["image_grid_thw"][image])
            image += 1
        if grids:
            document["image_grid_thw"] = torch.stack(grids)
            num_patches = int(document["image_grid_thw"].prod(1).sum())
            document["pixel_values"] = pack["pixel_values"][patch : patch + num_patches]
            patch += num_patches
        yield inside, document
        start += padded


def loss_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")


def largest_difference(model, pack, batch):
    logits = model(**model_inputs(batch)).logits
    assert torch.isfinite(logits).all()
    worst = 0.0
    for inside, document in documents_of(pack):
        alone = model(**model_inputs(document)).logits
        worst = max(worst, float((logits[:, inside] - alone).abs().max()))
    return worst


@pytest.mark.parametrize("align", [1, 8])
@pytest.mark.parametrize("kind", FAMILIES)
@torch.no_grad()
def test_logits_of_every_document(kind, align, outputs):
    model = tiny_model(kind)
    packs = list(PackedShards(outputs[FAMILIES[kind], align], pixels="fp32"))
    assert any(pack["n_images"] > 2 for pack in packs), "several images in a pack"
    assert any(pack["input_ids"][-1] == model.config.vision_end_token_id or align > 1 for pack in packs), "a fake image"
    for pack in packs:
        assert largest_difference(model, pack, neat_packed_vlm_collater([pack])) < 1e-5
    # and in a batch of several packs, padded to one length
    batch = neat_packed_vlm_collater(packs[:3], max_length=600)
    logits = model(**model_inputs(batch)).logits
    for row, pack in enumerate(packs[:3]):
        for inside, document in documents_of(pack):
            assert (logits[row, inside] - model(**model_inputs(document)).logits[0]).abs().max() < 1e-5


@pytest.mark.parametrize("align", [1, 8])
@pytest.mark.parametrize("kind", FAMILIES)
def test_loss_and_gradients(kind, align, outputs):
    model = tiny_model(kind)
    for pack in list(PackedShards(outputs[FAMILIES[kind], align], pixels="fp32"))[:4]:
        batch = neat_packed_vlm_collater([pack])
        packed_loss = loss_of(model(**model_inputs(batch)).logits, batch["labels"])
        alone_loss = sum(loss_of(model(**model_inputs(d)).logits, d["labels"]) for _, d in documents_of(pack))
        assert torch.allclose(packed_loss, alone_loss, rtol=1e-5)
        # Of the summed loss too. In float32 a loss of 3,600 has steps of 2.4e-4, so 1e-4 can only be relative there.
        parameters = [p for p in model.parameters() if p.requires_grad]
        sums = [torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
                for loss in (packed_loss, alone_loss)]  # fmt: skip
        for ours, theirs in zip(*sums, strict=True):
            assert ours is None or float((ours - theirs).norm()) <= 1e-4 * float(theirs.norm())
        packed_loss = packed_loss / batch["labels"].ne(-100).sum()
        alone_loss = alone_loss / batch["labels"].ne(-100).sum()
        parameters = [p for p in model.parameters() if p.requires_grad]
        packed, alone = (torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (packed_loss, alone_loss))
        assert any(g is not None and float(g.abs().max()) > 1e-3 for g in packed)
        for ours, theirs in zip(packed, alone, strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or float((ours - theirs).abs().max()) < 1e-4


@pytest.mark.parametrize("kind", FAMILIES)
@torch.no_grad()
def test_the_comparison_sees_what_is_broken(kind, outputs):
    """A wrong mask, wrong positions, wrong order of pixels: each makes the logits differ."""
    model = tiny_model(kind)
    packs = list(PackedShards(outputs[FAMILIES[kind], 1], pixels="fp32"))
    pack = next(p for p in packs if p["n_images"] and len(p["seq_lens"]) > 1)
    good = neat_packed_vlm_collater([pack])
    assert largest_difference(model, pack, good) < 1e-5
    causal = torch.ones_like(good["attention_mask"]).tril()
    flat = torch.arange(good["input_ids"].shape[1]).expand(3, 1, -1)
    reversed_pixels = good["pixel_values"].flip(0)
    for key, wrong in (("attention_mask", causal), ("position_ids", flat), ("pixel_values", reversed_pixels)):
        assert largest_difference(model, pack, {**good, key: wrong}) > 1e-3, key


@pytest.mark.parametrize("kind", FAMILIES)
@torch.no_grad()
def test_logits_with_videos(kind, tmp_path):
    """Pictures and videos of several documents in one pack."""
    for number, frames in enumerate((4, 9, 6)):
        clip(tmp_path / f"{number}.mp4", frames=frames)
    picture(tmp_path / "p.png", 60, 90)
    ask = [{"role": "user", "content": "<video>?"}, {"role": "assistant", "content": "Yes."}]
    both = [
        {"role": "user", "content": "<image>and<video><video>?"},
        {"role": "assistant", "content": "No, not at all."},
    ]
    rows = [
        {"messages": ask, "videos": ["0.mp4"]},
        {"messages": both, "videos": ["1.mp4", "2.mp4"], "images": "p.png"},
        {"messages": ask, "videos": ["2.mp4"]},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "meta.json").write_text(json.dumps({"v": {"file_name": "rows.jsonl", "media_dir": "."}}))
    family = FAMILIES[kind]
    out = tmp_path / "out"
    # Whether temporal patches are seconds apart (2.5) or not (2) is told by the processor's class.
    processor = shutil.copytree(DEMO_PROCESSOR, tmp_path / "processor")
    if kind == "qwen2_vl":
        config = (processor / "preprocessor_config.json").read_text()
        (processor / "preprocessor_config.json").write_text(config.replace("Qwen2_5_VLProcessor", "Qwen2VLProcessor"))
    chosen = {"family": family, "processor": str(processor), "pack_size": 2048, "video_fps": 2.0}
    run_pack(tiny_config(tmp_path / "meta.json", out, **chosen))
    (pack,) = PackedShards(out, pixels="fp32")
    model = tiny_model(kind)
    keys = (*MODEL_KEYS, "pixel_values_videos", "video_grid_thw")
    batch = neat_packed_vlm_collater([pack])
    logits = model(**{key: batch[key] for key in keys if key in batch}).logits
    start = image = video = patch = frame = 0
    images, videos = [0, 1, 0], [1, 2, 1]
    for length, num_images, num_videos in zip(pack["seq_lens"].tolist(), images, videos, strict=True):
        inside = slice(start, start + length)
        grids = pack["image_grid_thw"][image : image + num_images]
        clips = pack["video_grid_thw"][video : video + num_videos]
        patches, frames = int(grids.prod(1).sum()), int(clips.prod(1).sum())
        alone = {key: pack[key][inside].long()[None] for key in ("input_ids", "mm_token_type_ids")}
        alone |= {"video_grid_thw": clips, "pixel_values_videos": pack["pixel_values_videos"][frame : frame + frames]}
        if num_images:
            alone |= {"image_grid_thw": grids, "pixel_values": pack["pixel_values"][patch : patch + patches]}
        if kind == "qwen2_5_vl":
            alone["second_per_grid_ts"] = pack["second_per_grid_ts"][video : video + num_videos]
        assert (logits[:, inside] - model(**alone).logits).abs().max() < 1e-5
        start, image, video = start + length, image + num_images, video + num_videos
        patch, frame = patch + patches, frame + frames
