"""Mistral 3 on the demo's vocabulary: its tokens, a template in its manner, and patches of 14 merged 2 x 2."""

from pathlib import Path

from processors.common import write_processor

TOKENS = ["<s>", "</s>", "<pad>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "[SYSTEM_PROMPT]",
          "[/SYSTEM_PROMPT]"]  # fmt: skip
TEMPLATE = """\
{{- '<s>' -}}
{%- for message in messages -%}
    {%- set marks = {'user': ['[INST]', '[/INST]'], 'system': ['[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]'],
                     'assistant': ['', '</s>']}[message['role']] -%}
    {{- marks[0] -}}
    {%- if message['content'] is string -%}{{- message['content'] -}}
    {%- else -%}
        {%- for part in message['content'] -%}{{- part['text'] if part['type'] == 'text' else '[IMG]' -}}{%- endfor -%}
    {%- endif -%}
    {{- marks[1] -}}
{%- endfor -%}
"""


def make(folder: Path, *, longest_edge: int = 448, merge: int = 2) -> Path:
    """`merge` 1: Pixtral."""
    name = {"processor_class": "PixtralProcessor"}
    return write_processor(
        folder, tokens=TOKENS, template=TEMPLATE,
        preprocessor_config={**name, "image_processor_type": "PixtralImageProcessor", "patch_size": 14,
                             "size": {"longest_edge": longest_edge}},
        processor_config={**name, "patch_size": 14, "spatial_merge_size": merge},
    )  # fmt: skip


def make_pixtral(folder: Path) -> Path:
    return make(folder, longest_edge=224, merge=1)
