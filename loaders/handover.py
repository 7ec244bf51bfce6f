"""How a batch goes from a loader's worker to the training process: small tensors by value, large ones in shared memory.

torch puts each tensor into shared memory of its own and sends a file descriptor through a socket, which costs the same
for 8 bytes as for a megabyte: 6 to 8 ms of CPU time for the nine tensors of a pack of 1,024 tokens, on a machine where
the 100 KB that they hold take 0.7 ms through the pipe that carries the batch anyway.
"""

import multiprocessing
import os
import threading
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

SMALL = 256 * 1024  # bytes; positions of 8,192 tokens on three axes are 192 KB
_TYPES = {torch.bfloat16: torch.int16}  # what numpy does not know, and how it carries it


def handed_over(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch as a worker should return it; elsewhere the batch itself."""
    if get_worker_info() is None:
        return batch
    _end_with_parent()
    return _Batch(batch)


@lru_cache(maxsize=1)
def _end_with_parent() -> None:
    """A worker whose consumer was killed would wait for ever, for someone to read what it has put into the pipe."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def joined(arrays: list[torch.Tensor]) -> torch.Tensor:
    """Rows end to end, in a worker straight in shared memory if they are large: torch would copy them there."""
    num_bytes = sum(array.nbytes for array in arrays)
    if get_worker_info() is None or num_bytes <= SMALL:
        return torch.cat(arrays)
    storage = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]
    shared = arrays[0].new_empty(0).set_(storage)
    shape = (sum(len(array) for array in arrays), *arrays[0].shape[1:])
    return torch.cat(arrays, out=shared.view(shape))


class _Batch(dict[str, Any]):
    """Pickled on its way through the worker's queue; what comes out is a plain dict of tensors."""

    def __reduce__(self) -> tuple[Any, ...]:
        made = {id(value): _by_value(value) for value in self.values()}  # labels are there twice, and sent once
        return _received, ({name: made[id(value)] for name, value in self.items()},)


class _Small(NamedTuple):
    array: np.ndarray
    dtype: torch.dtype


def _by_value(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.nbytes > SMALL:
        return value
    return _Small(value.view(_TYPES.get(value.dtype, value.dtype)).numpy(), value.dtype)


def _received(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(value.array).view(value.dtype) if isinstance(value, _Small) else value
        for name, value in batch.items()
    }
