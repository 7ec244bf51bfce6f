"""Qwen2.5-Omni on the demo's vocabulary: the names of its tokens, its template's form, sounds of at most 10 s."""

import json
from pathlib import Path

from places import DEMO_PROCESSOR

from processors.common import write_processor

NAMED = {
    "image_token": "<|IMAGE|>", "video_token": "<|VIDEO|>", "audio_token": "<|AUDIO|>",
    "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>",
}  # fmt: skip
TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% for part in message.content -%}
{%- if part.type == 'text' -%}{{ part.text }}
{%- elif part.type == 'audio' -%}<|audio_bos|><|AUDIO|><|audio_eos|>
{%- else -%}<|vision_bos|><|{{ part.type | upper }}|><|vision_eos|>
{%- endif -%}
{%- endfor -%}<|im_end|>
{% endfor %}"""
SOUND = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "hop_length": 160, "n_fft": 400,
         "sampling_rate": 16000, "dither": 0.0, "padding_value": 0.0, "return_attention_mask": True,
         "chunk_length": 10, "n_samples": 160_000, "nb_max_frames": 1000}  # fmt: skip


def make(folder: Path) -> Path:
    images = json.loads((DEMO_PROCESSOR / "preprocessor_config.json").read_text())
    images |= {"processor_class": "Qwen2_5OmniProcessor", "max_pixels": 200_000}
    model = {"model_type": "qwen2_5_omni", "thinker_config": {"position_id_per_seconds": 25}}
    return write_processor(folder, tokens=list(NAMED.values()), template=TEMPLATE, named=NAMED,
                           preprocessor_config=images | SOUND, config=model)  # fmt: skip
