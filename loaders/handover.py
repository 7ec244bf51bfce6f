"""How a batch goes from a loader's worker to the training process: small tensors by value, large ones in shared memory.

torch puts each tensor into shared memory of its own and sends a file descriptor through a socket, which costs the same
for 8 bytes as for a megabyte: 6 to 8 ms of CPU time for the nine tensors of a pack of 1,024 tokens, on a machine where
the 100 KB that they hold take 0.7 ms through the pipe that carries the batch anyway. Large ones lie in memory that the
worker has again and again (shared.py), where their collater has written them.
"""

import multiprocessing
import os
import threading
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import get_worker_info

from .shared import empty, is_small, received, slots

_TYPES = {kind: kind for kind in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
                                  torch.float16, torch.float32, torch.float64)}  # fmt: skip
_TYPES |= {torch.bfloat16: torch.int16}  # what numpy does not know, and how it carries it


def handed_over(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch itself. In a worker, whatever is sent from now on travels as said above."""
    if get_worker_info() is not None:
        _set_up()
    return batch


@lru_cache(maxsize=1)
def _set_up() -> None:
    ForkingPickler.register(torch.Tensor, _reduced)
    _end_with_parent()


def _end_with_parent() -> None:
    """A worker whose consumer was killed would wait for ever, for someone to read what it has put into the pipe."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def joined(arrays: list[torch.Tensor], dtype: torch.dtype | None = None, *, own: bool = False) -> torch.Tensor:
    """Rows end to end, where the batch is to have them. By numpy: torch's threads would wait for each other.

    dtype: that they get on the way. own: nobody else has the arrays, and one alone is the batch's as it is.
    """
    dtype = dtype or arrays[0].dtype
    if own and len(arrays) == 1 and arrays[0].dtype == dtype and _lies_well(arrays[0]):
        return arrays[0]
    if {array.dtype for array in arrays} - {arrays[0].dtype} or not all(map(_is_carried, arrays)):
        return torch.cat(arrays).to(dtype)  # of a foreign dataset
    result = empty((sum(len(array) for array in arrays), *arrays[0].shape[1:]), dtype)
    for array, rows in zip(arrays, torch.split(result, [len(array) for array in arrays]), strict=True):
        if array.dtype == dtype:
            np.copyto(_carried(rows), _carried(array))
        else:
            rows.copy_(array)
    return result


def _lies_well(tensor: torch.Tensor) -> bool:
    """Where the batch would have it: in memory of this process, or of a worker's that the other process can have."""
    return get_worker_info() is None or is_small(tensor.nbytes) or slots(os.getpid()).hold(tensor)


def _is_carried(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _TYPES and tensor.device.type == "cpu" and not tensor.requires_grad


def _carried(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(_TYPES[tensor.dtype]).numpy()


def _reduced(tensor: torch.Tensor) -> Any:
    """How a tensor is pickled on its way through the worker's queue."""
    if tensor.layout == torch.strided and _is_carried(tensor):
        if is_small(tensor.nbytes):
            return _by_value, (_carried(tensor), tensor.dtype)
        if tensor.is_contiguous() and (sent := slots(os.getpid()).sent(tensor)) is not None:
            return received, (sent,)
    return reduce_tensor(tensor)  # type: ignore[no-untyped-call]


def _by_value(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(array).view(dtype)
