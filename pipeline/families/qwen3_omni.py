"""Qwen3-Omni: as Qwen2-VL for pictures, and it hears: Whisper features, and videos with their sound track.

Positions are float32: temporal patches lie 13 to the second, which need not be whole.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from transformers import WhisperFeatureExtractor

from neatpack.pipeline.families.base import Arrays, ProcessorFiles, ProcessorKey
from neatpack.pipeline.families.qwen2_vl import VIDEO_DEFAULTS, Qwen2VL
from neatpack.pipeline.layout import MediaArray
from neatpack.pipeline.records import IMAGE, TEXT, VIDEO, MeasuredMedia

# The processor passes these bounds to every call, whatever the video processor's own config says.
VIDEO_SIZE = {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32}
NOMINAL_FPS = 1.0  # what the processor takes for the rate of a video, where none is set
CHUNK, TOKENS_PER_CHUNK = 100, 13  # the audio tower takes feature frames in chunks of 100 and makes 13 tokens of each


def audio_tokens(feature_frames: int) -> int:
    """Three convolutions of stride 2 over what is left of a last chunk: 250 frames -> 13 + 13 + 7."""
    tokens = feature_frames % CHUNK
    for _ in range(3):
        tokens = (tokens - 1) // 2 + 1
    return tokens + feature_frames // CHUNK * TOKENS_PER_CHUNK


class Qwen3Omni(Qwen2VL):
    name = "qwen3_omni"
    processor_classes = ("Qwen3OmniMoeProcessor",)
    takes = ("image", "video", "audio")
    opening = {**Qwen2VL.opening, "audio": ("<|audio_start|>",)}
    closing = {**Qwen2VL.closing, "audio": ("<|audio_end|>",)}
    structural_tokens = (*Qwen2VL.structural_tokens, "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")
    video_defaults = {**VIDEO_DEFAULTS, "size": VIDEO_SIZE, "patch_size": 16}
    position_dtype = "float32"

    def __init__(self, files: ProcessorFiles, key: ProcessorKey) -> None:
        super().__init__(files, key)
        self._uses_audio_in_video = key.use_audio_in_video
        self.extractor = WhisperFeatureExtractor.from_dict({"feature_size": 128, **files.audio})
        heard = {
            name: files.audio.get(name) for name in ("feature_size", "sampling_rate", "hop_length", "n_fft", "dither")
        }
        self.config |= {"audio": heard, "use_audio_in_video": key.use_audio_in_video}

    def _configured(self, defaults: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        full = super()._configured(defaults, config)
        if defaults is self.video_defaults:
            full["size"] = VIDEO_SIZE
            full.pop("min_pixels", None)
            full.pop("max_pixels", None)
        return full

    @staticmethod
    def tokens_per_second(files: ProcessorFiles) -> float | None:
        thinker = files.model.get("thinker_config", files.model)
        return thinker.get("position_id_per_seconds", 13)

    @property
    def uses_audio_in_video(self) -> bool:
        return self._uses_audio_in_video

    @property
    def sampling_rate(self) -> int:
        return self.extractor.sampling_rate

    def audio_frames(self, num_samples: int) -> int:
        """Of the sound alone. (In a batch, transformers counts a begun frame of all but the longest sound, too.)"""
        if num_samples <= self.extractor.n_fft // 2:
            seconds = num_samples / self.sampling_rate
            raise ValueError(f"a sound of {seconds:.4f} s is shorter than one window of its features")
        return num_samples // self.extractor.hop_length

    @cached_property
    def media(self) -> dict[str, MediaArray]:
        media = dict(super().media)
        media.pop("second_per_grid_ts")
        return media | {
            "video_second_per_grid": MediaArray(kind="video", dtype="float32", row=()),
            "audio_feature_lengths": MediaArray(kind="audio", dtype="int64", row=()),
            "input_features": MediaArray(
                kind="audio", dtype="float32", row=(self.extractor.feature_size,), counts="audio_feature_lengths",
                mask="feature_attention_mask", transposed=True,
            ),
        }  # fmt: skip

    def rows(self, medium: MeasuredMedia) -> dict[str, int]:
        heard = {}
        if medium.num_samples:
            heard = {"audio_feature_lengths": 1, "input_features": self.audio_frames(medium.num_samples)}
        if medium.ref.kind == "audio":
            return heard
        seen = super().rows(medium)
        if "second_per_grid_ts" in seen:
            seen["video_second_per_grid"] = seen.pop("second_per_grid_ts")
        return seen | heard

    def audio_arrays(self, samples: np.ndarray, medium: MeasuredMedia) -> Arrays:
        features = self.extractor(
            samples, sampling_rate=self.sampling_rate, padding=True, truncation=False, return_tensors="np"
        )["input_features"][0]
        assert features.shape[1] == self.audio_frames(len(samples)), (features.shape, len(samples))
        return {
            "audio_feature_lengths": np.array([features.shape[1]], dtype=np.int64),
            "input_features": np.ascontiguousarray(features.T, dtype=np.float32),
        }

    def video_arrays(self, frames: Any, medium: MeasuredMedia) -> Arrays:
        arrays = super().video_arrays(frames, medium)
        arrays["video_second_per_grid"] = arrays.pop("second_per_grid_ts")
        return arrays

    def seconds_per_patch(self, medium: MeasuredMedia) -> float:
        """By the rate that was asked for, not by the one that came out: so the processor has it."""
        return self.video.temporal_patch_size / (medium.asked_fps or self.video.fps or NOMINAL_FPS)

    def expansion(self, medium: MeasuredMedia) -> np.ndarray:
        if medium.ref.kind == "image" or not medium.num_samples:
            return super().expansion(medium)
        heard = np.full(
            audio_tokens(self.audio_frames(medium.num_samples)), self.placeholder_ids["audio"], dtype=np.int32
        )
        if medium.ref.kind == "audio":
            return heard
        # A video and its sound: their tokens in the order of their times, video first where they are equal.
        seen = super().expansion(medium)
        step = self.seconds_per_patch(medium) * self.facts["tokens_per_second"]
        times = np.repeat(np.arange(medium.grid[0]), len(seen) // medium.grid[0]) * step
        order = np.argsort(np.concatenate([times, np.arange(len(heard))]), kind="stable")
        before, after = self.marker_ids("audio")
        return np.concatenate([before, np.concatenate([seen, heard])[order], after]).astype(np.int32)

    @staticmethod
    def positions(types: np.ndarray, media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> np.ndarray:
        """Sound advances as text does; after a picture or a video all axes go on beyond its largest position.

        The sound of a video runs beside it: both start where the block does, and what comes last in the block tells
        where the text goes on.
        """
        positions = np.empty((3, len(types)), dtype=np.float32)
        images, videos = iter(media["image_grid_thw"].tolist()), iter(media["video_grid_thw"].tolist())
        seconds = iter(media["video_second_per_grid"])
        # Runs of text, of images and of videos with their sound; sound alone counts as text.
        blocks = np.where(types == IMAGE, 1, np.where(types == TEXT, 0, 2))
        starts = np.concatenate(([0], np.flatnonzero(np.diff(blocks)) + 1))
        current = np.float32(0)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(types)], strict=True):
            run = types[start:end]
            is_seen = (run == IMAGE) | (run == VIDEO)
            if not is_seen.any():
                positions[:, start:end] = current + np.arange(end - start, dtype=np.float32)
                current = current + np.float32(end - start)
                continue
            if run[0] == IMAGE:
                block = _grid_positions(next(images), 0, facts["merge_size"])
            else:
                interval = next(seconds) * np.float32(facts["tokens_per_second"])
                block = _grid_positions(next(videos), interval, facts["merge_size"])
            view = positions[:, start:end]
            view[:, is_seen] = block + current
            view[:, ~is_seen] = np.arange(np.count_nonzero(~is_seen), dtype=np.float32) + current
            # The reference goes on beyond what is left when picture or sound has ended, not beyond the whole block.
            others = np.flatnonzero(run != run[-1])
            rest = int(others[-1]) + 1 if len(others) else 0
            current = view[:, rest:].max() + np.float32(1)
        return positions

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        seen = Qwen2VL.media_tokens(media, facts)
        assert seen is not None
        return seen + sum(audio_tokens(frames) for frames in media["audio_feature_lengths"].tolist())


def _grid_positions(grid: list[int], interval: Any, merge_size: int) -> np.ndarray:
    """Time, row and column of each merged patch: float32 [3, tokens]."""
    frames, rows, columns = grid[0], grid[1] // merge_size, grid[2] // merge_size
    block = np.empty((3, frames, rows, columns), dtype=np.float32)
    block[0] = (np.arange(frames, dtype=np.float32) * np.float32(interval))[:, None, None]
    block[1] = np.arange(rows)[None, :, None]
    block[2] = np.arange(columns)[None, None, :]
    return block.reshape(3, -1)
