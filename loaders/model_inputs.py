"""PackCollater: packs -> exactly what `model(**batch)` takes, of models of transformers."""

import copy
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from ..pipeline.records import IGNORE
from .packed import neat_packed_vlm_collater, positions_inside
from .pixels import STORED_KEY

_log = logging.getLogger(__name__)

# What the packed batch has for other readers than the model: pipeline stages, context parallelism.
NOT_FOR_MODELS = ("_packed_seq_ids", "n_images_per_sample", "n_videos_per_sample", "n_audios_per_sample")
# Ways to keep documents apart, with the arguments that a model must take for it.
VARLEN = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
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
    bidirectional_vision: bool = False
    takes: frozenset[str] | None = None
    unshifted_labels: bool = False

    def __post_init__(self) -> None:
        possible = _possible_ways(self.attn_implementation)
        if self.isolate not in ("", *possible):
            raise ValueError(
                f"isolate is {self.isolate!r}, but {self.attn_implementation} keeps documents apart by "
                f"{' or '.join(possible)}"
            )
        if self.way == "varlen" and self.bidirectional_vision:
            raise ValueError(
                f"{self.attn_implementation} cannot look ahead in a picture, but the model does "
                "(bidirectional_vision); load it with attn_implementation='sdpa'"
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
            bidirectional_vision=self.bidirectional_vision and is_mask,
        )
        if self.way == "positions":
            documents, positions = batch.pop("attention_mask"), batch["position_ids"]
            if positions.ndim == 3:  # three axes are no count of tokens; transformers takes that as one before them
                batch["position_ids"] = torch.cat([positions_inside(documents)[None], positions])
            batch["use_cache"] = False  # with a cache transformers takes positions for those of a continued text
        if self.unshifted_labels:
            batch["labels"] = pad(batch["labels"][:, :-1], (1, 0), value=IGNORE)
        return self._for_the_model(batch)

    def _for_the_model(self, batch: dict[str, Any]) -> dict[str, Any]:
        kept = set(batch) - set(NOT_FOR_MODELS)
        if self.takes is not None:
            stored = batch.get(STORED_KEY, {}).values()  # bytes; `restore_pixels` needs more to make pixels of them
            restoring = {STORED_KEY, *(name for how in stored for name in (how.counts, how.first))}
            kept &= self.takes | restoring
        return {name: value for name, value in batch.items() if name in kept}


