"""Gemma 3 on the demo's vocabulary, a double (published files are not at hand): squares of 32 pixels."""

from pathlib import Path

from processors.common import write_processor

SIDE, TOKENS_OF_A_PICTURE, SLIDING_WINDOW = 32, 4, 12
NAMED = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
TOKENS = ["<bos>", "<start_of_turn>", "<end_of_turn>", *NAMED.values()]
TEMPLATE = """\
{{- '<bos>' -}}
{%- set prefix = '' -%}
{%- set turns = messages -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- set turns = messages[1:] -%}
{%- endif -%}
{%- for message in turns -%}
    {{- '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' -}}
    {{- prefix if loop.first else '' -}}
    {%- for part in message['content'] -%}
        {{- part['text'] | trim if part['type'] == 'text' else '<start_of_image>' -}}
    {%- endfor -%}
    {{- '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""


def make(folder: Path, *, with_model: bool = True) -> Path:
    name = {"processor_class": "Gemma3Processor"}
    model = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "sliding_window": SLIDING_WINDOW}}
    return write_processor(
        folder, tokens=TOKENS, template=TEMPLATE, named=NAMED,
        preprocessor_config={**name, "image_processor_type": "Gemma3ImageProcessor",
                             "size": {"height": SIDE, "width": SIDE}},
        processor_config={**name, "image_seq_length": TOKENS_OF_A_PICTURE},
        **({"config": model} if with_model else {}),
    )  # fmt: skip
