"""Idefics3 on the demo's vocabulary: SmolVLM's template, tiles of 32 x 32 and four tokens each.

Doubles (and those of smolvlm.py): published files are not at hand.
"""

import json
from pathlib import Path
from typing import Any

from processors.common import write_processor

PLACES = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
TOKENS = ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *PLACES]
TEMPLATE = """\
{{- '<|im_start|>' -}}
{%- for message in messages -%}
    {{- message['role'] | capitalize -}}
    {{- ':' if message['content'][0]['type'] == 'image' else ': ' -}}
    {%- for part in message['content'] -%}{{- part['text'] if part['type'] == 'text' else '<image>' -}}{%- endfor -%}
    {{- '<end_of_utterance>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}
"""


def make(folder: Path, model: str = "Idefics3", **image: Any) -> Path:
    name = {"processor_class": f"{model}Processor"}
    write_processor(
        folder, tokens=TOKENS, template=TEMPLATE,
        preprocessor_config={**name, "image_processor_type": f"{model}ImageProcessor", "size": {"longest_edge": 96},
                             "max_image_size": {"longest_edge": 32}, "do_image_splitting": True, **image},
        processor_config={**name, "image_seq_len": 4},
    )  # fmt: skip
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": "<end_of_utterance>"}, indent=1))
    return folder


def make_uneven(folder: Path) -> Path:
    """A longer side that is odd, and so no multiple of a tile."""
    return make(folder, size={"longest_edge": 151})


def make_whole(folder: Path) -> Path:
    return make(folder, do_image_splitting=False)
