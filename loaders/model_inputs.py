"""PackCollater: packs -> exactly what `model(**batch)` takes, of models of transformers."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .packed import neat_packed_vlm_collater

# What the packed batch has for other readers than the model: pipeline stages, context parallelism.
NOT_FOR_MODELS = ("_packed_seq_ids", "n_images_per_sample", "n_videos_per_sample", "n_audios_per_sample")


@dataclass(frozen=True, kw_only=True)
class PackCollater:
    """Packs into a batch that is splatted into a model of transformers: `loss = model(**batch).loss`.

    `labels` are shifted already, and `shift_labels` is the same tensor: with it the losses of transformers do not shift
    once more. Everything else in the batch is an argument of the model.

    attn_implementation  as the model's: sdpa, eager, flash_attention_2, flash_attention_3
    takes                names of the model's arguments, where it does not take any others
    the rest             as of `neat_packed_vlm_collater`
    """

    attn_implementation: str = "sdpa"
    padding_idx: int = 0
    max_length: int | None = None
    sliding_window: int | None = None
    bidirectional_vision: bool = False
    takes: frozenset[str] | None = None

    def __call__(self, packs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        flash = self.attn_implementation.startswith("flash_attention")
        batch = neat_packed_vlm_collater(
            packs,
            self.padding_idx,
            self.max_length,
            "flash_attention_2" if flash else self.attn_implementation,
            varlen_kwargs=flash,
            sliding_window=None if flash else self.sliding_window,
            bidirectional_vision=self.bidirectional_vision,
        )
        return {
            name: value
            for name, value in batch.items()
            if name not in NOT_FOR_MODELS and (self.takes is None or name in self.takes)
        }


def collater_for(family: Mapping[str, Any], model: torch.nn.Module | None = None, **options: Any) -> PackCollater:
    """The collater for packs of a family (as the manifest describes it) and a model; options win."""
    facts = family["facts"]
    chosen: dict[str, Any] = {"padding_idx": family["padding_id"]}
    if facts.get("sliding_window") is not None:  # Gemma's
        chosen |= {name: facts[name] for name in ("sliding_window", "bidirectional_vision")}
    if model is not None:
        chosen |= {"attn_implementation": model.config._attn_implementation, "takes": _arguments(model)}
    return PackCollater(**(chosen | options))


def _arguments(model: torch.nn.Module) -> frozenset[str] | None:
    """Names of what a model's forward takes; None: anything."""
    inner = getattr(model, "module", model)  # of DistributedDataParallel
    parameters = inspect.signature(inner.forward).parameters.values()
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)
