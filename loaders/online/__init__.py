"""The online API: packing while training, by the functions of the offline job.

meta JSON ──datasets.py──▶ conversations ──packing.py (tokenize, pack)──▶ packs for neat_packed_vlm_collater
                                         └─collates.py, padded.py (unpacked)──▶ batches

Its names and signatures, those with an underscore too, are those of another training system, whose code runs on it
unchanged. docs/API.md lists each with its test.
"""

import sys
from types import ModuleType
from typing import Any

from ...pipeline.extras import first_missing, remedy

if _missing := first_missing("online"):  # before anything below stumbles over it
    raise ModuleNotFoundError(remedy(_missing, "neatpack.loaders.online", "online"), name=_missing)

from ...pipeline.ingest.sources import (
    make_cord_v2_dataset as make_cord_v2_dataset,
    make_cv17_dataset as make_cv17_dataset,
    make_medpix_dataset as make_medpix_dataset,
    make_rdr_dataset as make_rdr_dataset,
    make_unimm_chat_dataset as make_unimm_chat_dataset,
)
from ...pipeline.plan.knapsack import greedy_knapsack_vt_balanced as greedy_knapsack_vt_balanced
from .. import pp_media as _pp_media
from ..media import MEDIA_KEYS as MEDIA_KEYS
from ..microbatches import get_kwargs_chunk_spec as get_kwargs_chunk_spec
from ..packed import neat_packed_vlm_collater as neat_packed_vlm_collater
from ..pp_media import (
    _VLM_MEDIA_KEYS as _VLM_MEDIA_KEYS,
    VLM_PP_MEDIA_KEY as VLM_PP_MEDIA_KEY,
    _select_image_grid as _select_image_grid,
    chunk_step3_media as chunk_step3_media,
    chunk_vlm_media as chunk_vlm_media,
    prepare_vlm_media_for_pp as prepare_vlm_media_for_pp,
    stage_vlm_media_for_pp as stage_vlm_media_for_pp,
    wrap_vlm_collate_for_pp as wrap_vlm_collate_for_pp,
)
from . import processor_config as _config
from .collates import (
    COLLATE_FNS as COLLATE_FNS,
    default_collate_fn as default_collate_fn,
    gemma4_prefix_collate_fn as gemma4_prefix_collate_fn,
    kimi_k25_vl_collate_fn as kimi_k25_vl_collate_fn,
    kimi_vl_collate_fn as kimi_vl_collate_fn,
    nemotron_parse_collate_fn as nemotron_parse_collate_fn,
    phi4_mm_collate_fn as phi4_mm_collate_fn,
    qwen2_5_collate_fn as qwen2_5_collate_fn,
    qwen3_omni_collate_fn as qwen3_omni_collate_fn,
)
from .datasets import (
    _collect_sample_stats as _collect_sample_stats,
    _convert_sharegpt_to_conversation as _convert_sharegpt_to_conversation,
    _ExamplesWithStats as _ExamplesWithStats,
    _load_json_or_jsonl as _load_json_or_jsonl,
    _load_jsonl_for_rank as _load_jsonl_for_rank,
    _log_dataset_loading_summary as _log_dataset_loading_summary,
    make_meta_dataset as make_meta_dataset,
)
from .estimate import (
    _estimate_image_tokens as _estimate_image_tokens,
    _estimate_sample_length as _estimate_sample_length,
    _estimate_video_tokens as _estimate_video_tokens,
    _smart_resize_image as _smart_resize_image,
    _smart_resize_video as _smart_resize_video,
)
from .gemma4 import (
    _GEMMA4_MODEL_TURN as _GEMMA4_MODEL_TURN,
    _GEMMA4_THINKING_PREFIX as _GEMMA4_THINKING_PREFIX,
    _inject_thinking_prefix_tokens as _inject_thinking_prefix_tokens,
)
from .grouped import LengthGroupedSampler as LengthGroupedSampler
from .join import (
    _build_packed_vlm_sample as _build_packed_vlm_sample,
    _compute_mrope_position_ids as _compute_mrope_position_ids,
    _shift_sample as _shift_sample,
)
from .kimi import _expand_image_tokens as _expand_image_tokens
from .labels import (
    _IMSTART_TEMPLATE_PROCESSORS as _IMSTART_TEMPLATE_PROCESSORS,
    _decode_single_token as _decode_single_token,
    _extract_assistant_text as _extract_assistant_text,
    _find_pattern_indices as _find_pattern_indices,
    _get_assistant_marker as _get_assistant_marker,
    _get_stop_token_id as _get_stop_token_id,
    build_labels as build_labels,
    build_labels_from_template as build_labels_from_template,
)
from .packing import (
    PackedDatasetWrapper as PackedDatasetWrapper,
    PreTokenizedDatasetWrapper as PreTokenizedDatasetWrapper,
    neat_pack_dataset_vlm as neat_pack_dataset_vlm,
)
from .padded import pad_collate_fn as pad_collate_fn
from .robust import RobustDatasetWrapper as RobustDatasetWrapper, make_robust_collate as make_robust_collate
from .steps import (
    _count_media_per_sample as _count_media_per_sample,
    _drop_overlong_samples as _drop_overlong_samples,
    _ensure_rgb as _ensure_rgb,
    _estimate_media_tokens as _estimate_media_tokens,
    _extract_media_from_conversations as _extract_media_from_conversations,
)

_extract_image_config = _config.extract_image_config


class _Patchable(ModuleType):
    """A name that is set here is set wherever code of this API has it: monkeypatch.setattr(online, "_ensure_rgb", …)
    changes what default_collate_fn calls, as where all names of the API are in one module."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        for module in [_pp_media, *(module for key, module in sys.modules.items() if key.startswith(f"{__name__}."))]:
            if name in vars(module):
                setattr(module, name, value)


sys.modules[__name__].__class__ = _Patchable
