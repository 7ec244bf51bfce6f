"""Kimi-VL on the demo's vocabulary: its turn and media markers, and a template in its manner."""

from pathlib import Path
from typing import Any

from processors.common import write_processor

TOKENS = ["<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|media_start|>", "<|media_content|>",
          "<|media_pad|>", "<|media_end|>"]  # fmt: skip
TEMPLATE = """{%- if messages[0].role != 'system' -%}
<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>
{%- endif -%}
{%- for message in messages -%}
<|im_{{ message.role }}|>{{ message.role }}<|im_middle|>
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|media_start|>image<|media_content|><|media_pad|><|media_end|>
{%- else -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}<|im_end|>
{%- endfor -%}"""
IMAGE = {"processor_class": "KimiVLProcessor", "image_processor_type": "KimiVLImageProcessor", "patch_size": 14,
         "pad_input": True, "in_token_limit": 100, "merge_kernel_size": [2, 2],
         "image_mean": [0.48145466, 0.4578275, 0.40821073],
         "image_std": [0.26862954, 0.26130258, 0.27577711]}  # fmt: skip


def make(folder: Path, **image: Any) -> Path:
    """`image`: values of its preprocessor_config.json."""
    return write_processor(folder, tokens=TOKENS, template=TEMPLATE, preprocessor_config=IMAGE | image)
