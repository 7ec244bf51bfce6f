"""Packing while training: the online API against the HF processor's own way, per picture.

The other way is what a collater of that kind does: pictures opened by Pillow, conversations through the chat template,
the processor's call, labels, the shift, pixels as bf16. One sample at a time, and as packs of 8,192 tokens, whose
samples are laid end to end. Both run in one process of their own, in turns: HF's image processors need torchvision,
which with a CPU-only torch is importable only after two of its operators are declared, before transformers is imported.
Without a usable torchvision there are no rows, and a line on stderr says so.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs.speed.side_by_side import Options, Row, side_by_side

ROOT = Path(__file__).resolve().parents[2]
PACK_SIZE, NUM_PICTURES, NO_TORCHVISION = 8192, 24, 3
Example = dict[str, Any]


def rows(options: Options) -> Iterator[Row]:
    search = os.pathsep.join([str(ROOT / ".venv" / "torchvision"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = [str(options.meta or ""), options.processor, str(options.folder), str(options.repeats)]
    for declare in ((), ("--declare",)):
        done = subprocess.run([sys.executable, __file__, *given, *declare], stdout=subprocess.PIPE,
                              env=os.environ | {"PYTHONPATH": search})  # fmt: skip
        if done.returncode != NO_TORCHVISION:
            break
    else:
        print("online: torchvision cannot be imported, and HF's image processors need it", file=sys.stderr)
        return
    done.check_returncode()
    took = json.loads(done.stdout)
    yield Row(what="one sample / the HF processor's way, per picture", figure=took["ours"] / took["theirs"], wanted=0.5,
              of=took)  # fmt: skip
    yield Row(what="in packs / the HF processor's way, per picture", of=took, wanted=0.5,
              figure=took["ours in packs"] / took["theirs in packs"])  # fmt: skip


# In a process of its own


def compared(examples: list[Example], processor_folder: str, repeats: int) -> dict[str, float]:
    """CPU seconds of all examples, by side."""
    import torch
    from transformers import AutoProcessor

    from neatpack import neat_packed_vlm_collater
    from neatpack.loaders.online import (
        PreTokenizedDatasetWrapper,
        build_labels_from_template,
        default_collate_fn,
        neat_pack_dataset_vlm,
    )

    processor: Any = AutoProcessor.from_pretrained(processor_folder)  # type: ignore[no-untyped-call]
    samples = PreTokenizedDatasetWrapper(examples, processor)
    packs = neat_pack_dataset_vlm(samples, PACK_SIZE, ds_raw=examples, processor=processor, exact_lengths=True)

    def theirs(example: Example) -> dict[str, Any]:
        from PIL import Image

        from neatpack.pipeline.media.image import FORMATS

        conversation = example["conversation"]
        parts = (part for turn in conversation for part in turn["content"] if part["type"] == "image")
        seen = [Image.open(part["image"], formats=FORMATS).convert("RGB") for part in parts]
        text = processor.apply_chat_template(conversation, tokenize=False)
        batch = dict(processor(text=[text], images=seen, return_tensors="pt"))
        labels = build_labels_from_template(batch["input_ids"], [conversation], processor)
        return batch | {"input_ids": batch["input_ids"][:, :-1], "labels": labels[:, 1:],
                        "pixel_values": batch["pixel_values"].to(torch.bfloat16)}  # fmt: skip

    def theirs_in_packs() -> None:
        for bin_ in packs.bins:
            made = [theirs(examples[index]) for index in bin_]
            for name, axis in (("input_ids", 1), ("labels", 1), ("pixel_values", 0), ("image_grid_thw", 0)):
                torch.cat([sample[name] for sample in made], axis)

    def ours_in_packs() -> None:
        for number in range(len(packs)):
            neat_packed_vlm_collater([packs[number]], attn_implementation="flash_attention_2")

    for example in examples[:3]:
        ours, other = default_collate_fn([example], processor), theirs(example)
        for name in ("input_ids", "labels", "pixel_values", "image_grid_thw"):
            assert torch.equal(ours[name], other[name]), f"{name} differs: the comparison would mean nothing"
    assert sorted(index for bin_ in packs.bins for index in bin_) == list(range(len(examples))), "packs lack some"
    for number, bin_ in enumerate(packs.bins):
        batch = neat_packed_vlm_collater([packs[number]], attn_implementation="flash_attention_2")
        made = [theirs(examples[index]) for index in bin_]
        for name, axis in (("input_ids", 1), ("labels", 1), ("pixel_values", 0), ("image_grid_thw", 0)):
            expected = torch.cat([sample[name] for sample in made], axis)
            assert torch.equal(batch[name], expected), f"{name} of a pack differs: the comparison would mean nothing"
    return side_by_side(
        {
            "ours": lambda: [default_collate_fn([example], processor) for example in examples],
            "theirs": lambda: [theirs(example) for example in examples],
            "ours in packs": ours_in_packs,
            "theirs in packs": theirs_in_packs,
        },
        repeats,
    )


def examples_of(meta: str, folder: Path) -> list[Example]:
    """Conversations with one picture: of the data sets, or drawn."""
    paths = _pictures_of(Path(meta)) if meta else _drawn(folder)
    paths = paths[:: max(1, len(paths) // NUM_PICTURES)][:NUM_PICTURES]  # from all folders: each has its kind
    return [
        {
            "conversation": [
                {
                    "role": "user",
                    "content": [{"type": "image", "image": path}, {"type": "text", "text": "What is it?"}],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "It is a picture. " * 20}]},
            ]
        }
        for path in paths
    ]


def _pictures_of(meta: Path) -> list[str]:
    """JPEG and PNG files in the media folders that a meta JSON names."""
    folders = {meta.parent / entry.get("media_dir", ".") for entry in json.loads(meta.read_text()).values()}
    found = sorted(str(path) for folder in folders for path in folder.rglob("*") if path.suffix in (".jpg", ".png"))
    if not found:
        raise SystemExit(f"{meta}: no .jpg and no .png in {', '.join(map(str, sorted(folders)))}")
    return found


def _drawn(folder: Path) -> list[str]:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    paths = [str(folder / f"online-{number}.jpg") for number in range(NUM_PICTURES)]
    for path in paths:
        pixels = Image.fromarray(rng.integers(0, 256, (56, 56, 3), dtype=np.uint8))
        pixels.resize((896, 672), Image.Resampling.BICUBIC).save(path)
    return paths


def main() -> int:
    import torch

    meta, processor, folder, repeats, *declare = sys.argv[1:]
    if declare:
        library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        return NO_TORCHVISION
    print(json.dumps(compared(examples_of(meta, Path(folder)), processor, int(repeats))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
