"""Writes the golden files, which tests/golden/test_golden.py compares with what this checkout makes.

    python tests/golden/write.py            rewrite all of them
    python tests/golden/write.py qwen2_vl   rewrite the outputs of these families only

Rewrite them only for a change of outputs that is meant, and say in the changelog what changed. Digests hold for the
versions of pyarrow (zstd), torch, Pillow and av in constraints.txt.
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
from support.commands import run_command
from support.outputs import digest, digest_output, find_outputs

import neatpack
from neatpack import PackConfig, PackedShards, run_pack

HERE = Path(__file__).parent
FAMILIES = (
    "qwen2_vl", "qwen3_vl", "qwen3_omni", "qwen2_5_omni", "gemma3", "gemma4", "glm4v", "kimi_k25", "kimi_vl",
    "llava_onevision", "mistral3", "idefics3", "smolvlm", "internvl", "phi4_mm", "default",
)  # fmt: skip
CODECS = {"default": {}, "u8": {"pixels": "u8"}}
Variants = dict[str, tuple[str, dict[str, Any]]]  # by name: the meta JSON, and further keys of the config
VARIANTS: Variants = {
    "plain": ("all", {}),
    "align 8": ("all", {"align": 8}),
    "holdout": ("all", {"holdout": 0.3}),
    "weights": ("weights", {}),
    "3 partitions": ("all", {"partition_samples": 14, "pack_size": 512}),
}
# Media that turn out broken when they are decoded, after the plan. Apart, since another way to fill their room in the
# packs is a change that may be meant.
LATE: Variants = {"late failures": ("broken", {})}
# Their media are arrays of floats, whose last bits depend on the CPU, or come from the processor's own code, which is
# another one where torchvision is installed: all else is compared.
MEDIA_VARY = ("phi4_mm", "default")
PUBLIC = {
    "neatpack": neatpack.__all__, "neatpack.loaders.hf": ["IndexedPacks"], "neatpack.loaders.energon": ["cook_pack"],
}  # fmt: skip
# Of the loader, the methods and properties that docs/API.md describes. Others need no underscore, and may change.
METHODS = {
    "PackedShards": ("loader", "collater", "pack", "set_epoch", "epoch", "state_dict", "state_after", "load_state_dict",
                     "rank", "world_size", "batch_size"),
    "IndexedPacks": ("collater", "set_epoch"),
    "PackCollater": (),
}  # fmt: skip


def pack(meta: Path, out: Path, family: str, processor: Path, **keys: Any) -> None:
    config = {"pack_size": 1024, "shard_mb": 1, "group_size": 4, "engine": "inline", "max_skipped": 1.0, "seed": 3}
    config |= {"family": "default"} if family == "default" else {}
    run_pack(PackConfig(meta=str(meta), out=str(out), processor=str(processor), **config | keys))


def digest_family(family: str, variants: Variants, codecs: tuple[str, ...] = tuple(CODECS)) -> dict[str, Any]:
    """Return the digests of a family's outputs, by codec and variant and name: out, or out-holdout."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        metas = write_data(folder / "data")
        processor = import_module(f"processors.{family}").make(folder / "processor")
        found: dict[str, Any] = {}
        for codec in codecs:
            for variant, (meta, keys) in variants.items():
                out = folder / f"{codec}-{variant}" / "out"
                pack(metas[meta], out, family, processor, **CODECS[codec], **keys)
                for path in find_outputs(out):
                    found[f"{codec}, {variant}, {path.name}"] = digest_output(path, media=family not in MEDIA_VARY)
    return found


