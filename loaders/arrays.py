"""Large arrays of a batch: allocated, filled and concatenated by numpy.

numpy asks the kernel for huge pages, which halves the time of the first write to large arrays. Its copies use one
thread: torch's threads wait for each other over small arrays, and over all arrays on a busy machine.
"""

from collections.abc import Sequence

import numpy as np
import torch

_CARRIED = {
    torch.bool: np.bool_, torch.uint8: np.uint8, torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32,
    torch.int64: np.int64, torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64,
    torch.bfloat16: np.int16,  # numpy has no bfloat16
}  # fmt: skip


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor with undefined values."""
    return torch.from_numpy(np.empty(shape, _CARRIED[dtype])).view(dtype)


def filled(shape: Sequence[int], dtype: torch.dtype, value: float) -> torch.Tensor:
    """Return a tensor with one value everywhere. Zeros cost nothing until something is written there."""
    if not value:
        return torch.from_numpy(np.zeros(shape, _CARRIED[dtype])).view(dtype)
    made = empty(shape, dtype)
    made.numpy()[...] = value
    return made


def concatenate(
    arrays: Sequence[torch.Tensor], dtype: torch.dtype | None = None, *, is_owned: bool = False
) -> torch.Tensor:
    """Concatenate rows and cast them.

    Args:
        arrays: one or more, of equal rows.
        dtype: of the result; None keeps that of the arrays.
        is_owned: nobody else has the arrays, so a single one is returned as it is.
    """
    dtype = dtype or arrays[0].dtype
    if is_owned and len(arrays) == 1 and arrays[0].dtype == dtype:
        return arrays[0]
    if {array.dtype for array in arrays} - {arrays[0].dtype} or not all(map(_is_carried, arrays)):
        return torch.cat(list(arrays)).to(dtype)  # samples of a foreign dataset
    result = empty((sum(map(len, arrays)), *arrays[0].shape[1:]), dtype)
    for array, rows in zip(arrays, torch.split(result, list(map(len, arrays))), strict=True):
        if array.dtype == dtype:
            np.copyto(_as_numpy(rows), _as_numpy(array))
        else:
            rows.copy_(array)
    return result


def _is_carried(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _CARRIED and tensor.device.type == "cpu" and not tensor.requires_grad


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
