"""Packed shards into a training loop. Thin: what can be done offline is done offline.

OUT ──reader.py (mapped or ranged reads)──▶ stream.py (PackedShards: balanced, shuffled, resumable, by order.py)
    ──packed.py (neat_packed_vlm_collater: indexed, 4D or THD)──▶ model, or pp_media.py (pipeline parallel)

online/ packs on the fly, on top of the functions that the offline job packs with; only it needs transformers.
"""

from neatpack.loaders.packed import neat_packed_vlm_collater
from neatpack.loaders.pixels import restore_pixels
from neatpack.loaders.pp_media import (
    VLM_PP_MEDIA_KEY,
    chunk_step3_media,
    chunk_vlm_media,
    prepare_vlm_media_for_pp,
    stage_vlm_media_for_pp,
    wrap_vlm_collate_for_pp,
)
from neatpack.loaders.stream import PackedShards

__all__ = [
    "VLM_PP_MEDIA_KEY",
    "PackedShards",
    "chunk_step3_media",
    "chunk_vlm_media",
    "neat_packed_vlm_collater",
    "prepare_vlm_media_for_pp",
    "restore_pixels",
    "stage_vlm_media_for_pp",
    "wrap_vlm_collate_for_pp",
]
