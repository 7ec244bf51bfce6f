"""Kimi-K2.5 on the demo's vocabulary: its turn and media markers, and a template in its manner."""

from pathlib import Path
from typing import Any

from processors.common import write_processor

TOKENS = ["<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|media_begin|>", "<|media_content|>",
          "<|media_pad|>", "<|media_end|>"]  # fmt: skip
VIDEO = "<|kimi_k25_video_placeholder|>"
# Parts follow each other as they are, and a picture or video is followed by a line break.
TEMPLATE = """{%- for message in messages -%}
<|im_{{ message.role }}|>{{ message.role }}<|im_middle|>
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|media_begin|>image<|media_content|><|media_pad|><|media_end|>{{ '\\n' }}
{%- elif part.type == 'video' -%}<|kimi_k25_video_placeholder|>{{ '\\n' }}
{%- else -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}<|im_end|>
{%- endfor -%}"""
IMAGE = {"processor_class": "Kimi_K25Processor", "image_processor_type": "Kimi_K25ImageProcessor", "max_patches": 96,
         "size": {"max_height": 20, "max_width": 20}, "patch_size": 14, "merge_size": 2}  # fmt: skip
CLIP = {"processor_class": "Kimi_K25Processor", "video_processor_type": "Kimi_K25VideoProcessor", "max_patches": 24,
        "size": {"max_height": 20, "max_width": 20}, "fps": 2, "temporal_patch_size": 4}  # fmt: skip


def make(folder: Path, *, with_video_token: bool = True, **image: Any) -> Path:
    """`image`: what its preprocessor_config.json says instead."""
    tokens = TOKENS + ([VIDEO] if with_video_token else [])
    return write_processor(
        folder, tokens=tokens, template=TEMPLATE, preprocessor_config=image or IMAGE, video_preprocessor_config=CLIP,
        processor_config={"processor_class": "Kimi_K25Processor"},
    )  # fmt: skip