def _possible_ways(attn_implementation: str) -> tuple[str, ...]:
    """The first is the default."""
    if "flash" in attn_implementation:  # flash_attention_2, flash_attention_3, kernels-community/flash-attn2
        return ("varlen",)
    ways = {"sdpa": ("mask", "positions"), "eager": ("mask", "positions"), "flex_attention": ("positions",)}
    if attn_implementation not in ways:
        raise ValueError(
            f"attn_implementation {attn_implementation!r} is unknown; expected {', '.join(ways)} or a flash attention. "
            "For one of your own, give that of these which takes the same arguments"
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
    if facts.get("sliding_window") is not None:  # Gemma's
        chosen |= {name: facts[name] for name in ("sliding_window", "bidirectional_vision")}
    if model is None:
        return PackCollater(**(chosen | options))
    inner = unwrapped(model)
    takes = _arguments(inner)
    chosen |= {"takes": takes, "unshifted_labels": takes is None and not passes_shift_labels(inner)}
    chosen |= _attention_of(inner) | options
    asked = PackCollater(**chosen)
    if "positions" in _possible_ways(asked.attn_implementation) and options.get("isolate") != "mask":
        if isolates_by_positions(inner, family["position_axes"]):
            chosen["isolate"] = "positions"
        elif asked.way == "positions":
            raise ValueError(
                f"{type(inner).__name__} does not keep documents apart by positions (isolate='positions', which "
                f"{asked.attn_implementation} was to use) with this version of transformers: load it with "
                "attn_implementation='sdpa' and use isolate='mask', or use a newer transformers"
            )
    collater = PackCollater(**chosen)
    if "takes" not in options:
        _check_arguments(collater, family["media"], type(inner).__name__)
    return collater


def unwrapped(model: Any) -> Any:
    """The model of transformers inside DistributedDataParallel, FSDP, torch.compile and PEFT."""
    for name in ("module", "_orig_mod"):
        if isinstance(inside := getattr(model, name, None), torch.nn.Module):
            return unwrapped(inside)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


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
        both_ways = getattr(text, "use_bidirectional_attention", None) == "vision"
        found |= {"sliding_window": text.sliding_window, "bidirectional_vision": both_ways}
    return found


def _check_arguments(collater: PackCollater, media: Mapping[str, Any], model: str) -> None:
    """That a model takes what packs cannot be trained without."""
    if collater.takes is None:
        return
    labels = () if collater.unshifted_labels else ("shift_labels",)
    seen = (name for name in media if "pixel_values" in name or "input_features" in name)
    needed = ("input_ids", "labels", *labels, "position_ids", *WAYS[collater.way], *seen)
    if missing := [name for name in needed if name not in collater.takes]:
        remedies = ["add them to its forward, or let that take **kwargs"]
        if "shift_labels" in missing:
            remedies.append(
                "if its loss shifts labels, collater(model, unshifted_labels=True) does without shift_labels"
            )
        if set(missing) & set(WAYS["positions"] + WAYS["varlen"]) and "flash" not in collater.attn_implementation:
            remedies.append("isolate='mask' needs attention_mask only")
        raise ValueError(
            f"the forward of {model} does not take {', '.join(missing)}, without which packs are trained wrongly; "
            + "; ".join(remedies)
        )


# What a model does with its arguments is asked of copies that share all with it but some of their modules: stand-ins
# that tell what they are given. So nothing is computed, and the versions of transformers need not be known.


class _Given(Exception):
    """Carries what a stand-in was given."""


class _MaskTeller(torch.nn.Module):
    """In place of the layers."""

    def forward(self, *_: Any, attention_mask: torch.Tensor | None = None, **__: Any) -> None:
        raise _Given(attention_mask)


class _Nothing(torch.nn.Module):
    """In place of all that comes before a loss: a body is called by names, a head with the tensor that it gave."""

    def forward(self, *tensors: torch.Tensor, **_: Any) -> Any:
        return tensors[0] if tensors else _NoOutputs()


class _NoOutputs:
    def __getattr__(self, name: str) -> Any:
        return torch.zeros(1, 2, 2) if name == "last_hidden_state" else None

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1, 2, 2)


@torch.no_grad()
def isolates_by_positions(model: Any, position_axes: int) -> bool:
    """Whether a model keeps documents apart by their positions: its text model is asked for the mask of two documents.

    The mask is that of sdpa; what it says is the same for all kinds. A model that cannot be asked does not.
    """
    inside = torch.tensor([[0, 1, 0, 1]])
    try:
        text = model.get_decoder()
        probe = copy.copy(text)
        teller: Any = _MaskTeller()
        teller.attention_type = getattr(text.layers[0], "attention_type", None)
        probe._modules = {**text._modules, "layers": torch.nn.ModuleList([teller])}
        probe.config = copy.copy(text.config)
        probe.config._attn_implementation = "sdpa"
        probe.hidden_size_per_layer_input = 0  # Gemma's, which would be computed from embeddings
        device = next(text.parameters()).device
        positions = inside.expand(4, 1, 4) if position_axes == 3 else inside
        embedded = torch.zeros(1, 4, text.config.hidden_size, device=device)
        probe.forward(inputs_embeds=embedded, position_ids=positions.to(device), use_cache=False)
    except _Given as given:
        mask = given.args[0]
        if mask is None or mask.is_meta or mask.shape[-2:] != (4, 4):
            return False
        expected = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]).bool()
        return torch.equal(mask[0, 0].cpu(), expected)
    except Exception as error:  # of any kind, as models are
        _log.debug("%s cannot be asked whether it keeps documents apart by positions: %r", type(model).__name__, error)
    return False


@torch.no_grad()
def passes_shift_labels(model: Any) -> bool:
    """Whether a model hands shift_labels on to its loss. A model that cannot be asked does not."""

    def loss(*_: Any, shift_labels: torch.Tensor | None = None, **__: Any) -> None:
        raise _Given(shift_labels)

    labels = torch.zeros(1, 2, dtype=torch.long)
    try:
        probe = copy.copy(model)
        probe._modules = {name: _Nothing() for name in model._modules}
        probe.loss_function = loss
        probe.forward(input_ids=labels, labels=labels, shift_labels=labels)
    except _Given as given:
        return given.args[0] is labels
    except Exception as error:
        _log.debug("%s cannot be asked whether it takes shift_labels: %r", type(model).__name__, error)
    return False
