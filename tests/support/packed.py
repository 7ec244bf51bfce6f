"""Small outputs, made by the public API."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from places import DEMO_PROCESSOR
from support.data import TinyData, mixed_rows
from support.outputs import KINDS, read_documents, read_family, read_index, read_manifest, split_media

from neatpack import PackConfig, neat_packed_vlm_collater, run_pack


def tiny_config(meta: Path, out: Path, **overrides: Any) -> PackConfig:
    """Rows that are skipped are mostly what a test is about: what is left is packed."""
    values = {"meta": str(meta), "processor": str(DEMO_PROCESSOR), "out": str(out), "pack_size": 512,
              "engine": "inline", "shard_mb": 1, "group_size": 4, "pixels": "u8",
              "keep_going": True} | overrides  # fmt: skip
    return PackConfig(**values)


def packed_rows(folder: Path, num_text: int, num_images: int, *, times: int = 1, **config: Any) -> Path:
    """Pack `mixed_rows` in a folder, and return the output."""
    data = TinyData(folder / "data")
    for _ in range(times):
        mixed_rows(data, num_text, num_images)
    run_pack(tiny_config(data.write(), folder / "out", **config))
    return folder / "out"


def packed_family(processor: str, folder: Path) -> Any:
    """Return the ids of a processor's family, as an output of one row has them: see `read_family`."""
    data = TinyData(folder / "family-data").text("Who?", "Me.")
    run_pack(tiny_config(data.write(), folder / "family", processor=processor))
    return read_family(folder / "family")


def many_packs(folder: Path) -> Path:
    """Between 30 and 40 small packs, in groups of 4."""
    out = packed_rows(folder, 14, 10, times=6, pack_size=280, group_size=4)
    assert len(read_index(out)) > 30
    return out


def eight_packs(folder: Path) -> Path:
    """Four steps of two ranks, as trainers get them by default: pictures are decoded when they are loaded."""
    return packed_rows(folder, 16, 8, pack_size=310, group_size=2, pixels=PackConfig().pixels)


def documents_of(out: Path, pack: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The documents of a pack of `PackedShards`, each as a pack of its own."""
    documents = read_documents(out, pack["pack"])
    start = 0
    for index, media in enumerate(split_media(pack, read_manifest(out).family.media, documents)):
        length = int(pack["seq_lens"][index])
        inside = slice(start, start + length)
        text = {key: pack[key][..., inside] for key in ("input_ids", "labels", "position_ids", "mm_token_type_ids")}
        yield {
            "pack": pack["pack"], **text, **media,
            "media_layout": pack["media_layout"], "seq_lens": torch.tensor([length]),
            "seq_lens_padded": torch.tensor([length]), "attention_mask": torch.ones(length, dtype=torch.long),
            **{f"n_{kind}s": getattr(documents[index], f"num_{kind}s") for kind in KINDS},
        }  # fmt: skip
        start += int(pack["seq_lens_padded"][index])


def differences(logits_of: Callable[[dict[str, Any]], torch.Tensor], out: Path, pack: dict[str, Any]) -> list[float]:
    """For each document of a pack, how far its logits in the pack are from those of the document alone."""
    with torch.no_grad():
        packed = logits_of(neat_packed_vlm_collater([pack]))
        result, start = [], 0
        for document in documents_of(out, pack):
            alone = logits_of(neat_packed_vlm_collater([document]))
            result.append(float((packed[:, start : start + alone.shape[1]] - alone).abs().max()))
            start += alone.shape[1]
    return result
