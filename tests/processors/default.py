"""Processors that only family default serves, on the demo's vocabulary: LLaVA, and SmolVLM, which cuts into tiles."""

import json
from pathlib import Path

from processors.common import write_processor

TOKENS = ["<image>", "<|user|>", "<|bot|>", "<|eot|>"]
TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|bot|>\\n' if message['role'] == 'assistant' else '<|user|>' + message['role'] + ':\\n' -}}
    {%- for part in message['content'] -%}
        {{- part['text'] if part['type'] == 'text' else '<image>' -}}
    {%- endfor -%}
    {{- '<|eot|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|bot|>\\n' -}}
{%- endif -%}
"""


def make(folder: Path) -> Path:
    """LLaVA: pictures of 32 x 32, 16 tokens each."""
    write_processor(
        folder, tokens=TOKENS, template=TEMPLATE,
        preprocessor_config={
            "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32},
            "crop_size": {"height": 32, "width": 32},
        },
        processor_config={
            "processor_class": "LlavaProcessor", "patch_size": 8, "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1, "image_token": "<image>",
        },
    )  # fmt: skip
    return _ends_by_eot(folder)


def make_tiles(folder: Path) -> Path:
    """SmolVLM: tiles of 32 x 32 and a global one, in a batch axis of their own."""
    marks = ["<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
    marks += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    write_processor(
        folder, tokens=[*TOKENS, *marks], template=TEMPLATE,
        preprocessor_config={
            "image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 96},
            "max_image_size": {"longest_edge": 32}, "do_image_splitting": True,
        },
        processor_config={"processor_class": "Idefics3Processor", "image_seq_len": 4},
    )  # fmt: skip
    return _ends_by_eot(folder)


def _ends_by_eot(folder: Path) -> Path:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": "<|eot|>"}, indent=1))
    return folder


def make_next(folder: Path) -> Path:
    """LLaVA-NeXT: as many tiles of 32 x 32 as the shape of a picture wants, in one row of another length each."""
    write_processor(
        folder, tokens=TOKENS, template=TEMPLATE,
        preprocessor_config={
            "image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 32},
            "crop_size": {"height": 32, "width": 32}, "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64], [32, 96]],
        },
        processor_config={
            "processor_class": "LlavaNextProcessor", "patch_size": 8, "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1, "image_token": "<image>",
        },
    )  # fmt: skip
    return _ends_by_eot(folder)
