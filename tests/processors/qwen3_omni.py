"""Qwen3-Omni on the demo's vocabulary, with its own template: ChatML with sound."""

import json
from pathlib import Path

from places import DEMO_PROCESSOR

from processors.common import write_processor

TOKENS = ["<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"]
NAMED = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "audio_token": "<|audio_pad|>",
    "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>",
}  # fmt: skip
TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% for part in message.content -%}
{%- if part.type == 'text' -%}{{ part.text }}
{%- elif part.type == 'audio' -%}<|audio_start|><|audio_pad|><|audio_end|>
{%- else -%}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>
{%- endif -%}
{%- endfor -%}<|im_end|>
{% endfor %}"""
SOUND = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "hop_length": 160, "n_fft": 400,
         "sampling_rate": 16000, "dither": 0.0, "padding_value": 0.0, "return_attention_mask": True}  # fmt: skip


def make(folder: Path) -> Path:
    images = json.loads((DEMO_PROCESSOR / "preprocessor_config.json").read_text())
    images |= {"processor_class": "Qwen3OmniMoeProcessor", "patch_size": 16, "max_pixels": 200_000}
    model = {"model_type": "qwen3_omni_moe", "thinker_config": {"position_id_per_seconds": 13}}
    return write_processor(folder, tokens=TOKENS, template=TEMPLATE, named=NAMED, preprocessor_config=images | SOUND,
                           config=model)  # fmt: skip
