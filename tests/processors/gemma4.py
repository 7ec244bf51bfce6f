"""A Gemma 4 processor on the demo's vocabulary: its special tokens, turns and classes, small pictures."""

import json
from pathlib import Path
from typing import Any

from processors.common import write_processor

NAMED = {
    "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>",
    "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>",
}  # fmt: skip
TOKENS = ["<bos>", "<eos>", "<pad>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|video|>",
          *NAMED.values()]  # fmt: skip
# As Gemma's: roles user, model and system, texts trimmed, pictures and videos between blank lines.
TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
    {{- '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' -}}
    {%- for part in message['content'] -%}
        {%- if part['type'] == 'text' -%}
            {{- part['text'] | trim -}}
        {%- elif part['type'] == 'audio' -%}
            {{- '<|audio|>' -}}
        {%- else -%}
            {{- '\\n\\n<|' + part['type'] + '|>\\n\\n' -}}
        {%- endif -%}
    {%- endfor -%}
    {{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|turn>model\\n' -}}
{%- endif -%}
"""
SLIDING_WINDOW = 24


def make(folder: Path, *, adds_bos: bool = False, **model: Any) -> Path:
    """`adds_bos`: the tokenizer writes <bos>, too; the published one does not. `model`: more of the model's config."""
    pixels = {"patch_size": 16, "pooling_kernel_size": 3, "max_soft_tokens": 70}
    write_processor(
        folder, tokens=TOKENS, template=TEMPLATE, named=NAMED,
        processor_config={
            "processor_class": "Gemma4Processor",
            "image_processor": {"image_processor_type": "Gemma4ImageProcessor", **pixels},
            "video_processor": {"video_processor_type": "Gemma4VideoProcessor", **pixels},
            "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"},
        },
        config={
            "model_type": "gemma4",
            "audio_config": {"model_type": "gemma4_audio"},
            "text_config": {"model_type": "gemma4_text", "sliding_window": SLIDING_WINDOW},
            **model,
        },
    )  # fmt: skip
    _edit(folder / "tokenizer_config.json", {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"})
    if adds_bos:
        added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        (bos,) = (token["id"] for token in added if token["content"] == "<bos>")
        begin, text = {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        known = {"<bos>": {"id": "<bos>", "ids": [bos], "tokens": ["<bos>"]}}
        pair = [begin, text, {"Sequence": {"id": "B", "type_id": 1}}]
        processor = {"type": "TemplateProcessing", "single": [begin, text], "pair": pair, "special_tokens": known}
        _edit(folder / "tokenizer.json", {"post_processor": processor})
    return folder


def _edit(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=1))
