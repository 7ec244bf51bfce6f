"""What families are compared with: tensors of conversations, by transformers' own code or by a double of a processor.

Whole processors by torchvision, as users have them; their tokenizer and Pillow's backend; and of a processor that is
remote code and cannot be run here, a double of its call. Positions on three axes, by models without weights.
"""

import copy
import json
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from helpers import bare_model, run_hf
from PIL import Image, ImageOps
from processors import kimi_vl
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoePreTrainedModelForConditionalGeneration as PositionedOmni,
)

from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.families.qwen2_vl import image_config
from neatpack.pipeline.families.registry import processor_files
from neatpack.pipeline.records import Sample

Talk = list[dict[str, Any]]
Tensors = dict[str, torch.Tensor]


def three_axes(name: str, whole: Sample, family: Family, theirs: Tensors) -> np.ndarray:
    """By transformers' own arithmetic, which needs no weights. `name`: of its model; "": as the config.json says."""
    if name:
        kind = getattr(transformers, name)
        model = kind.__new__(kind)
        torch.nn.Module.__init__(model)
        model.config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=family.facts["merge_size"]))
    else:
        model = bare_model(family.source)
    grids = {key: torch.from_numpy(array) for key, array in whole.media.items() if key.endswith("_grid_thw")}
    more = {key: grid for key, grid in grids.items() if len(grid)}
    more |= {key: theirs[key] for key in ("second_per_grid_ts",) if key in theirs}
    ids, types = (torch.from_numpy(array)[None].long() for array in (whole.input_ids, whole.mm_token_type_ids))
    positions, _ = model.get_rope_index(ids, types, **more)
    return np.asarray(positions[:, 0])


def omni_axes(whole: Sample, family: Family, theirs: Tensors) -> np.ndarray:
    model = PositionedOmni.__new__(PositionedOmni)
    torch.nn.Module.__init__(model)
    token = {f"{kind}_token_id": number for kind, number in family.chat.placeholder_ids.items()}
    start = {f"{name}_start_token_id": family.chat.token_id(f"<|{name}_start|>") for name in ("vision", "audio")}
    model.config = SimpleNamespace(
        **token, **start, position_id_per_seconds=13, audio_config=SimpleNamespace(n_window=50)
    )
    model.spatial_merge_size = 2
    mask = theirs.get("feature_attention_mask")
    positions, _ = model.get_rope_index(
        theirs["input_ids"],
        image_grid_thw=theirs.get("image_grid_thw"),
        video_grid_thw=theirs.get("video_grid_thw"),
        attention_mask=torch.ones_like(theirs["input_ids"]),
        use_audio_in_video=family.video is not None and family.video.sound is not None,
        audio_seqlens=mask.sum(-1) if mask is not None else None,
        second_per_grids=theirs.get("video_second_per_grid"),
    )
    return np.asarray(positions[:, 0])


def by_torchvision(family: Family, talks: list[Talk], folder: Path) -> Iterable[Tensors]:
    tensors, name = run_hf({family.source: talks}, folder), Path(family.source).name
    for number in range(len(talks)):
        prefix = f"{name}/{number}/"
        yield {key.removeprefix(prefix): torch.from_numpy(value) for key, value in tensors.items()
               if key.startswith(prefix)}  # fmt: skip


def opened(talk: Talk) -> list[Image.Image]:
    paths = [part["path"] for turn in talk for part in turn["content"] if part["type"] == "image"]
    return [ImageOps.exif_transpose(Image.open(path)) for path in paths]


def by_pil(family: Family, talks: list[Talk], folder: Path) -> Iterable[Tensors]:
    """Qwen's: text that is expanded before it is encoded, and labels by places in it."""
    config = image_config(processor_files(family.source), ProcessorKey(processor=""), "")
    config.pop("image_processor_type", None)
    for talk in talks:
        images = opened(talk)
        processor = Qwen2VLImageProcessorPil(**copy.deepcopy(config))  # which writes into what it is given
        features = dict(processor(images=images, return_tensors="pt")) if images else {}
        text = family.chat.tokenizer.apply_chat_template(talk, tokenize=False)
        for grid in features.get("image_grid_thw", []):
            text = text.replace("<|image_pad|>", "<|hole|>" * int(grid.prod() // family.facts["merge_size"] ** 2), 1)
        text = text.replace("<|hole|>", "<|image_pad|>")
        encoded = family.chat.tokenizer(text, return_offsets_mapping=True)
        ids = torch.tensor([encoded["input_ids"]])
        # Tokens wholly between the line break of an assistant header and its <|im_end|>.
        answers = [
            found.span(1) for found in re.finditer(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", text, re.DOTALL)
        ]
        trained = [any(first <= start and end <= last for first, last in answers)
                   for start, end in encoded["offset_mapping"]]  # fmt: skip
        yield features | {
            "input_ids": ids,
            "labels": ids.where(torch.tensor([trained]), torch.tensor(-100)),
            "mm_token_type_ids": (ids == family.chat.placeholder_ids["image"]).int(),
        }


def pictures_by_pil(name: str, family: Family, talks: list[Talk], folder: Path) -> Iterable[Tensors]:
    """Of pictures alone, by this class of transformers."""
    kind, config = getattr(transformers, name), processor_files(family.source).image
    processor = kind(**{key: value for key, value in config.items() if key in kind.valid_kwargs.__annotations__})
    for talk in talks:
        images = [np.asarray(image.convert("RGB")) for image in opened(talk)]
        # A picture may be 3 pixels high, so it must be told the channels; pictures of one conversation are a list.
        out = processor([images], return_tensors="pt", input_data_format="channels_last") if images else {}
        yield {key: value for key, value in out.items() if key in family.media}  # not what it tells of the text


def by_double(family: Family, talks: list[Talk], folder: Path) -> Iterable[Tensors]:
    """Kimi-VL's: vocabulary, template and config are the real ones where ../shared is; what is doubled is the call."""
    config = json.loads((Path(family.source) / "preprocessor_config.json").read_text())
    double = kimi_vl.Double(family.chat.tokenizer, config)
    for talk in talks:
        text = family.chat.tokenizer.apply_chat_template(talk, tokenize=False)
        out = double([image.convert("RGB") for image in opened(talk)], text)
        yield {key: torch.as_tensor(value) for key, value in out.items()} | {
            "input_ids": torch.tensor([out["input_ids"]])
        }
