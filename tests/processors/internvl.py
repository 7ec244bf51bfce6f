"""InternVL on the demo's vocabulary, with tiles of 56 x 56 and four tokens each."""

from pathlib import Path
from typing import Any

from processors.common import write_processor

NAMED = {
    "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}  # fmt: skip
TEMPLATE = """\
{%- set marks = {'image': '<IMG_CONTEXT>', 'video': '<video>'} -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- for part in message['content'] -%}
        {{- part['text'] if part['type'] == 'text' else marks[part['type']] + '\\n' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
"""
SIDE = 56
PIXELS = {"size": {"height": SIDE, "width": SIDE}, "image_mean": [0.485, 0.456, 0.406],
          "image_std": [0.229, 0.224, 0.225]}  # fmt: skip


def make(folder: Path, *, video: dict[str, Any] | None = None, **image: Any) -> Path:
    name = {"processor_class": "InternVLProcessor"}
    return write_processor(
        folder, tokens=list(NAMED.values()), template=TEMPLATE, named=NAMED,
        preprocessor_config={**name, "image_processor_type": "GotOcr2ImageProcessor", "max_patches": 6, **PIXELS,
                             **image},
        video_preprocessor_config={**name, "video_processor_type": "InternVLVideoProcessor", **PIXELS,
                                   **(video or {})},
        processor_config={**name, "image_seq_length": 4},
    )  # fmt: skip


def make_sampled(folder: Path) -> Path:
    """Four frames of any video."""
    return make(folder, video={"do_sample_frames": True, "num_frames": 4})
