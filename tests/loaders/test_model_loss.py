"""`model(**batch).loss` of packs, with models of transformers as they are, is the loss of their documents alone.

The documents alone are what transformers trains on without packing: whole ids, labels that the model shifts, positions
and masks that it makes itself.
"""

import json
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TinyData, clip, documents_of, picture, tiny_config, tone
from processors import default, llava_onevision
from tiny_models import (
    tiny_gemma4,
    tiny_idefics3,
    tiny_internvl,
    tiny_kimi_k25,
    tiny_llava,
    tiny_llava_onevision,
    tiny_model,
    tiny_phi4_mm,
)

from neatpack import PackedShards
from neatpack.loaders.model_inputs import PackCollater
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.run import run_pack


def qwen2_vl_processor(folder: Path) -> Path:
    """The demo's, of Qwen2-VL: temporal patches of videos are one step apart, whatever the seconds."""
    import_module("processors.qwen2_vl").make(folder)
    config = folder / "preprocessor_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"processor_class": "Qwen2VLProcessor"}))
    return folder


@dataclass(frozen=True, kw_only=True)
class Case:
    family: str
    model: Any  # of a loaded family
    processor: Any = None  # makes its directory; default: that of the family's tests
    kinds: str = "image"  # of media in its packs
    chosen: tuple[tuple[str, Any], ...] = ()  # of the packing config


def qwen(kind: str) -> Any:
    return lambda _: tiny_model(kind)


SMALL = (("video_min_pixels", 1024), ("video_max_pixels", 65536), ("max_pixels", 16384))
CASES = {
    "qwen2_vl": Case(family="qwen2_vl", model=qwen("qwen2_vl"), processor=qwen2_vl_processor, kinds="image video"),
    "qwen2_5_vl": Case(family="qwen2_vl", model=qwen("qwen2_5_vl"), kinds="image video"),
    "qwen3_vl": Case(family="qwen3_vl", model=qwen("qwen3_vl"), kinds="image video"),
    "qwen3_vl_moe": Case(family="qwen3_vl", model=qwen("qwen3_vl_moe"), kinds="image video"),
    "qwen3_omni": Case(family="qwen3_omni", model=qwen("qwen3_omni"), kinds="image video audio", chosen=SMALL),
    "gemma4": Case(family="gemma4", model=tiny_gemma4, kinds="image video audio"),
    "gemma4_both_ways": Case(
        family="gemma4", model=partial(tiny_gemma4, bidirectional="vision"), kinds="image video audio"
    ),
    "kimi_k25": Case(family="kimi_k25", model=tiny_kimi_k25, kinds="image video"),
    "llava_onevision": Case(
        family="llava_onevision", model=tiny_llava_onevision, kinds="image video",
        processor=partial(llava_onevision.make, video={"num_frames": 4, "do_sample_frames": True}),
    ),
    "internvl": Case(family="internvl", model=tiny_internvl),
    "phi4_mm": Case(family="phi4_mm", model=tiny_phi4_mm),
    "phi4_mm_sounds": Case(family="phi4_mm", model=tiny_phi4_mm, kinds="audio", chosen=(("fake_image", False),)),
    "llava": Case(family="default", model=tiny_llava),
    "idefics3": Case(family="default", model=tiny_idefics3, processor=default.make_tiles),
}  # fmt: skip


def rows(data: TinyData, kinds: str) -> Path:
    """Text, and of each kind of medium one and two in a row, with answers of several lengths."""
    for number, size in enumerate([(60, 90), (120, 48), (33, 200)]):
        picture(data.folder / f"{number}.png", *size, seed=number)
        clip(data.folder / f"{number}.mp4", frames=4 + number, height=60, width=60)
        tone(data.folder / f"{number}.wav", 0.7, hertz=300 + 200 * number)
    endings = {"image": "png", "video": "mp4", "audio": "wav"}
    for kind in kinds.split():
        files = {f"{kind}s": [f"{number}.{endings[kind]}" for number in range(3)]}
        data.row([("user", f"<{kind}>What?"), ("assistant", "One.")], **{f"{kind}s": files[f"{kind}s"][:1]})
        data.row([("user", f"<{kind}>and <{kind}>?"), ("assistant", "Both of these."), ("user", f"And <{kind}>?"),
                  ("assistant", "No.")], **files)  # fmt: skip
    if kinds == "image video":
        data.row([("user", "<video>or<image>?"), ("assistant", "A film.")], videos=["1.mp4"], images=["1.png"])
    for number in (1, 8, 40):
        data.text(f"Count to {number}.", " ".join(map(str, range(1, number + 2))))
    return data.write()


