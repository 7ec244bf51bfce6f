"""A Phi-4 multimodal processor on the demo's vocabulary: its turns, and crops of 32 x 32 patches of 2 pixels."""

from pathlib import Path

from processors.common import write_processor

NAMED = {"image_token": "<|image|>", "audio_token": "<|audio|>"}
TOKENS = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext10|>", "<|endoftext11|>", *NAMED.values()]
TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|' + message['role'] + '|>' -}}
    {%- if message['content'] is string -%}
        {{- message['content'] -}}
    {%- else -%}
        {%- for part in message['content'] -%}
            {{- part['text'] if part['type'] == 'text' else '<|' + part['type'] + '|>' -}}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant|>' -}}
{%- endif -%}
"""
# The remote code's takes texts only, and ends a conversation that is not to be continued.
REMOTE_TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}
{%- endfor -%}
{{- '<|assistant|>' if add_generation_prompt else eos_token -}}
"""
IMAGES = {"size": {"height": 64, "width": 64}, "patch_size": 2, "dynamic_hd": 8}


def make(folder: Path) -> Path:
    image = {"image_processor_type": "Phi4MultimodalImageProcessor", **IMAGES}
    audio = {"feature_extractor_type": "Phi4MultimodalFeatureExtractor", "sampling_rate": 16000, "feature_size": 80}
    return write_processor(
        folder, tokens=TOKENS, template=TEMPLATE, named=NAMED,
        preprocessor_config={**image, **audio, "processor_class": "Phi4MultimodalProcessor"},
        processor_config={"processor_class": "Phi4MultimodalProcessor", "image_processor": image,
                          "audio_processor": audio},
    )  # fmt: skip


def make_remote(folder: Path) -> Path:
    """As the published repository has it: no processor of transformers loads it."""
    config = {**IMAGES, "feature_extractor_type": "Phi4MMAudioFeatureExtractor", "processor_class": "Phi4MMProcessor"}
    return write_processor(folder, tokens=TOKENS, template=REMOTE_TEMPLATE, preprocessor_config=config)
