"""Packing on the fly, for those who stay online: the functions of the offline job behind the seed's names.

meta JSON ──datasets.py──▶ conversations ──packing.py (tokenize, pack)──▶ packs for neat_packed_vlm_collater
                                         └─collates.py, padded.py (unpacked)──▶ batches

docs/API.md has every name, with its signature and its test; those with an underscore are the seed's own, too.
"""

from neatpack.pipeline.extras import first_missing, remedy

if _missing := first_missing("online"):  # before anything below stumbles over it
    raise ModuleNotFoundError(remedy(_missing, "neatpack.loaders.online", "online"), name=_missing)

from neatpack.loaders.media import MEDIA_KEYS
from neatpack.loaders.online.collates import (
    _GEMMA4_MODEL_TURN,
    _GEMMA4_THINKING_PREFIX,
    COLLATE_FNS,
    _count_media_per_sample,
    _drop_overlong_samples,
    _ensure_rgb,
    _estimate_media_tokens,
    _extract_image_config,
    _extract_media_from_conversations,
    _inject_thinking_prefix_tokens,
    default_collate_fn,
    gemma4_prefix_collate_fn,
    kimi_k25_vl_collate_fn,
    kimi_vl_collate_fn,
    nemotron_parse_collate_fn,
    phi4_mm_collate_fn,
    qwen2_5_collate_fn,
    qwen3_omni_collate_fn,
)
from neatpack.loaders.online.datasets import (
    _collect_sample_stats,
    _convert_sharegpt_to_conversation,
    _ExamplesWithStats,
    _load_json_or_jsonl,
    _load_jsonl_for_rank,
    _log_dataset_loading_summary,
    make_meta_dataset,
)
from neatpack.loaders.online.estimate import (
    estimate_image_tokens as _estimate_image_tokens,
    estimate_sample_length as _estimate_sample_length,
    estimate_video_tokens as _estimate_video_tokens,
)
from neatpack.loaders.online.grouped import LengthGroupedSampler, _smart_resize_image, _smart_resize_video
from neatpack.loaders.online.kimi import _expand_image_tokens
from neatpack.loaders.online.labels import (
    _IMSTART_TEMPLATE_PROCESSORS,
    _decode_single_token,
    _extract_assistant_text,
    _find_pattern_indices,
    _get_assistant_marker,
    _get_stop_token_id,
    build_labels,
    build_labels_from_template,
)
from neatpack.loaders.online.packing import (
    PackedDatasetWrapper,
    PreTokenizedDatasetWrapper,
    _build_packed_vlm_sample,
    _compute_mrope_position_ids,
    _shift_sample,
    neat_pack_dataset_vlm,
)
from neatpack.loaders.online.padded import pad_collate_fn
from neatpack.loaders.online.robust import RobustDatasetWrapper, make_robust_collate
from neatpack.loaders.pp_media import _VLM_MEDIA_KEYS, _select_image_grid
from neatpack.pipeline.ingest.sources import (
    make_cord_v2_dataset,
    make_cv17_dataset,
    make_medpix_dataset,
    make_rdr_dataset,
    make_unimm_chat_dataset,
)
from neatpack.pipeline.plan.knapsack import greedy_knapsack_vt_balanced

__all__ = [
    "COLLATE_FNS",
    "MEDIA_KEYS",
    "LengthGroupedSampler",
    "PackedDatasetWrapper",
    "PreTokenizedDatasetWrapper",
    "RobustDatasetWrapper",
    "_ExamplesWithStats",
    "_GEMMA4_MODEL_TURN",
    "_GEMMA4_THINKING_PREFIX",
    "_IMSTART_TEMPLATE_PROCESSORS",
    "_VLM_MEDIA_KEYS",
    "_build_packed_vlm_sample",
    "_collect_sample_stats",
    "_compute_mrope_position_ids",
    "_convert_sharegpt_to_conversation",
    "_count_media_per_sample",
    "_decode_single_token",
    "_drop_overlong_samples",
    "_ensure_rgb",
    "_estimate_image_tokens",
    "_estimate_media_tokens",
    "_estimate_sample_length",
    "_estimate_video_tokens",
    "_expand_image_tokens",
    "_extract_assistant_text",
    "_extract_image_config",
    "_extract_media_from_conversations",
    "_find_pattern_indices",
    "_get_assistant_marker",
    "_get_stop_token_id",
    "_inject_thinking_prefix_tokens",
    "_load_json_or_jsonl",
    "_load_jsonl_for_rank",
    "_log_dataset_loading_summary",
    "_select_image_grid",
    "_shift_sample",
    "_smart_resize_image",
    "_smart_resize_video",
    "build_labels",
    "build_labels_from_template",
    "default_collate_fn",
    "gemma4_prefix_collate_fn",
    "greedy_knapsack_vt_balanced",
    "kimi_k25_vl_collate_fn",
    "kimi_vl_collate_fn",
    "make_cord_v2_dataset",
    "make_cv17_dataset",
    "make_medpix_dataset",
    "make_meta_dataset",
    "make_rdr_dataset",
    "make_robust_collate",
    "make_unimm_chat_dataset",
    "neat_pack_dataset_vlm",
    "nemotron_parse_collate_fn",
    "pad_collate_fn",
    "phi4_mm_collate_fn",
    "qwen2_5_collate_fn",
    "qwen3_omni_collate_fn",
]
