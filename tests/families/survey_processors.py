"""Every processor of text and pictures in transformers, made of its class's defaults, through family default.

python survey_processors.py [CLASS …]: prints {class: {"image": …, "video": …}}, each "u8" or "floats", as
they are stored, or why they do not work; "": there are none. Behind it, what videos are refused: "alone" (several in a
conversation), "alike" (several of which lengths or sizes differ), "unmixed" (beside pictures).

Exit 3: no usable torchvision. The tokenizer is the demo's with the tokens that processors ask for; the template writes
what the processor calls its image token.
"""

import inspect
import json
import re
import sys
import time
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import with_torchvision  # noqa: F401 (first)
from helpers import DEMO_PROCESSOR, asked, clip, picture
from PIL import Image
from transformers import AutoTokenizer
from transformers.video_utils import read_video_pyav

from neatpack.loaders.pixels import restored, stored_arrays
from neatpack.pipeline.families.asked import as_numbers
from neatpack.pipeline.families.base import ProcessorFiles, ProcessorKey
from neatpack.pipeline.families.default import Default
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.records import Skip
from neatpack.pipeline.render.sample import render_whole

PIXELS = ("uint8", "float32")
# What the classes have no defaults for.
SETTINGS = {"patch_size": 14, "num_image_tokens": 729, "vision_feature_select_strategy": "full", "image_seq_length": 16,
            "downsample_factor": 2, "num_additional_image_tokens": 0}  # fmt: skip
TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- for part in message['content'] -%}
        {{- part['text'] if part['type'] == 'text' else 'PICTURE' if part['type'] == 'image' else 'FILM' -}}
    {%- endfor -%}
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


def opened(messages: list[Any], processor: Any) -> tuple[list[Any], dict[str, Any]]:
    """A conversation as the processor takes it, media read by Pillow and by transformers, and what it is told of them.

    Frames are those that its video processor takes by its config; all where it has none for that.
    """
    clips: list[Any] = []

    def content(part: dict[str, Any]) -> dict[str, Any]:
        if "image" in part:
            return {"type": "image", "image": Image.open(part["image"])}
        if "video" not in part:
            return part
        part_of_it = processor.video_processor
        samples = part_of_it.do_sample_frames or part_of_it.fps or part_of_it.num_frames
        if not samples:
            choose = lambda metadata, **_: np.arange(metadata.total_num_frames)  # noqa: E731
        elif part_of_it.fps and part_of_it.num_frames:
            choose = lambda metadata, **_: part_of_it.sample_frames(metadata)  # noqa: E731
        else:
            choose = lambda metadata, **_: part_of_it.sample_frames(  # noqa: E731
                metadata, **{name: value for name in ("fps", "num_frames") if (value := getattr(part_of_it, name))}
            )
        frames, metadata = read_video_pyav(part["video"], choose)
        clips.append(metadata)
        return {"type": "video", "video": frames}

    turns = [turn | {"content": [content(part) for part in turn["content"]]} for turn in messages]
    return turns, {"do_sample_frames": False, "video_metadata": clips} if clips else {}


def compared(messages: list[Any], family: Default, processor: Any) -> str:
    """How what family default makes of a conversation differs from what the processor does; "": not at all."""
    (measured,) = measure([from_conversation({"conversation": messages})], family)
    if isinstance(measured, Skip):
        return f"{measured.reason}: {measured.detail}"
    whole = render_whole(measured, family, "torch")
    if measured.tokens != len(whole.input_ids) - 1:
        return f"{measured.tokens} tokens measured, {len(whole.input_ids) - 1} rendered"
    turns, told = opened(messages, processor)
    more = {"processor_kwargs": told} if told else {}
    out = processor.apply_chat_template(turns, tokenize=True, return_dict=True, return_tensors="pt", **more)
    if whole.input_ids.tolist() != out["input_ids"][0].tolist():
        return "other ids than the processor's"
    stored = stored_arrays(family.media, family.tables("processor"))
    for name, array in family.media.items():
        if name in out and measured.media:
            theirs, ours = as_numbers(name, out[name]), whole.media[name]
            theirs = theirs[0] if array.deliver.batch_axis else theirs
            if name in stored:
                ours = restored(torch.from_numpy(ours), stored[name], torch.float32).numpy()
            if not np.array_equal(ours, theirs):
                return f"{name} differs from the processor's"
    return ""


