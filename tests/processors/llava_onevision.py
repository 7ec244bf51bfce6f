"""LLaVA-OneVision on the demo's vocabulary, with tiles of 42 x 42: its template, and nine tokens to a tile."""

from pathlib import Path
from typing import Any

from processors.common import write_processor

TEMPLATE = """{%- for message in messages -%}
{{ '<|im_start|>' + message.role + ' ' }}
{%- for kind in ('image', 'video') -%}
{%- for part in message.content if part.type == kind -%}<{{ kind }}>{%- endfor -%}
{%- endfor -%}
{%- for part in message.content if part.type == 'text' -%}{{ '\\n' + part.text }}{%- endfor -%}
<|im_end|>
{%- endfor -%}"""
SIDE = 42
PIXELS = {"size": {"height": SIDE, "width": SIDE}, "image_mean": [0.48145466, 0.4578275, 0.40821073],
          "image_std": [0.26862954, 0.26130258, 0.27577711], "resample": 3, "rescale_factor": 1 / 255}  # fmt: skip
PINPOINTS = [[SIDE * rows, SIDE * columns] for rows in range(1, 5) for columns in range(1, 5)]


def make(folder: Path, *, video: dict[str, Any] | None = None, **processor: Any) -> Path:
    """`video`: values of its video_preprocessor_config.json; `processor`: of its processor_config.json."""
    name = {"processor_class": "LlavaOnevisionProcessor"}
    images = {**name, "image_processor_type": "LlavaOnevisionImageProcessor", **PIXELS}
    images["image_grid_pinpoints"] = PINPOINTS
    videos = {**name, "video_processor_type": "LlavaOnevisionVideoProcessor", **PIXELS, **(video or {})}
    # 3 x 3 patches of 14 to a tile
    counts = {"num_image_tokens": 9, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_4"}
    return write_processor(
        folder, tokens=["<image>", "<video>"], template=TEMPLATE,
        named={"image_token": "<image>", "video_token": "<video>"}, preprocessor_config=images,
        video_preprocessor_config=videos, processor_config={**name, **counts, **processor},
    )  # fmt: skip
