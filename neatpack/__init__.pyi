"""The public names and their homes: type checkers read this file, and `__init__.py` imports by it."""

from neatpack.errors import OutputError as OutputError, ShardError as ShardError
from neatpack.loaders import (
    VLM_PP_MEDIA_KEY as VLM_PP_MEDIA_KEY,
    IndexedPacks as IndexedPacks,
    PackCollater as PackCollater,
    PackedShards as PackedShards,
    PackSampler as PackSampler,
    chunk_step3_media as chunk_step3_media,
    chunk_vlm_media as chunk_vlm_media,
    get_kwargs_chunk_spec as get_kwargs_chunk_spec,
    neat_packed_vlm_collater as neat_packed_vlm_collater,
    num_items_in_batch as num_items_in_batch,
    prepare_vlm_media_for_pp as prepare_vlm_media_for_pp,
    restore_pixels as restore_pixels,
    stage_vlm_media_for_pp as stage_vlm_media_for_pp,
    steps as steps,
    wrap_vlm_collate_for_pp as wrap_vlm_collate_for_pp,
)
from neatpack.loaders.online import (
    COLLATE_FNS as COLLATE_FNS,
    MEDIA_KEYS as MEDIA_KEYS,
    LengthGroupedSampler as LengthGroupedSampler,
    PackedDatasetWrapper as PackedDatasetWrapper,
    PreTokenizedDatasetWrapper as PreTokenizedDatasetWrapper,
    RobustDatasetWrapper as RobustDatasetWrapper,
    build_labels as build_labels,
    build_labels_from_template as build_labels_from_template,
    default_collate_fn as default_collate_fn,
    gemma4_prefix_collate_fn as gemma4_prefix_collate_fn,
    greedy_knapsack_vt_balanced as greedy_knapsack_vt_balanced,
    kimi_k25_vl_collate_fn as kimi_k25_vl_collate_fn,
    kimi_vl_collate_fn as kimi_vl_collate_fn,
    make_cord_v2_dataset as make_cord_v2_dataset,
    make_cv17_dataset as make_cv17_dataset,
    make_medpix_dataset as make_medpix_dataset,
    make_meta_dataset as make_meta_dataset,
    make_rdr_dataset as make_rdr_dataset,
    make_robust_collate as make_robust_collate,
    make_unimm_chat_dataset as make_unimm_chat_dataset,
    neat_pack_dataset_vlm as neat_pack_dataset_vlm,
    nemotron_parse_collate_fn as nemotron_parse_collate_fn,
    pad_collate_fn as pad_collate_fn,
    phi4_mm_collate_fn as phi4_mm_collate_fn,
    qwen2_5_collate_fn as qwen2_5_collate_fn,
    qwen3_omni_collate_fn as qwen3_omni_collate_fn,
)
from neatpack.pipeline.config import (
    DataLossError as DataLossError,
    PackConfig as PackConfig,
    UserError as UserError,
)
from neatpack.pipeline.run import run_pack as run_pack, run_plan as run_plan

__version__: str
