"""Videos by family default, from rows to a model, in a process of its own: their processors need torchvision.

python default_videos.py FOLDER: prints what came out as JSON. Exit 3: no usable torchvision.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import with_torchvision  # noqa: F401 (first)
from helpers import TinyData, assert_verified, clip, differences, picture, tiny_config
from processors import internvl
from tiny_models import tiny_internvl
from transformers.video_utils import make_batched_videos

from neatpack import PackedShards
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger


def rows(data: TinyData) -> Path:
    """Videos alone, two of a length, beside pictures on either side; two that the processor cannot stack; text."""
    for number, frames in enumerate((4, 4, 7, 1)):
        clip(data.folder / f"{number}.mp4", frames=frames, height=60, width=60 + 20 * number)
    picture(data.folder / "a.png", 60, 130)
    for videos in (["0.mp4"], ["2.mp4"], ["3.mp4"], ["0.mp4", "1.mp4"], ["0.mp4", "2.mp4"]):
        data.row([("user", "<video>" * len(videos) + "What?"), ("assistant", "A film.")], videos=videos)
    for question in ("<video>or<image>?", "<image>and <video> and <image>?"):
        images = ["a.png"] * question.count("<image>")
        data.row([("user", question), ("assistant", "Both.")], videos=["2.mp4"], images=images)
    for number in (3, 30):
        data.text(f"Count to {number}.", " ".join(map(str, range(1, number + 2))))
    return data.write()


def logits_by(model: Any) -> Any:
    keys = ("input_ids", "attention_mask", "position_ids", "pixel_values")
    return lambda batch: (
        model(
            **{key: batch[key].double() if key == "pixel_values" else batch[key] for key in keys if key in batch}
        ).logits
    )


def reasons_where_zeros_are_padded(processor: str, folder: Path) -> list[str]:
    """Of three videos, by a processor that pads some by zeros once they are normalised, which no byte stands for: those
    of seven frames, and of one frame that is not blank."""
    family = load_family(ProcessorKey(processor=processor, family="default"))
    kind = type(family.image.asked.processor.video_processor)
    preprocess = kind.preprocess

    def padding(self: Any, videos: Any, *args: Any, **kwargs: Any) -> Any:
        out = preprocess(self, videos, *args, **kwargs)
        for video, pixels in zip(make_batched_videos(videos), out["pixel_values_videos"], strict=True):
            if len(video) == 7 or (len(video) == 1 and np.ptp(np.asarray(video)) > 0):
                pixels[..., -1] = 0
        return out

    kind.preprocess = padding
    data = TinyData(folder / "data")
    for number, frames in enumerate((4, 7, 1)):
        clip(data.folder / f"{number}.mp4", frames=frames, height=60, width=60)
        data.row([("user", "<video>What?"), ("assistant", "A film.")], videos=[f"{number}.mp4"])
    run_pack(tiny_config(data.write(), folder / "out", processor=processor, family="default", pack_size=400))
    lines = read_ledger(folder / "out", assert_verified(folder / "out")).to_pylist()
    return [" ".join([line["reason"], *line["detail"].split()[1:6]]) for line in lines]


def main() -> None:
    folder = Path(sys.argv[1])
    processor = str(internvl.make(folder / "processor"))
    family = load_family(ProcessorKey(processor=processor, family="default"))
    out, meta = folder / "out", rows(TinyData(folder / "data"))
    run_pack(tiny_config(meta, out, processor=processor, family="default", pack_size=400))
    manifest = assert_verified(out)
    model, found = tiny_internvl(family), []
    packs = list(PackedShards(out, pixels="fp32"))
    for pack in packs:
        found += differences(logits_by(model), out, pack)
    print(
        json.dumps(
            {
                "stored": manifest.family["media"]["pixel_values"]["dtype"],
                "skipped": {reason: count for reason, count in manifest.counts.skipped.items() if count},
                "videos": sum(pack["n_videos"] for pack in packs),
                "images": sum(pack["n_images"] for pack in packs),
                "documents": len(found),
                "packs": len(packs),
                "difference": max(found),
                "zeros": reasons_where_zeros_are_padded(processor, folder / "zeros"),
                "finite": all(bool(torch.isfinite(pack["pixel_values"]).all()) for pack in packs),
            }
        )
    )


if __name__ == "__main__":
    main()
