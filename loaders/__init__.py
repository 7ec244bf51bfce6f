"""Packed shards into a training loop. Thin: what can be done offline is done offline.

OUT ──reader.py (mapped or ranged reads)──▶ stream.py (PackedShards: balanced, shuffled, resumable, by order.py)
    ──packed.py (neat_packed_vlm_collater: indexed, 4D or THD)──▶ model, or pp_media.py (pipeline parallel)

Or online, on top of the functions that the offline path packs with:
meta JSON ──datasets.py──▶ conversations ──online.py (tokenize, pack)──▶ packed.py, or collates.py / padded.py
"""

import logging
from importlib import import_module
from typing import Any

from loaders.packed import neat_packed_vlm_collater
from loaders.padded import pad_collate_fn
from loaders.pixels import restore_pixels
from loaders.pp_media import (
    VLM_PP_MEDIA_KEY,
    chunk_step3_media,
    chunk_vlm_media,
    prepare_vlm_media_for_pp,
    stage_vlm_media_for_pp,
    wrap_vlm_collate_for_pp,
)
from loaders.stream import PackedShards

logger = logging.getLogger(__name__)  # that of each module lies below it

# The online path, imported when it is asked for: it needs transformers, whose import takes three seconds, and a worker
# that reads shards does not. jobs/API.md has every name with its signature and its test.
_ONLINE = {
    "loaders.datasets": ("make_meta_dataset", "_ExamplesWithStats", "_collect_sample_stats",
                         "_convert_sharegpt_to_conversation", "_load_json_or_jsonl", "_load_jsonl_for_rank",
                         "_log_dataset_loading_summary"),
    "pipeline.ingest.sources": ("make_cord_v2_dataset", "make_cv17_dataset", "make_medpix_dataset", "make_rdr_dataset",
                                "make_unimm_chat_dataset"),
    "loaders.robust": ("RobustDatasetWrapper", "make_robust_collate"),
    "loaders.online": ("PackedDatasetWrapper", "PreTokenizedDatasetWrapper", "neat_pack_dataset_vlm",
                       "_build_packed_vlm_sample", "_compute_mrope_position_ids", "_shift_sample"),
    "loaders.collates": ("COLLATE_FNS", "default_collate_fn", "gemma4_prefix_collate_fn", "kimi_k25_vl_collate_fn",
                         "kimi_vl_collate_fn", "nemotron_parse_collate_fn", "phi4_mm_collate_fn", "qwen2_5_collate_fn",
                         "qwen3_omni_collate_fn", "_GEMMA4_MODEL_TURN", "_GEMMA4_THINKING_PREFIX",
                         "_count_media_per_sample", "_drop_overlong_samples", "_ensure_rgb", "_estimate_media_tokens",
                         "_extract_image_config", "_extract_media_from_conversations",
                         "_inject_thinking_prefix_tokens"),
    "loaders.kimi": ("_expand_image_tokens",),
    "loaders.labels": ("_IMSTART_TEMPLATE_PROCESSORS", "build_labels", "build_labels_from_template",
                       "_decode_single_token", "_extract_assistant_text", "_find_pattern_indices",
                       "_get_assistant_marker", "_get_stop_token_id"),
    "loaders.grouped": ("LengthGroupedSampler", "_smart_resize_image", "_smart_resize_video"),
    "loaders.estimates": ("_estimate_image_tokens", "_estimate_sample_length", "_estimate_video_tokens"),
    "loaders.media": ("MEDIA_KEYS",),
    "loaders.pp_media": ("_VLM_MEDIA_KEYS", "_select_image_grid"),
    "pipeline.plan.knapsack": ("greedy_knapsack_vt_balanced",),
}  # fmt: skip
_HOME = {name: module for module, names in _ONLINE.items() for name in names}

__all__ = [
    "VLM_PP_MEDIA_KEY",
    "PackedShards",
    "chunk_step3_media",
    "chunk_vlm_media",
    "neat_packed_vlm_collater",
    "pad_collate_fn",
    "prepare_vlm_media_for_pp",
    "restore_pixels",
    "stage_vlm_media_for_pp",
    "wrap_vlm_collate_for_pp",
    *(name for name in _HOME if not name.startswith("_")),
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