def survey(model: str, kind: type, folder: Path) -> dict[str, str]:
    """Of pictures and of videos: "u8" or "floats" where they work, else why not; "": none are taken."""
    parameters = inspect.signature(kind).parameters
    parts = {name: part_of(name, model) for name in parameters
             if name in ("image_processor", "video_processor", "feature_extractor", "audio_processor")}  # fmt: skip
    processor = made(kind, parts)
    tokens = [str(getattr(processor, name, None) or other) for name, other in
              (("image_token", "<image>"), ("video_token", "<video>"))]  # fmt: skip
    processor.chat_template = TEMPLATE.replace("PICTURE", tokens[0]).replace("FILM", tokens[1])
    files = ProcessorFiles(source=kind.__name__, class_name=kind.__name__, tokenizer=processor.tokenizer, image={},
                           video={}, audio={}, processor={}, model={}, loaded=processor)  # fmt: skip
    family = Default.load(files, ProcessorKey(processor=kind.__name__, family="default"))
    paths = [str(picture(folder / f"{size[0]}.png", *size)) for size in ((250, 330), (400, 240))]
    images = [{"type": "image", "image": path} for path in paths]
    for parts_of_turn in ([], images[:1], images):
        if why := compared(asked(*parts_of_turn), family, processor):
            return {"image": why, "video": ""}
    has = {kind: [array for array in family.media.values() if kind in array.kinds and array.dtype in PIXELS]
           for kind in ("image", "video")}  # fmt: skip
    found = {kind: "u8" if any(array.dtype == "uint8" and array.deliver.table for array in arrays) else "floats"
             for kind, arrays in has.items()}  # fmt: skip
    return {"image": found["image"], "video": videos_of(family, processor, folder, found["video"])}


def videos_of(family: Default, processor: Any, folder: Path, stored: str) -> str:
    """As in `survey`, and in which conversations they fail."""
    if family.video is None:
        return "" if getattr(processor, "video_processor", None) is None else family.untaken["video"]
    shapes = [(40, 96, 64), (33, 60, 120)]
    videos = [{"type": "video", "video": clip(folder / f"{frames}.mp4", frames=frames, rate=8, height=height,
                                              width=width).path} for frames, height, width in shapes]  # fmt: skip
    image = {"type": "image", "image": str(folder / "250.png")}
    if why := compared(asked(videos[0]), family, processor):
        return why
    alike = compared(asked(videos[0], videos[0]), family, processor)
    unlike = compared(asked(*videos), family, processor)
    mixed = compared(asked(videos[1], image), family, processor)
    limits = [name for name, why in (("alone", alike), ("alike", "" if alike else unlike), ("unmixed", mixed)) if why]
    for why in (alike, unlike, mixed):
        assert not why or why.startswith("bad_row: "), why  # refused in words, and not packed otherwise
    return " ".join([stored, *limits])


def main() -> None:
    named = import_module("transformers.models.auto.processing_auto").PROCESSOR_MAPPING_NAMES
    found: dict[str, dict[str, str]] = {}
    chosen = sys.argv[1:]
    with TemporaryDirectory() as folder:
        for model, name in sorted(named.items(), key=lambda pair: (pair[1], pair[0])):
            if chosen and name not in chosen:
                continue
            kind = getattr(import_module("transformers"), name, None)
            if kind is None or "image_processor" not in inspect.signature(kind).parameters:
                continue
            works = found.get(name, {}).get("image") in ("u8", "floats")
            if "tokenizer" not in inspect.signature(kind).parameters or works:
                continue
            started = time.process_time()
            try:
                found[name] = survey(model, kind, Path(folder))
            except Exception as error:  # whatever a class says of its own defaults is what the table says
                found[name] = {"image": f"{type(error).__name__}: {error}".splitlines()[0], "video": ""}
            print(f"{time.process_time() - started:.1f} s", name, found[name], file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
