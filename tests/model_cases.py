"""A model of transformers and a processor for each family, and rows with media for it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from processors import default, glm4v, llava_onevision, mistral3, smolvlm
from support.data import TinyData, clip, picture, tone
from tiny_models import (
    tiny_gemma3,
    tiny_gemma4,
    tiny_glm4v,
    tiny_idefics3,
    tiny_internvl,
    tiny_kimi_k25,
    tiny_llava,
    tiny_llava_onevision,
    tiny_mistral3,
    tiny_model,
    tiny_phi4_mm,
)

from neatpack.loaders.mended import mend


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
    sizes: tuple[tuple[int, int], ...] = ((60, 90), (120, 48), (33, 200))  # of its pictures
    chosen: tuple[tuple[str, Any], ...] = ()  # of the packing config


def qwen(kind: str) -> Any:
    return lambda _: tiny_model(kind)


# A crop of Phi-4 has 1024 patches, however small its pixels. One, one and two crops, all with padding, and not two, two
# and four.
FEW_CROPS = ((60, 40), (33, 64), (120, 48))
SMALL = (("video_min_pixels", 1024), ("video_max_pixels", 65536), ("max_pixels", 16384))
CASES = {
    "qwen2_vl": Case(family="qwen2_vl", model=qwen("qwen2_vl"), processor=qwen2_vl_processor, kinds="image video"),
    "qwen2_5_vl": Case(family="qwen2_vl", model=qwen("qwen2_5_vl"), kinds="image video"),
    "qwen3_vl": Case(family="qwen3_vl", model=qwen("qwen3_vl"), kinds="image video"),
    "qwen3_vl_moe": Case(family="qwen3_vl", model=qwen("qwen3_vl_moe"), kinds="image video"),
    "qwen3_omni": Case(family="qwen3_omni", model=qwen("qwen3_omni"), kinds="image video audio", chosen=SMALL),
    "qwen2_5_omni": Case(family="qwen2_5_omni", model=qwen("qwen2_5_omni"), kinds="image video audio", chosen=SMALL),
    "gemma3": Case(family="gemma3", model=tiny_gemma3),
    "gemma4": Case(family="gemma4", model=tiny_gemma4, kinds="image video audio", chosen=(("video_max_frames", 2),)),
    "gemma4_both_ways": Case(
        family="gemma4", model=partial(tiny_gemma4, bidirectional="vision"), kinds="image video audio",
        chosen=(("video_max_frames", 2),),
    ),
    "glm4v": Case(family="glm4v", model=tiny_glm4v, kinds="image video"),
    "glm4v_moe": Case(family="glm4v", model=partial(tiny_glm4v, kind="Glm4vMoe"), kinds="image video"),
    "glm46v": Case(
        family="glm4v", model=partial(tiny_glm4v, kind="Glm46V"), kinds="image video", processor=glm4v.make_46
    ),
    "kimi_k25": Case(family="kimi_k25", model=tiny_kimi_k25, kinds="image video"),
    "llava_onevision": Case(
        family="llava_onevision", model=tiny_llava_onevision, kinds="image video",
        processor=partial(llava_onevision.make, video={"num_frames": 4, "do_sample_frames": True}),
    ),
    "llava_onevision_frames": Case(  # videos of 4, 5 and 6 frames
        family="llava_onevision", model=lambda family: mend(tiny_llava_onevision(family)), kinds="image video",
    ),
    "internvl": Case(family="internvl", model=tiny_internvl, kinds="image video"),
    "mistral3": Case(family="mistral3", model=tiny_mistral3),
    "ministral3": Case(family="mistral3", model=partial(tiny_mistral3, text="ministral3")),
    "pixtral": Case(
        family="mistral3", model=partial(tiny_mistral3, kind="Llava"), processor=mistral3.make_pixtral
    ),
    "phi4_mm": Case(family="phi4_mm", model=tiny_phi4_mm, sizes=FEW_CROPS),
    "phi4_mm_sounds": Case(family="phi4_mm", model=tiny_phi4_mm, kinds="audio", chosen=(("fake_image", False),)),
    "phi4_mm_both": Case(  # pictures, sounds, and a document with both
        family="phi4_mm", model=lambda family: mend(tiny_phi4_mm(family)), kinds="image audio", sizes=FEW_CROPS,
    ),
    "llava": Case(family="default", model=tiny_llava),
    "idefics3": Case(family="idefics3", model=tiny_idefics3),
    "smolvlm": Case(
        family="smolvlm", model=partial(tiny_idefics3, kind="SmolVLM"), kinds="image video",
        processor=smolvlm.make_all_frames,
    ),
    "idefics3_by_default": Case(family="default", model=tiny_idefics3, processor=default.make_tiles),
}  # fmt: skip


def rows(data: TinyData, kinds: str, sizes: Iterable[tuple[int, int]]) -> Path:
    """Text, and of each kind of medium one and two in a row, with answers of several lengths."""
    for number, size in enumerate(sizes):
        picture(data.folder / f"{number}.png", *size, seed=number)
        clip(data.folder / f"{number}.mp4", frames=4 + number, height=60, width=60)
        tone(data.folder / f"{number}.wav", 0.7, hertz=300 + 200 * number)
    endings = {"image": "png", "video": "mp4", "audio": "wav"}
    for kind in kinds.split():
        files = {f"{kind}s": [f"{number}.{endings[kind]}" for number in range(3)]}
        data.row([("user", f"<{kind}>What?"), ("assistant", "One.")], **{f"{kind}s": files[f"{kind}s"][:1]})
        data.row([("user", f"<{kind}>and <{kind}>?"), ("assistant", "Both of these."), ("user", f"And <{kind}>?"),
                  ("assistant", "No.")], **files)  # fmt: skip
    if len(kinds.split()) == 2:
        _, kind = kinds.split()
        both = {"images": ["1.png"], f"{kind}s": [f"1.{endings[kind]}"]}
        data.row([("user", f"<{kind}>or<image>?"), ("assistant", "A film.")], **both)
    for number in (1, 8, 40):
        data.text(f"Count to {number}.", " ".join(map(str, range(1, number + 2))))
    return data.write()
