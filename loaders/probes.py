"""What a model does with its arguments, asked of the model: versions of transformers need not be known.

Asked are copies that share all with the model but some of their modules: stand-ins that tell what they are given. So
next to nothing is computed. A model that cannot be asked, whatever it raises, is taken for one that does not do what is
asked for: what it gets instead is right for any model, or an error with a remedy.
"""

import copy
import logging
from functools import partial
from types import MethodType
from typing import Any

import torch

from ..pipeline.records import MASKED_LAYERS
from .recurrent import recurrent_layers, recurrent_modules_of

logger = logging.getLogger(__name__)


def unwrapped(model: Any) -> Any:
    """The model of transformers inside DistributedDataParallel, FSDP, torch.compile and PEFT."""
    for name in ("module", "_orig_mod"):
        if isinstance(inside := getattr(model, name, None), torch.nn.Module):
            return unwrapped(inside)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


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


def _copied(module: Any) -> Any:
    """A shallow copy; by `copy.copy`, modules of fully_shard would be made anew.

    A forward that somebody has given to this one module (accelerate does, with mixed precision and with hooks) is bound
    to it, and would run all of it: the copy has it bound to the copy.
    """
    copied = object.__new__(type(module))
    copied.__dict__.update({name: _bound_to(value, module, copied) for name, value in module.__dict__.items()})
    return copied


def _bound_to(value: Any, module: Any, copied: Any) -> Any:
    if isinstance(value, MethodType) and value.__self__ is module:
        return MethodType(value.__func__, copied)
    if isinstance(value, partial) and any(part is module for part in value.args):
        return partial(value.func, *(copied if part is module else part for part in value.args), **value.keywords)
    return value


@torch.no_grad()
def isolates_by_positions(model: Any, position_axes: int) -> bool:
    """Whether a model keeps documents apart by their positions: its text model is asked for the mask of two documents.

    The mask is that of sdpa; what it says is the same for all kinds. A model that cannot be asked does not.
    """
    inside = torch.tensor([[0, 1, 0, 1]])
    try:
        text = model.get_decoder()
        probe = _copied(text)
        teller: Any = _MaskTeller()
        teller.attention_type = getattr(text.layers[0], "attention_type", None)
        probe._modules = {**text._modules, "layers": torch.nn.ModuleList([teller])}
        probe.config = copy.copy(text.config)
        probe.config._attn_implementation = "sdpa"
        if recurrent_layers(text):  # of those, no mask would be told
            probe.config.layer_types = ["full_attention"]
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
    except Exception as error:
        logger.debug(
            "%s cannot be asked whether it keeps documents apart by positions: %r", type(model).__name__, error
        )
    return False


class _Narrow(torch.nn.Module):
    """In place of a linear layer of any width: as many numbers, made from the mean of what it gets."""

    def __init__(self, linear: torch.nn.Linear, like: torch.Tensor) -> None:
        super().__init__()
        self.numbers = torch.linspace(-0.7, 1.3, linear.out_features).to(like)  # with a mean

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given.mean(-1, keepdim=True) * self.numbers


