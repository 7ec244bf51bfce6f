"""Packed shards into a training loop. Thin: what can be done offline is done offline.

OUT ──reader.py (local, cached or ranged reads)──▶ dataset.py (PackedShards: balanced, shuffled, mixed, by order.py)
    ──model_inputs.py (PackCollater, on packed.py)──▶ loader.py (PackLoader: threads, epochs, resume)──▶ model(**batch)
    or pp_media.py, microbatches.py (pipelines); hf.py and energon.py for trainers that shard packs themselves

online/ packs on the fly, on top of the functions that the offline job packs with; only it needs transformers.
"""

if __name__ != "neatpack.loaders":
    raise ImportError("import neatpack.loaders, not loaders: loaders/ is part of the neatpack package")


from .dataset import PackedShards as PackedShards
from .hf import IndexedPacks as IndexedPacks, PackSampler as PackSampler
from .loss import num_items_in_batch as num_items_in_batch, steps as steps
from .microbatches import get_kwargs_chunk_spec as get_kwargs_chunk_spec
from .model_inputs import PackCollater as PackCollater
from .packed import neat_packed_vlm_collater as neat_packed_vlm_collater
from .pixels import restore_pixels as restore_pixels
from .pp_media import (
    VLM_PP_MEDIA_KEY as VLM_PP_MEDIA_KEY,
    chunk_step3_media as chunk_step3_media,
    chunk_vlm_media as chunk_vlm_media,
    prepare_vlm_media_for_pp as prepare_vlm_media_for_pp,
    stage_vlm_media_for_pp as stage_vlm_media_for_pp,
    wrap_vlm_collate_for_pp as wrap_vlm_collate_for_pp,
)
