"""Layers beside attention that carry a state from token to token, across documents, too: which a model has, and what
keeps documents apart in them.

    linear_attention   gated delta rule and causal convolution: Qwen3.5, Qwen3-Next. transformers hands cu_seq_lens_q to
                       the kernels of flash-linear-attention and seq_idx to those of causal-conv1d. Its own torch code
                       takes neither: given them, 5.22 raises; without them, or in other versions, documents leak
    conv, mamba, …     as far as a version of transformers hands these arguments on; the model is asked

`run_by_document` is for whoever has no such kernels: any of these layers runs document by document, by the model's own
code, exactly and more slowly.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

from ..pipeline.records import MASKED_LAYERS

REMEDY = (
    "install flash-linear-attention and causal-conv1d, with which transformers keeps documents apart, or call "
    "neatpack.loaders.recurrent.run_by_document(model) first, which needs no kernels and takes more time. "
    "recurrent=True goes on without asking"
)


def recurrent_layers(model: Any) -> tuple[str, ...]:
    """Kinds of layers in a model's text that no attention mask reaches, by its config: Qwen3.5 -> linear_attention."""
    config = getattr(model, "config", None)
    if config is None:
        return ()
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return tuple(sorted(set(getattr(text, "layer_types", None) or ()) - MASKED_LAYERS))


def recurrent_modules_of(layer: Any) -> list[Any]:
    """The modules that do the work of a recurrent layer: what has a short convolution in it, as all of them do."""
    return [child for child in layer.children() if any(map(_is_convolution, child.modules()))]


def _is_convolution(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Conv1d)


def run_by_document(model: Any) -> Any:
    """The same model, whose recurrent layers run each document of a batch by itself, as cu_seq_lens_q says.

    Before it is wrapped by FSDP or torch.compile. Time: a call of the layer per document. Weights and their names stay.
    """
    text = model.get_decoder()
    for layer, kind in zip(text.layers, text.config.layer_types, strict=False):
        if kind not in MASKED_LAYERS:
            for module in recurrent_modules_of(layer):
                cls: Any = type(module)
                module.__class__ = _by_document(cls)
    return model


@lru_cache(maxsize=16)
def _by_document(cls: Any) -> Any:
    class ByDocument(cls):  # type: ignore[misc]
        def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            run, bounds = super().forward, kwargs.pop("cu_seq_lens_q", None)
            if bounds is None:
                return run(hidden_states, *args, **kwargs)  # type: ignore[no-any-return]
            for name in ("cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"):
                kwargs.pop(name, None)
            assert len(hidden_states) == 1 and kwargs.get("attention_mask") is None, "one row, without padding"
            # Microbatches are filled up with documents without tokens.
            ends = [(first, last) for first, last in pairwise(bounds.tolist()) if first < last]
            documents = (hidden_states[:, first:last] for first, last in ends)
            return torch.cat([run(document, *args, **kwargs) for document in documents], dim=1)

    ByDocument.__name__ = ByDocument.__qualname__ = cls.__name__
    return ByDocument
