"""Sounds for online use, by the decoder that packing uses: `datasets` would want torchcodec."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...media.audio import decode_audio, own_rate
from ...records import MediaError, MediaRef


def decoded_sound(value: Any, sampling_rate: int | None = None) -> tuple[np.ndarray, int]:
    """(samples, sampling rate) of what a column holds: float32, mono, in [-1, 1]; at the file's own rate by default."""
    if isinstance(value, Mapping) and value.get("array") is not None:
        return np.asarray(value["array"], dtype=np.float32), int(value["sampling_rate"])
    if isinstance(value, Mapping):
        value = value["path"] if value.get("bytes") is None else value["bytes"]
    if isinstance(value, bytes):
        return _decoded(MediaRef(kind="audio", path="(sound in memory)", held=value), sampling_rate)
    if isinstance(value, str):
        return _decoded(MediaRef(kind="audio", path=value), sampling_rate)
    samples, rate = value  # decoded already
    return samples, rate


def _decoded(ref: MediaRef, sampling_rate: int | None) -> tuple[np.ndarray, int]:
    try:
        rate = own_rate(ref) if sampling_rate is None else sampling_rate
        return decode_audio(ref, rate), rate
    except MediaError as error:
        raise OSError(f"not a readable sound: {error}") from error
