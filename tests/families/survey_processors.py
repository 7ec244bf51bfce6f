"""Every processor of text and pictures in transformers, made of its class's defaults, through family default.

python survey_processors.py [CLASS …] [--declare]: prints {class: "" where it works, else why not}.

Exit 3: no usable torchvision. The tokenizer is the demo's with the tokens that processors ask for; the template writes
what the processor calls its image token.
"""

import inspect
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import with_torchvision  # noqa: F401 (first)
from helpers import DEMO_PROCESSOR, asked, picture
from PIL import Image
from transformers import AutoTokenizer

from neatpack.pipeline.families.base import ProcessorFiles, ProcessorKey
from neatpack.pipeline.families.default import Default, as_numbers
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.records import Skip
from neatpack.pipeline.render.sample import render_whole

# What the classes have no defaults for.
SETTINGS = {"patch_size": 14, "num_image_tokens": 729, "vision_feature_select_strategy": "full", "image_seq_length": 16,
            "downsample_factor": 2, "num_additional_image_tokens": 0}  # fmt: skip
TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- for part in message['content'] -%}{{- part['text'] if part['type'] == 'text' else 'PICTURE' -}}{%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
"""


def made(kind: type, parts: dict[str, Any]) -> Any:
    """A processor, its tokenizer given every token that the class asks for, or has a name for."""
    tokenizer, parameters = (
        AutoTokenizer.from_pretrained(str(DEMO_PROCESSOR)),
        inspect.signature(kind).parameters,
    )
    settings = {name: value for name, value in SETTINGS.items() if name in parameters}
    for _ in range(40):
        try:
            processor = kind(tokenizer=tokenizer, **parts, **settings)
            break
        except AttributeError as error:
            missing = re.search(r"has no attribute '?(\w+?_token)(_id)?'?$", str(error))
            if missing is None:
                raise
            know(tokenizer, f"<{missing[1]}>")
            setattr(tokenizer, missing[1], f"<{missing[1]}>")
            setattr(tokenizer, f"{missing[1]}_id", tokenizer.convert_tokens_to_ids(f"<{missing[1]}>"))
    know(tokenizer, *(token for name, token in vars(processor).items() if name.endswith("_token") and token))
    return kind(tokenizer=tokenizer, **parts, **settings)


def know(tokenizer: Any, *tokens: Any) -> None:
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [str(token) for token in tokens]}, replace_extra_special_tokens=False
    )


def part_of(kind: str, model: str) -> Any:
    """An image processor, video processor or feature extractor of a model, by its class's defaults."""
    auto = {"image_processor": "image_processing_auto", "video_processor": "video_processing_auto",
            "feature_extractor": "feature_extraction_auto", "audio_processor": "feature_extraction_auto"}  # fmt: skip
    table = {"image_processor": "IMAGE_PROCESSOR_MAPPING_NAMES", "video_processor": "VIDEO_PROCESSOR_MAPPING_NAMES"}
    names = getattr(
        import_module(f"transformers.models.auto.{auto[kind]}"), table.get(kind, "FEATURE_EXTRACTOR_MAPPING_NAMES")
    )[model]
    if isinstance(names, dict):
        names = names.get("torchvision") or next(iter(names.values()))
    name = next(filter(None, reversed(names))) if isinstance(names, tuple | list) else names
    return getattr(import_module("transformers"), name)()


def survey(model: str, kind: type, folder: Path) -> str:
    parameters = inspect.signature(kind).parameters
    parts = {name: part_of(name, model) for name in parameters
             if name in ("image_processor", "video_processor", "feature_extractor", "audio_processor")}  # fmt: skip
    processor = made(kind, parts)
    token = getattr(processor, "image_token", None) or "<image>"
    processor.chat_template = TEMPLATE.replace("PICTURE", str(token))
    files = ProcessorFiles(source=kind.__name__, class_name=kind.__name__, tokenizer=processor.tokenizer, image={},
                           video={}, audio={}, processor={}, model={}, loaded=processor)  # fmt: skip
    family = Default.load(files, ProcessorKey(processor=kind.__name__, family="default"))
    paths = [str(picture(folder / f"{size[0]}.png", *size)) for size in ((250, 330), (400, 240))]
    images = [{"type": "image", "image": path} for path in paths]
    for parts_of_turn in ([], images[:1], images):
        messages = asked(*parts_of_turn)
        (measured,) = measure([from_conversation({"conversation": messages})], family)
        if isinstance(measured, Skip):
            return f"{measured.reason}: {measured.detail}"
        whole = render_whole(measured, family, "torch")
        opened = [turn | {"content": [part | ({"image": Image.open(part["image"])} if "image" in part else {})
                                      for part in turn["content"]]} for turn in messages]  # fmt: skip
        out = processor.apply_chat_template(opened, tokenize=True, return_dict=True, return_tensors="pt")
        if whole.input_ids.tolist() != out["input_ids"][0].tolist():
            return "other ids than the processor's"
        for name, array in family.media.items():
            if name in out and len(parts_of_turn):
                theirs = as_numbers(out[name])
                theirs = theirs[0] if array.deliver.batch_axis else theirs
                if not np.array_equal(whole.media[name], theirs):
                    return f"{name} differs from the processor's"
    return ""


def main() -> None:
    named = import_module("transformers.models.auto.processing_auto").PROCESSOR_MAPPING_NAMES
    found: dict[str, str] = {}
    chosen = [argument for argument in sys.argv[1:] if argument != "--declare"]
    with TemporaryDirectory() as folder:
        for model, name in sorted(named.items(), key=lambda pair: (pair[1], pair[0])):
            kind = getattr(import_module("transformers"), name, None)
            if kind is None or "image_processor" not in inspect.signature(kind).parameters:
                continue
            if chosen and name not in chosen:
                continue
            if "tokenizer" not in inspect.signature(kind).parameters or found.get(name) == "":
                continue
            try:
                found[name] = survey(model, kind, Path(folder))
            except Exception as error:  # whatever a class says of its own defaults is what the table says
                found[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(name, found[name] or "works", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
