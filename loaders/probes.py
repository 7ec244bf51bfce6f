"""What a model does with its arguments, asked of the model: versions of transformers need not be known.

Asked are copies that share all with the model but some of their modules: stand-ins that tell what they are given. So
nothing is computed. A model that cannot be asked, whatever it raises, is taken for one that does not do what is asked
for: what it gets instead is right for any model.
"""

import copy
import logging
from typing import Any

import torch

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
    """A shallow copy; by `copy.copy`, modules of fully_shard would be made anew."""
    copied = object.__new__(type(module))
    copied.__dict__.update(module.__dict__)
    return copied


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
