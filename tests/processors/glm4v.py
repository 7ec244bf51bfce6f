"""GLM-4.1V on the demo's vocabulary: its role and media tokens, a template in its manner, and small pictures."""

from pathlib import Path
from typing import Any

from processors.common import write_processor

MARKS = ["<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"]
TOKENS = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", *MARKS]
NAMED = {"image_token": "<|image|>", "video_token": "<|video|>"}
TEMPLATE = """\
[gMASK]<sop>
{%- for message in messages -%}
    {{- '<|' + message['role'] + '|>\\n' -}}
    {%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}
    {%- for part in message['content'] -%}
        {%- if part['type'] == 'text' -%}{{- part['text'] -}}
        {%- else -%}{{- '<|begin_of_' + part['type'] + '|><|' + part['type'] + '|><|end_of_' + part['type'] + '|>' -}}
        {%- endif -%}
    {%- endfor -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
"""
PIXELS = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
          "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}  # fmt: skip


def make(folder: Path, version: str = "4v", **video: Any) -> Path:
    """`version`: 4v or 46V, whose frames and times differ; `video`: values of its video_preprocessor_config.json."""
    name = {"processor_class": f"Glm{version}Processor"}
    return write_processor(
        folder, tokens=[*TOKENS, *NAMED.values()], template=TEMPLATE, named=NAMED,
        preprocessor_config={**name, "image_processor_type": f"Glm{version}ImageProcessor", **PIXELS,
                             "size": {"shortest_edge": 2 * 28 * 28, "longest_edge": 2 * 200 * 28 * 28}},
        video_preprocessor_config={**name, "video_processor_type": f"Glm{version}VideoProcessor", **PIXELS,
                                   "size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 200 * 28 * 28}, **video},
    )  # fmt: skip


def make_46(folder: Path) -> Path:
    return make(folder, "46V")
