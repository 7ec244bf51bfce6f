"""Sounds for online use, by the decoder that packing uses: `datasets` would want torchcodec."""

from collections.abc import Mapping
from typing import Any

import av
import numpy as np

from pipeline.records import MediaError, MediaRef


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
    return value  # decoded already: (samples, sampling rate)


def _decoded(ref: MediaRef, sampling_rate: int | None) -> tuple[np.ndarray, int]:
    # Here and not above: packing decodes in a later stage, and reading a meta JSON must not load all of transformers.
    from pipeline.measure.audio import decode_audio
    from pipeline.measure.probe import open_media

    try:
        if sampling_rate is None:
            with open_media(ref) as file, av.open(file, mode="r", metadata_errors="ignore") as container:
                if not container.streams.audio:
                    raise MediaError("bad_media", f"{ref.path}: has no audio stream")
                sampling_rate = container.streams.audio[0].rate
        return decode_audio(ref, sampling_rate), sampling_rate
    except (MediaError, av.FFmpegError) as error:
        raise OSError(f"not a readable sound: {error}") from error
