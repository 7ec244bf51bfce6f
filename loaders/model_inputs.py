"""PackCollater: packs -> exactly what `model(**batch)` takes, of models of transformers."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.nn.functional import pad

from neatpack.errors import UserError
from neatpack.format.layout import IGNORE

from .mended import warn_if_unmended
from .packed import neat_packed_vlm_collater, positions_inside
from .pixels import with_stored_pixels
from .pp_media import CollateForPP
from .probes import isolates_by_positions, isolates_recurrent_layers, passes_shift_labels, unwrapped
from .recurrent import REMEDY, recurrent_layers

logger = logging.getLogger(__name__)

# What the packed batch has for other readers than the model: pipeline stages, context parallelism.
NOT_FOR_MODELS = ("_packed_seq_ids", "n_images_per_sample", "n_videos_per_sample", "n_audios_per_sample")
# Ways to keep documents apart, with the arguments that a model must take for it.
VARLEN = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
FOR_RECURRENT = ("cu_seq_lens_q", "seq_idx", "use_cache")
WAYS = {"mask": ("attention_mask",), "positions": ("use_cache",), "varlen": VARLEN}


@dataclass(frozen=True, kw_only=True)
class PackCollater:
    """Packs into a batch that is splatted into a model of transformers: `loss = model(**batch).loss`.

    `shift_labels` are the labels as they are on disk, shifted already; with them the losses of transformers do not
    shift `labels`, which is the same tensor. Everything else in the batch is an argument of the model.

    attn_implementation  as the model's: sdpa, eager, flex_attention, or a flash attention (flash_attention_2, …)
    isolate              what keeps documents apart:
        mask             a block-causal mask made here, for sdpa and eager: any version of transformers takes it, but
                         it is S * S bytes a pack, 268 MB at 16,384 tokens (as floats, for eager, four times that)
        positions        transformers makes the mask itself, on the GPU, from positions that begin anew in every
                         document: sdpa, eager and flex_attention
        varlen           cu_seq_lens_q/k and max_length_q/k, for flash attention. Without them transformers would keep
                         documents apart in batches of one pack only
                         Default: varlen for flash attention, positions for flex_attention, else mask
    recurrent            the model has layers that no mask reaches, and keeps documents apart in them by cu_seq_lens_q
                         and seq_idx: the packs of a batch are one row then, and have both
    takes                names of the model's arguments, where it does not take any others
    unshifted_labels     for a model that shifts `labels` all the same: they are moved back by one, so that its shift
                         makes of them what is on disk. Rows are longer by one, for the last label of a full pack
    the rest             as of `neat_packed_vlm_collater`
    """

    attn_implementation: str = "sdpa"
    isolate: str = ""
    padding_idx: int = 0
    max_length: int | None = None
    sliding_window: int | None = None
    bidirectional_vision: bool | Literal["all"] = False
    recurrent: bool = False
    takes: frozenset[str] | None = None
    unshifted_labels: bool = False

    def __post_init__(self) -> None:
        possible = _possible_ways(self.attn_implementation)
        if self.isolate not in ("", *possible):
            raise UserError(
                f"isolate is {self.isolate!r}, but {self.attn_implementation} keeps documents apart by "
                f"{' or '.join(possible)}",
                code="model-unsupported",
                isolate=self.isolate,
                possible=list(possible),
                attn_implementation=self.attn_implementation,
            )
        if self.way == "varlen" and self.bidirectional_vision:
            raise UserError(
                f"{self.attn_implementation} cannot look ahead in a picture, but the model does "
                "(bidirectional_vision); load it with attn_implementation='sdpa'",
                code="model-unsupported",
                attn_implementation=self.attn_implementation,
                bidirectional_vision=True,
            )

    @property
    def way(self) -> str:
        return self.isolate or _possible_ways(self.attn_implementation)[0]

    def __call__(self, packs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        is_mask, max_length = self.way == "mask", self.max_length
        if self.unshifted_labels:
            max_length = 1 + (max_length or max(len(pack["input_ids"]) for pack in packs))
        batch = neat_packed_vlm_collater(
            packs,
            self.padding_idx,
            max_length,
            self.attn_implementation if is_mask else "flash_attention_2",
            varlen_kwargs=self.way == "varlen",
            sliding_window=self.sliding_window if is_mask else None,
            bidirectional_vision=self.bidirectional_vision if is_mask else False,
            recurrent=self.recurrent,
        )
        if self.bidirectional_vision == "all":  # Gemma 3's name for them, by which it makes its masks
            batch["token_type_ids"] = batch.pop("mm_token_type_ids")
        if self.way == "positions":
            documents, positions = batch.pop("attention_mask"), batch["position_ids"]
            if positions.ndim == 3:  # three axes are no count of tokens; transformers takes that as one before them
                batch["position_ids"] = torch.cat([positions_inside(documents)[None], positions])
            batch["use_cache"] = False  # with a cache transformers takes positions for those of a continued text
        if self.recurrent:
            batch["use_cache"] = False  # nor is a state to be kept of the last document
        if self.unshifted_labels:
            batch["labels"] = pad(batch["labels"][:, :-1], (1, 0), value=IGNORE)
        return self._for_the_model(batch)

    def _for_the_model(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in with_stored_pixels(batch).items()
            if name not in NOT_FOR_MODELS and (self.takes is None or name in self.takes)
        }


def restores_pixels(collate_fn: object) -> bool:
    """Whether a collater takes packs whose pixels it is to restore: ours, also with arguments, or for pipelines."""
    if isinstance(collate_fn, partial):
        return restores_pixels(collate_fn.func)
    if isinstance(collate_fn, CollateForPP):
        return restores_pixels(collate_fn.collate_fn)
    return isinstance(collate_fn, PackCollater) or collate_fn is neat_packed_vlm_collater


def _possible_ways(attn_implementation: str) -> tuple[str, ...]:
    """The first is the default."""
    if "flash" in attn_implementation:  # flash_attention_2, flash_attention_3, kernels-community/flash-attn2
        return ("varlen",)
    ways = {"sdpa": ("mask", "positions"), "eager": ("mask", "positions"), "flex_attention": ("positions",)}
    if attn_implementation not in ways:
        raise UserError(
            f"attn_implementation {attn_implementation!r} is unknown; expected {', '.join(ways)} or a flash attention. "
            "For one of your own, give that of these which takes the same arguments",
            code="model-unsupported",
            attn_implementation=attn_implementation,
        )
    return ways[attn_implementation]


def collater_for(family: Mapping[str, Any], model: torch.nn.Module | None = None, **options: Any) -> PackCollater:
    """The collater for packs of a family (as the manifest describes it) and a model; options win.

    With sdpa and eager, documents are kept apart by positions if the model is seen to do so, else by a mask: positions
    are a few bytes per token on the way to the GPU, and a model that would let documents see each other is told by
    asking it, whatever the version of transformers is. In the same way, a model that does not hand shift_labels to its
    loss (Qwen3-VL of transformers 5.5 and before) gets unshifted_labels.
    """
    facts = family["facts"]
    chosen: dict[str, Any] = {"padding_idx": family["padding_id"]}
    if model is None and facts.get("bidirectional_vision") == "all" and facts["sliding_window"] is None:
        raise UserError(
            "the model that these packs are for looks ahead in its pictures, within a window that its processor "
            "does not tell (no config.json is beside it): give the model, collater(model)",
            code="option-missing",
            argument="model",
        )
    if facts.get("sliding_window") is not None:  # Gemma's
        chosen |= {name: facts[name] for name in ("sliding_window", "bidirectional_vision")}
    if model is None:
        if (layers := family.get("recurrent_layers")) and "recurrent" not in options:
            raise UserError(
                f"the model that these packs are for has layers of the kind {', '.join(layers)}, in which no attention "
                "mask keeps documents apart: give the model, collater(model), which is then asked whether it does, or "
                "recurrent=True if you know that",
                code="model-layers",
                layers=list(layers),
            )
        return PackCollater(**(chosen | options))
    if isinstance(model, torch.nn.DataParallel):
        raise UserError(
            "torch.nn.DataParallel cuts each tensor of a batch along axis 0, which is not that of the batch in "
            "positions and pixels; use DistributedDataParallel, one process for each GPU (torchrun)",
            code="trainer-unsupported",
            trainer="DataParallel",
        )
    inner = unwrapped(model)
    warn_if_unmended(inner)
    _check_tokens(inner, family)
    takes = _arguments(inner)
    chosen |= {"takes": takes, "unshifted_labels": takes is None and not passes_shift_labels(inner)}
    chosen |= _attention_of(inner) | {"recurrent": _recurrent(inner, family, options)} | options
    asked = PackCollater(**chosen)
    if "positions" in _possible_ways(asked.attn_implementation) and options.get("isolate") != "mask":
        if isolates_by_positions(inner, family["position_axes"]):
            chosen["isolate"] = "positions"
        elif asked.way == "positions":
            raise UserError(
                f"{type(inner).__name__} does not keep documents apart by positions (isolate='positions', which "
                f"{asked.attn_implementation} was to use) with this version of transformers: load it with "
                "attn_implementation='sdpa' and use isolate='mask', or use a newer transformers",
                code="model-unsupported",
                model=type(inner).__name__,
                isolate="positions",
            )
    collater = PackCollater(**chosen)
    if "takes" not in options:
        _check_arguments(collater, family["media"], type(inner).__name__)
    return collater


def _check_tokens(model: torch.nn.Module, family: Mapping[str, Any]) -> None:
    """That a model is one for the processor that packed, as far as token ids tell: it would fail later, or on a GPU."""
    config, ids = getattr(model, "config", None), family["placeholder_ids"]
    theirs = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
    remedy = "; an output is for models of the processor that packed it: pack with the model's own"
    if isinstance(theirs, int) and ids.get("image", theirs) != theirs:
        raise UserError(
            f"pictures are token {ids['image']} in these packs, and {theirs} for {type(model).__name__}{remedy}",
            code="model-mismatch",
            kind="image",
            got=theirs,
            expected=ids["image"],
        )
    with suppress(AttributeError, NotImplementedError):  # a model that does not tell
        size = int(model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        # Not those of media, which Kimi K2.5 has beyond what it embeds.
        highest = max([family["padding_id"], *family.get("assistant_header_ids", ())])
        if highest >= size:
            raise UserError(
                f"these packs have token {highest}, and {type(model).__name__} embeds {size} tokens, from 0{remedy}",
                code="model-mismatch",
                model=type(model).__name__,
                got=size,
                expected=highest,
            )
    vision, facts = getattr(config, "vision_config", None), family["facts"]
    seconds = getattr(vision, "tokens_per_second", None)
    if family["name"] == "qwen2_vl" and vision is not None and seconds != facts["tokens_per_second"]:
        logger.warning(
            "%s has tokens_per_second %s, and the processor that packed %s: frames of videos have other positions in "
            "these packs than the model gives them. Pack with the model's own processor, if there are any",
            type(model).__name__, seconds, facts["tokens_per_second"],
        )  # fmt: skip


def _recurrent(model: torch.nn.Module, family: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether a model has layers that no mask reaches, by its config, and else as the manifest says.

    Raises ValueError if documents would leak through them.
    """
    layers = recurrent_layers(model) if hasattr(model, "config") else tuple(family.get("recurrent_layers") or ())
    if layers and "recurrent" not in options and not isolates_recurrent_layers(model):
        raise UserError(
            f"{type(model).__name__} has layers of the kind {', '.join(layers)}, which carry a state from document to "
            f"document here, whatever the attention mask says: {REMEDY}",
            code="model-layers",
            model=type(model).__name__,
            layers=list(layers),
        )
    return bool(layers)