def list_orders() -> dict[str, list[Any]]:
    """Return the packs of each rank in order: by seed and epoch, and from the middle on by another number of ranks."""
    orders: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        out = pack_example(Path(name), "weights", pack_size=256)
        for seed, world_size in ((0, 1), (0, 2), (7, 3), (7, 4)):
            for rank in range(world_size):
                shards = PackedShards(str(out), seed=seed, rank=rank, world_size=world_size)
                for epoch in range(2):
                    shards.set_epoch(epoch)
                    orders[f"seed {seed}, epoch {epoch}, rank {rank} of {world_size}"] = list_packs(shards)
        middle = PackedShards(str(out), seed=7, rank=0, world_size=3).state_after(2)
        for world_size in (3, 2):
            for rank in range(world_size):
                shards = PackedShards(str(out), seed=7, rank=rank, world_size=world_size)
                shards.load_state_dict(middle)
                orders[f"seed 7, after 2 steps of 3 ranks, rank {rank} of {world_size}"] = list_packs(shards)
        in_order = PackedShards(str(out), shuffle=False, rank=0, world_size=1)
        orders["not shuffled"] = list_packs(in_order)
        mixed = PackedShards([("a", str(out), 0.75), ("b", str(out), 0.25)], seed=5, rank=0, world_size=1)
        orders["mixed 3 to 1"] = [f"{item['output']} {item['pack']}" for item in mixed]
    return orders


def list_packs(shards: PackedShards) -> list[int]:
    return [int(item["pack"]) for item in shards]


def pack_example(folder: Path, meta: str, **keys: Any) -> Path:
    metas = write_data(folder / "data")
    processor = import_module("processors.qwen2_vl").make(folder / "processor")
    pack(metas[meta], folder / "out", "qwen2_vl", processor, **keys)
    return folder / "out"


def list_printed() -> dict[str, Any]:
    """Return what `inspect --json` and `skipped --jsonl` print of one output, without wording, versions and paths."""
    with tempfile.TemporaryDirectory() as name:
        out = pack_example(Path(name), "all")
        tables = json.loads(run_command("inspect", out, "--json")[1])
        _, lines, _ = run_command("skipped", out, "--follow-sources", "--jsonl")
        for free in ("out", "neatpack", "fingerprint"):
            del tables[free]
        skipped = [json.loads(line) for line in lines.splitlines()]
        for line in tables["skipped"]:
            del line["meaning"]
        for line in skipped:
            del line["detail"]
            line |= {"file": Path(line["file"]).name, "json": digest(line["json"])}
    return {"inspect": tables, "skipped": {f"row {line['row']}": line for line in skipped}}


def list_signatures() -> dict[str, Any]:
    """Return the parameters of every public name, and every key of PackConfig with its default."""
    names: dict[str, Any] = {}
    for module, public in PUBLIC.items():
        for name in public:
            value = getattr(import_module(module), name)
            if inspect.isclass(value) and issubclass(value, Exception):
                names[name] = "error"
            elif not callable(value) or value is PackConfig:
                names[name] = type(value).__name__
            else:
                names[name] = describe_parameters(value)
                for method, code in vars(value).items() if inspect.isclass(value) else ():
                    if method in METHODS.get(name, (method,)) and not method.startswith("_"):
                        is_method = inspect.isfunction(code)
                        names[f"{name}.{method}"] = describe_parameters(code) if is_method else type(code).__name__
    config = PackConfig()
    return {"names": names, "PackConfig": {field.name: repr(getattr(config, field.name)) for field in fields(config)}}


def describe_parameters(function: Any) -> str:
    """Return the parameters of a function without annotations, which callers do not see."""
    signature = inspect.signature(function)
    parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def read_golden(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


def write_golden(name: str, value: dict[str, dict[str, Any]]) -> None:
    """Write JSON with a line for each entry of the second level, so that a difference is seen in a diff."""
    parts = []
    for key, entries in value.items():
        lines = [f"  {json.dumps(each)}: {json.dumps(entry, ensure_ascii=False)}" for each, entry in entries.items()]
        parts.append(f" {json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n }")
    (HERE / f"{name}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main(families: list[str]) -> None:
    for name, variants in (("outputs", VARIANTS), ("late_failures", LATE)):
        outputs = read_golden(name) if families else {}
        for family in families or FAMILIES:
            print(name, family, flush=True)
            outputs[family] = digest_family(family, variants)
        write_golden(name, outputs)
    if not families:
        write_golden("orders", {"orders": list_orders()})
        write_golden("printed", list_printed())
        write_golden("signatures", list_signatures())


if __name__ == "__main__":
    main(sys.argv[1:])
