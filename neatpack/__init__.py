"""neatpack: multimodal conversations in, packed ready-to-train webdataset shards out.

    neatpack.pipeline   the offline job: `neatpack pack`, or run_pack(PackConfig(...))
    neatpack.loaders    the thin loader: PackedShards and its collaters; neatpack.loaders.online packs on the fly

The names below are the public API. Each is imported when it is first asked for: `import neatpack` is instant, and a
training machine, which only reads shards, needs neither Ray nor transformers.
"""

from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

_here = _Path(__file__).resolve().parent
if not (_here / "pipeline").is_dir():  # a checkout: the subpackages lie beside this folder, not inside it as in a wheel
    __path__.append(str(_here.parent))

from neatpack.pipeline import __version__ as __version__  # noqa: E402 (found by the path above)

if TYPE_CHECKING:
    from neatpack.loaders import (
        VLM_PP_MEDIA_KEY as VLM_PP_MEDIA_KEY,
        PackCollater as PackCollater,
        PackedShards as PackedShards,
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
    from neatpack.pipeline.manifest import OutputError as OutputError, ShardError as ShardError
    from neatpack.pipeline.run import run_pack as run_pack, run_plan as run_plan

# The same names by their home, for when the program runs and nothing of it is imported yet.
_HOMES = {
    "neatpack.loaders": ("VLM_PP_MEDIA_KEY", "PackCollater", "PackedShards", "chunk_step3_media", "chunk_vlm_media",
                         "get_kwargs_chunk_spec", "neat_packed_vlm_collater", "num_items_in_batch",
                         "prepare_vlm_media_for_pp", "restore_pixels", "stage_vlm_media_for_pp", "steps",
                         "wrap_vlm_collate_for_pp"),
    "neatpack.loaders.online": ("COLLATE_FNS", "MEDIA_KEYS", "LengthGroupedSampler", "PackedDatasetWrapper",
                                "PreTokenizedDatasetWrapper", "RobustDatasetWrapper", "build_labels",
                                "build_labels_from_template", "default_collate_fn", "gemma4_prefix_collate_fn",
                                "greedy_knapsack_vt_balanced", "kimi_k25_vl_collate_fn", "kimi_vl_collate_fn",
                                "make_cord_v2_dataset", "make_cv17_dataset", "make_medpix_dataset",
                                "make_meta_dataset", "make_rdr_dataset", "make_robust_collate",
                                "make_unimm_chat_dataset", "neat_pack_dataset_vlm", "nemotron_parse_collate_fn",
                                "pad_collate_fn", "phi4_mm_collate_fn", "qwen2_5_collate_fn", "qwen3_omni_collate_fn"),
    "neatpack.pipeline.config": ("DataLossError", "PackConfig", "UserError"),
    "neatpack.pipeline.manifest": ("OutputError", "ShardError"),
    "neatpack.pipeline.run": ("run_pack", "run_plan"),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME]

if not TYPE_CHECKING:  # a type checker takes the imports above, and so knows every name and its type

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(_import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            from .pipeline.extras import remedy

            extra = "online" if _HOME[name] == "neatpack.loaders.online" else "pack"
            if message := remedy(error.name, f"neatpack.{name}", extra):
                raise ModuleNotFoundError(message, name=error.name) from None
            raise

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOME})
