"""Packs through Megatron-Energon: a cooker for outputs that `neatpack export energon` has prepared.

Energon shards, shuffles, blends and resumes; `cook_pack` makes of its raw sample what `neat_packed_vlm_collater` takes:

    class Packs(DefaultTaskEncoder):
        cookers = [Cooker(cook_pack)]

        @stateless
        def batch(self, samples):
            return neat_packed_vlm_collater(samples)

Energon is not imported here: nothing of it is needed.
"""

import hashlib
from functools import lru_cache
from typing import Any

from neatpack.errors import OutputError, fields_of
from neatpack.format.layout import MediaArray, layout_of
from neatpack.format.manifest import FILE as MANIFEST, REMEDY, Manifest
from neatpack.format.pixels import PixelDecoder

from .item import PIXELS, pack_item
from .pixels import Stored, load_renderer, read_tables, stored_arrays


def cook_pack(sample: dict[str, Any], *, pixels: str = "bf16") -> dict[str, Any]:
    """A crude sample of Energon, decoded as it decodes by default, -> the item that `PackedShards` gives.

    Energon's own keys (`__key__`, `__restore_key__`, …) stay. pixels: as in `PackedShards`; for others than bf16
    `Cooker(stateless(partial(cook_pack, pixels="uint8")))`.
    """
    out = sample["__sources__"][0].dataset_path
    layout, stored, recurrent, decoder = _described(out)
    read = {name.removesuffix(".npy"): array for name, array in sample.items() if name.endswith(".npy")}
    try:
        arrays = decoder.restore(read)
    except ValueError as error:
        raise OutputError(
            f"{out}, pack {sample['json']['pack']}: {error}; {decoder.find_remedy(error)}",
            code="shard-damaged",
            **fields_of(error) | {"out": str(out), "pack": sample["json"]["pack"]},
        ) from None
    own = {key: value for key, value in sample.items() if key.startswith("__")}
    return own | pack_item(arrays, sample["json"], layout, stored, PIXELS[pixels], recurrent)


cook_pack.__stateless__ = True  # type: ignore[attr-defined]  # as Energon's @stateless marks it: resumed exactly


@lru_cache(maxsize=64)
def _described(out: Any) -> tuple[dict[str, MediaArray], dict[str, Stored], list[str] | None, PixelDecoder]:
    """Layout and pixel tables of an output, its model's recurrent layers, and what restores its pixels.

    `out` is Energon's path, which may be of an object store.
    """
    manifest = Manifest.parse((out / MANIFEST).read_bytes(), str(out))
    layout = layout_of(manifest.family)

    def read(name: str) -> bytes:
        content: bytes = (out / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest.files[name]:
            raise OutputError(
                f"{out}/{name}: sha256 differs from the manifest's; {REMEDY}",
                code="output-damaged",
                out=str(out),
                file=name,
            )
        return content

    stored = stored_arrays(layout, read_tables(manifest, read, str(out)))
    return layout, stored, manifest.family.get("recurrent_layers"), PixelDecoder(manifest, load_renderer)
