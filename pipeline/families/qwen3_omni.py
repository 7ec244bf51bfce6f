"""Qwen3-Omni: Qwen2-VL for pictures, Whisper features for audio, and videos interleaved with their sound track.

Positions are float32: temporal patches lie 13 to the second, which need not be whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from neatpack.format.layout import IMAGE, TEXT, VIDEO, Delivery, MediaArray

from ..records import MeasuredMedia
from .base import Family, ProcessorFiles, ProcessorKey
from .chat import Chat
from .qwen2_vl import CHAT, VIDEO_DEFAULTS, Qwen2Videos, image_config, patch_tokens, video_config
from .rules import PatchImages, SoundFeatures

OMNI_CHAT = replace(
    CHAT,
    placeholders={**CHAT.placeholders, "audio": "<|audio_pad|>"},
    opening={**CHAT.opening, "audio": ("<|audio_start|>",)},
    closing={**CHAT.closing, "audio": ("<|audio_end|>",)},
    structural_tokens=(*CHAT.structural_tokens, "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"),
)
NOMINAL_FPS = 1.0  # what the processor takes for the rate of a video, where none is set
CHUNK, TOKENS_PER_CHUNK = 100, 13  # the audio tower takes feature frames in chunks of 100 and makes 13 tokens of each


def video_bounds(side: int) -> dict[str, Any]:
    """The processor passes these to every call, whatever the video processor's own config says. `side`: pixels of a
    merged patch."""
    size = {"shortest_edge": 128 * side**2, "longest_edge": 768 * side**2}
    return {"size": size, "min_pixels": None, "max_pixels": None}


def audio_tokens(feature_frames: int) -> int:
    """Three convolutions of stride 2 over what is left of a last chunk: 250 frames -> 13 + 13 + 7."""
    tokens = feature_frames % CHUNK
    for _ in range(3):
        tokens = (tokens - 1) // 2 + 1
    return tokens + feature_frames // CHUNK * TOKENS_PER_CHUNK


@dataclass(frozen=True, kw_only=True)
class OmniSound(SoundFeatures):
    delivery = Delivery(mask="feature_attention_mask", transposed=True)

    def frames(self, num_samples: int) -> int:
        """Of the sound alone. (In a batch, transformers counts a begun frame of all but the longest sound, too.)"""
        if num_samples <= self.extractor.n_fft // 2:
            raise self.too_short(num_samples)
        return int(num_samples // self.extractor.hop_length)

    def tokens_of(self, frames: int) -> int:
        return audio_tokens(frames)

    def features(self, samples: np.ndarray) -> np.ndarray:
        heard = self.extractor(
            samples, sampling_rate=self.sampling_rate, padding=True, truncation=False, return_tensors="np"
        )
        return np.ascontiguousarray(heard["input_features"][0].T, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class OmniVideos(Qwen2Videos):
    seconds_name = "video_second_per_grid"
    tokens_per_second: float
    nominal_fps: ClassVar[float] = NOMINAL_FPS

    @property
    def arrays(self) -> dict[str, MediaArray]:
        """The seconds come last."""
        arrays = super().arrays
        seconds = arrays.pop(self.seconds_name)
        return {**arrays, self.seconds_name: seconds}

    def seconds_per_patch(self, medium: MeasuredMedia) -> float:
        """By the rate that was asked for, not by the one that came out: so the processor has it."""
        return self.temporal_patch_size / (medium.asked_fps or self.fps or self.nominal_fps)

    def expansion(self, medium: MeasuredMedia, chat: Chat) -> np.ndarray:
        """Of a video and its sound, tokens in the order of their times, the video's first where they are equal."""
        seen = super().expansion(medium, chat)
        if self.sound is None or not medium.num_samples:
            return seen
        heard = self.sound.expansion(medium, chat)
        step = self.seconds_per_patch(medium) * self.tokens_per_second
        times = np.repeat(np.arange(medium.grid[0]), len(seen) // medium.grid[0]) * step
        order = np.argsort(np.concatenate([times, np.arange(len(heard))]), kind="stable")
        before, after = chat.marker_ids("audio")
        return np.concatenate([before, np.concatenate([seen, heard])[order], after]).astype(np.int32)


class Qwen3Omni(Family):
    name = "qwen3_omni"
    revision = 3
    processor_classes = ("Qwen3OmniMoeProcessor",)
    model_types = ("qwen3_omni_moe", "qwen3_omni_moe_thinker")
    position_axes = 3
    position_dtype = "float32"

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        from transformers import WhisperFeatureExtractor

        image = PatchImages.of(image_config(files, key, cls.name))
        sound = OmniSound(extractor=WhisperFeatureExtractor.from_dict({"feature_size": 128, **files.audio}))
        thinker = files.model.get("thinker_config", files.model)
        tokens_per_second = thinker.get("position_id_per_seconds", 13)
        defaults = {**VIDEO_DEFAULTS, "patch_size": 16}
        video = OmniVideos.of(
            video_config(files, key, cls.name, defaults, **video_bounds(32)),
            tokens_per_second=tokens_per_second,
            sound=sound if key.use_audio_in_video else None,
        )
        return cls(
            Chat(OMNI_CHAT, files.tokenizer, source=files.source, takes=("image", "video", "audio")),
            image=image,
            video=video,
            sound=sound,
            facts={"merge_size": image.merge_size, "tokens_per_second": tokens_per_second},
        )

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
        return patch_tokens(media, facts) + sum(map(audio_tokens, media["audio_feature_lengths"].tolist()))


def _grid_positions(grid: list[int], interval: Any, merge_size: int) -> np.ndarray:
    """Time, row and column of each merged patch: float32 [3, tokens]."""
    frames, rows, columns = grid[0], grid[1] // merge_size, grid[2] // merge_size
    block = np.empty((3, frames, rows, columns), dtype=np.float32)
    block[0] = (np.arange(frames, dtype=np.float32) * np.float32(interval))[:, None, None]
    block[1] = np.arange(rows)[None, :, None]
    block[2] = np.arange(columns)[None, None, :]
    return block.reshape(3, -1)