@dataclass(frozen=True)
class Made:
    out: Path
    model: Any
    packs: list[dict[str, Any]]
    documents: list[dict[str, Any]]

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """Pixels and sounds as the model's numbers: some of the models are in float64."""
        numbers = {name: value.to(self.model.dtype) if torch.is_tensor(value) and value.is_floating_point() else value
                   for name, value in batch.items()}  # fmt: skip
        return self.model(**numbers).loss

    def loss_alone(self) -> tuple[float, int]:
        """The mean over the target tokens of all documents, each of which runs by itself; and how many these are."""
        counts = [int((document["labels"] != -100).sum()) for document in self.documents]
        losses = [float(self.loss(unpacked(document))) for document in self.documents]
        return sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts), sum(counts)


def unpacked(document: dict[str, Any]) -> dict[str, Any]:
    """A document before the shift: the last label is its last token."""
    batch = PackCollater()([document])
    labels = batch["labels"]
    last = labels[:, -1:].clamp(min=0)  # of -100, any token
    ours = ("position_ids", "shift_labels")
    return {name: value for name, value in batch.items() if name not in ours} | {
        "input_ids": torch.cat([batch["input_ids"], last], dim=1),
        "labels": torch.cat([torch.full_like(last, -100), labels], dim=1),
        "mm_token_type_ids": torch.nn.functional.pad(batch["mm_token_type_ids"], (0, 1)),
        "attention_mask": torch.ones(1, labels.shape[1] + 1, dtype=torch.long),
    }


@pytest.fixture(scope="module", params=CASES)
def made(request, tmp_path_factory) -> Made:
    case, folder = CASES[request.param], tmp_path_factory.mktemp(request.param)
    make = case.processor or import_module(f"processors.{case.family}").make
    processor = str(make(folder / "processor"))
    family = "default" if case.family == "default" else ""
    chosen = {"pack_size": 4096, "processor": processor, "family": family, **dict(case.chosen)}
    meta = rows(TinyData(folder / "data"), case.kinds)
    run_pack(tiny_config(meta, folder / "out", **chosen))
    (pack,) = PackedShards(folder / "out", pixels="fp32")
    assert all(pack[f"n_{kind}s"] >= 4 for kind in case.kinds.split())
    assert len(pack["seq_lens"]) == 3 + 2 * len(case.kinds.split()) + (case.kinds == "image video")
    documents = list(documents_of(folder / "out", pack))
    model = case.model(load_family(ProcessorKey(processor=processor, family=family)))
    # The first document once more, as a row that is filled up to the length of the other.
    return Made(folder / "out", model, [pack, documents[0]], [*documents, documents[0]])


@torch.no_grad()
def test_the_loss_of_packs_is_that_of_documents_alone(made):
    alone, count = made.loss_alone()
    expected = pytest.approx(alone, rel=1e-5)
    collater = PackedShards(made.out).collater(made.model)
    batch = collater(made.packs)
    assert int((batch["labels"] != -100).sum()) == count
    assert float(made.loss(batch)) == expected
    for left_out in ("shift_labels", "use_cache"):  # shifted once more; documents that see each other
        wrong = {name: value for name, value in batch.items() if name != left_out}
        assert float(made.loss(wrong)) != pytest.approx(alone, rel=1e-4), left_out
    assert float(made.loss(replace(collater, unshifted_labels=True)(made.packs))) == expected
    for way in ("mask", "positions"):
        collater = PackedShards(made.out).collater(made.model, isolate=way)
        assert float(made.loss(collater(made.packs))) == expected, way