def _arguments(model: torch.nn.Module) -> frozenset[str] | None:
    """Names of what a model's forward takes; None: anything."""
    parameters = inspect.signature(model.forward).parameters.values()
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


def _attention_of(model: Any) -> dict[str, Any]:
    """What a model's config says of its attention: that of the text, which may be another than that of the pictures."""
    config = getattr(model, "config", None)
    if config is None:
        return {}
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    found = {"attn_implementation": text._attn_implementation}
    if "sliding_attention" in (getattr(text, "layer_types", None) or ()):
        both_ways: bool | str = getattr(text, "use_bidirectional_attention", None) == "vision"
        if getattr(config, "model_type", "") == "gemma3":
            both_ways = "all"
        found |= {"sliding_window": text.sliding_window, "bidirectional_vision": both_ways}
    return found


def _check_arguments(collater: PackCollater, media: Mapping[str, Any], model: str) -> None:
    """That a model takes what packs cannot be trained without."""
    if collater.takes is None:
        return
    labels = () if collater.unshifted_labels else ("shift_labels",)
    seen = (name for name in media if "pixel_values" in name or "input_features" in name)
    needed = ("input_ids", "labels", *labels, "position_ids", *WAYS[collater.way], *seen)
    needed += FOR_RECURRENT if collater.recurrent else ()
    if missing := [name for name in needed if name not in collater.takes]:
        remedies = ["add them to its forward, or let that take **kwargs"]
        if "shift_labels" in missing:
            remedies.append(
                "if its loss shifts labels, collater(model, unshifted_labels=True) does without shift_labels"
            )
        if set(missing) & set(WAYS["positions"] + WAYS["varlen"]) and "flash" not in collater.attn_implementation:
            remedies.append("isolate='mask' needs attention_mask only")
        raise UserError(
            f"the forward of {model} does not take {', '.join(missing)}, without which packs are trained wrongly; "
            + "; ".join(remedies),
            code="model-unsupported",
            model=model,
            missing=list(missing),
        )
