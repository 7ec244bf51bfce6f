"""Writes the golden files, or compares them with what this checkout makes.

    python tests/golden/write.py            rewrite tests/golden/*.json
    python tests/golden/write.py qwen2_vl   rewrite the outputs of these families only

Rewrite them only for a change of outputs that is meant, and say in the changelog what changed.
"""

import inspect
import json
import sys
import tempfile
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from golden.data import write_data
from support.outputs import digest_output, find_outputs

import neatpack
from neatpack import PackConfig, PackedShards, run_pack

HERE = Path(__file__).parent
FAMILIES = (
    "qwen2_vl", "qwen3_vl", "qwen3_omni", "qwen2_5_omni", "gemma3", "gemma4", "glm4v", "kimi_k25", "kimi_vl",
    "llava_onevision", "mistral3", "idefics3", "smolvlm", "internvl", "phi4_mm", "default",
)  # fmt: skip
CODECS = {"default": {}, "u8": {"pixels": "u8"}}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # by name: the meta JSON, and further keys of the config
    "plain": ("all", {}),
    "align 8": ("all", {"align": 8}),
    "holdout": ("all", {"holdout": 0.3}),
    "weights": ("weights", {}),
    "3 partitions": ("all", {"partition_samples": 14, "pack_size": 320}),
    "fails while rendering": ("broken", {}),
}


def pack(meta: Path, out: Path, family: str, processor: Path, **keys: Any) -> None:
    config = {"pack_size": 1024, "shard_mb": 1, "group_size": 4, "engine": "inline", "max_skipped": 1.0, "seed": 3}
    run_pack(
        PackConfig(
            meta=str(meta),
            out=str(out),
            processor=str(processor),
            family="default" if family == "default" else "",
            **config | keys,
        )
    )


def digest_family(family: str) -> dict[str, Any]:
    """Digests of the outputs of a family, by codec, variant and output (packed, held out)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        metas = write_data(folder / "data")
        processor = import_module(f"processors.{family}").make(folder / "processor")
        found: dict[str, Any] = {}
        for codec, pixels in CODECS.items():
            for variant, (meta, keys) in VARIANTS.items():
                out = folder / f"{codec}-{variant}" / "out"
                pack(metas[meta], out, family, processor, **pixels, **keys)
                found.setdefault(codec, {})[variant] = {path.name: digest_output(path) for path in find_outputs(out)}
    return found


def list_orders() -> dict[str, Any]:
    """Packs of each rank and step: for seeds, epochs, world sizes, and from a position in the middle."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        metas = write_data(folder / "data")
        processor = import_module("processors.qwen2_vl").make(folder / "processor")
        pack(metas["weights"], folder / "out", "qwen2_vl", processor, pack_size=320)
        orders: dict[str, Any] = {}
        for seed, world_size in ((0, 1), (0, 2), (7, 3), (7, 4)):
            for rank in range(world_size):
                shards = PackedShards(str(folder / "out"), seed=seed, rank=rank, world_size=world_size)
                for epoch in range(2):
                    shards.set_epoch(epoch)
                    name = f"seed {seed}, epoch {epoch}, rank {rank} of {world_size}"
                    orders[name] = [int(item["pack"]) for item in shards]
        return orders


def list_signatures() -> dict[str, Any]:
    """Every public name with its signature, and every key of PackConfig with its default."""
    names: dict[str, Any] = {}
    for name in (name for name in neatpack.__all__ if name != "__version__"):
        value = getattr(neatpack, name)
        if inspect.isclass(value) and issubclass(value, Exception):
            names[name] = "error"
        elif callable(value) and name != "PackConfig":
            names[name] = str(inspect.signature(value))
            if inspect.isclass(value):
                methods = inspect.getmembers(
                    value, lambda member: inspect.isfunction(member) or isinstance(member, property)
                )
                for method, code in methods:
                    if not method.startswith("_"):
                        names[f"{name}.{method}"] = (
                            "property" if isinstance(code, property) else str(inspect.signature(code))
                        )
        else:
            names[name] = type(value).__name__
    config = PackConfig()
    return {"names": names, "PackConfig": {field.name: repr(getattr(config, field.name)) for field in fields(config)}}


def read_golden(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


def write_golden(name: str, value: Any) -> None:
    (HERE / f"{name}.json").write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def main(families: list[str]) -> None:
    outputs = read_golden("outputs") if families else {}
    for family in families or FAMILIES:
        print(family, flush=True)
        outputs[family] = digest_family(family)
    write_golden("outputs", outputs)
    if not families:
        write_golden("orders", list_orders())
        write_golden("signatures", list_signatures())


if __name__ == "__main__":
    main(sys.argv[1:])