class _AsItIs(_Nothing):
    """In place of a norm, whose type of numbers models ask for, or of what comes beside the recurrent module."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = weight


@torch.no_grad()
def isolates_recurrent_layers(model: Any) -> bool:
    """Whether a model's recurrent layers keep documents apart by cu_seq_lens_q and seq_idx.

    Its text model is asked, with one layer of each kind and stand-ins for all weights, by running it on eight tokens:
    document 2 must come out the same whatever document 1 is, and must not if nothing is told of documents. Kernels run
    on a GPU only, so that is where it runs, if there is one. A model that cannot be asked does not.
    """
    gpu = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    like = torch.zeros((), device=gpu, dtype=torch.bfloat16) if gpu else torch.zeros(())  # kernels want bf16
    bounds = torch.tensor([0, 5, 8], dtype=torch.int32, device=like.device)
    told = {
        "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 5, "max_length_k": 5,
        "seq_idx": torch.tensor([[0] * 5 + [1] * 3], dtype=torch.int32, device=like.device),
    }  # fmt: skip
    try:
        text = model.get_decoder()
        width = text.config.hidden_size
        tokens = torch.linspace(-20, 20, 8 * width).sin().view(1, 8, width).to(like)
        others = torch.cat([-3 * tokens[:, :5], tokens[:, 5:]], dim=1)
        layers = zip(text.layers, text.config.layer_types, strict=False)
        for kind, layer in {kind: layer for layer, kind in layers if kind not in MASKED_LAYERS}.items():
            probe = _one_layer(text, layer, kind, like)
            apart, leaking = (
                [probe.forward(inputs_embeds=given, use_cache=False, **kwargs)[0][:, 5:].float()
                 for given in (tokens, others)] for kwargs in (told, {})
            )  # fmt: skip
            far = 1e-3 * float(leaking[0].abs().max())
            if not _close(apart, far) or _close(leaking, far):
                return False
    except Exception as error:
        logger.debug("%s cannot be asked about its recurrent layers: %r", type(model).__name__, error)
        return False
    return True


def _close(both: list[torch.Tensor], far: float) -> bool:
    one, other = both
    return torch.allclose(one, other, atol=far)


def _one_layer(text: Any, layer: Any, kind: str, like: torch.Tensor) -> Any:
    """A text model of nothing but one recurrent layer, in which nothing is but the recurrent module."""
    working = set(recurrent_modules_of(layer))
    inside = _copied(layer)
    inside._modules = {
        name: _with_stand_ins(child, like) if child in working else _stand_in(child, like)
        for name, child in layer._modules.items()
    }
    probe = _copied(text)
    probe._modules = {
        name: torch.nn.ModuleList([inside]) if name == "layers" else _stand_in(child, like)
        for name, child in text._modules.items()
    }
    probe.config = copy.copy(text.config)
    probe.config.layer_types, probe.config.num_hidden_layers = [kind], 1
    return probe


def _with_stand_ins(module: Any, like: torch.Tensor) -> Any:
    """A copy whose weights are small numbers of the same shapes, on the device of `like`; norms give what they get."""
    probe = _copied(module)
    probe._parameters = {
        name: None if value is None else torch.linspace(-1, 1, value.numel()).view(value.shape).to(like.device)
        for name, value in module._parameters.items()
    }
    probe._modules = {name: _stand_in(child, like) for name, child in module._modules.items()}
    return probe


def _stand_in(child: Any, like: torch.Tensor) -> Any:
    if isinstance(child, torch.nn.Linear):
        return _Narrow(child, like)
    if isinstance(child, torch.nn.Conv1d):
        made = torch.nn.Conv1d(child.in_channels, child.out_channels, child.kernel_size[0], groups=child.groups,
                               padding=int(child.padding[0]), bias=child.bias is not None)  # fmt: skip
        for weight in made.parameters():
            weight.copy_(torch.linspace(-1, 1, weight.numel()).cos().view(weight.shape))
        return made.to(like)
    return copy.deepcopy(child).to(like.device) if next(child.parameters(), None) is None else _AsItIs(like)


@torch.no_grad()
def passes_shift_labels(model: Any) -> bool:
    """Whether a model hands shift_labels on to its loss. A model that cannot be asked does not."""

    def loss(*_: Any, shift_labels: torch.Tensor | None = None, **__: Any) -> None:
        raise _Given(shift_labels)

    labels = torch.zeros(1, 2, dtype=torch.long)
    try:
        probe = _copied(model)
        probe._modules = {name: _Nothing() for name in model._modules}
        probe.loss_function = loss
        probe.forward(input_ids=labels, labels=labels, shift_labels=labels)
    except _Given as given:
        return given.args[0] is labels
    except Exception as error:
        logger.debug("%s cannot be asked whether it takes shift_labels: %r", type(model).__name__, error)
    return False
