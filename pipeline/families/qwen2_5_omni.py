"""Qwen2.5-Omni: near Qwen3-Omni, with other names of its tokens, one token for 40 ms of sound, and whole positions.

The sound track of a video is not heard: this model interleaves it in chunks of two seconds, which is not written here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from neatpack.format.layout import AUDIO, IMAGE, TEXT

from .base import Family, ProcessorFiles, ProcessorKey
from .chat import Chat
from .qwen2_vl import VIDEO_DEFAULTS, image_config, patch_tokens, video_config
from .qwen3_omni import OMNI_CHAT, OmniSound, OmniVideos, video_bounds
from .rules import PatchImages

VISION = ("<|vision_bos|>",), ("<|vision_eos|>",)
SOUND = ("<|audio_bos|>",), ("<|audio_eos|>",)
CHAT = replace(
    OMNI_CHAT,
    placeholders={"image": "<|IMAGE|>", "video": "<|VIDEO|>", "audio": "<|AUDIO|>"},
    opening={"image": VISION[0], "video": VISION[0], "audio": SOUND[0]},
    closing={"image": VISION[1], "video": VISION[1], "audio": SOUND[1]},
    structural_tokens=(
        "<|im_start|>", "<|im_end|>", "<|endoftext|>", *VISION[0], *VISION[1], *SOUND[0], *SOUND[1],
        "<|IMAGE|>", "<|VIDEO|>", "<|AUDIO|>",
    ),
)  # fmt: skip
NOMINAL_FPS = 2.0  # what the processor takes for the rate of a video, where none is set


def audio_tokens(feature_frames: int) -> int:
    """A convolution and a pooling, of stride 2 each: 124 frames, 1.24 s, -> 31."""
    return ((feature_frames - 1) // 2 + 1 - 2) // 2 + 1


@dataclass(frozen=True, kw_only=True)
class Sound(OmniSound):
    """Features of each sound with silence behind it, as of the processor, which fills it up to 300 seconds."""

    def frames(self, num_samples: int) -> int:
        """A begun frame counts."""
        if num_samples > self.extractor.n_samples:
            seconds, most = num_samples / self.sampling_rate, self.extractor.n_samples / self.sampling_rate
            raise ValueError(f"a sound of {seconds:.1f} s is longer than {most:.0f} s, where the processor cuts it off")
        frames = -(-num_samples // self.extractor.hop_length)
        if audio_tokens(frames) < 1:
            raise self.too_short(num_samples)
        return int(frames)

    def tokens_of(self, frames: int) -> int:
        return audio_tokens(frames)

    def features(self, samples: np.ndarray) -> np.ndarray:
        heard = self.extractor(samples, sampling_rate=self.sampling_rate, padding="max_length", return_tensors="np")
        frames = self.frames(len(samples))
        return np.ascontiguousarray(heard["input_features"][0, :, :frames].T, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class Videos(OmniVideos):
    nominal_fps = NOMINAL_FPS


class Qwen25Omni(Family):
    name = "qwen2_5_omni"
    revision = 2
    processor_classes = ("Qwen2_5OmniProcessor",)
    model_types = ("qwen2_5_omni", "qwen2_5_omni_thinker")
    position_axes = 3

    @classmethod
    def load(cls, files: ProcessorFiles, key: ProcessorKey) -> Self:
        from transformers import WhisperFeatureExtractor

        image = PatchImages.of(image_config(files, key, cls.name))
        thinker = files.model.get("thinker_config", files.model)
        tokens_per_second = thinker.get("position_id_per_seconds", 25)
        video = Videos.of(
            video_config(files, key, cls.name, VIDEO_DEFAULTS, **video_bounds(28)),
            tokens_per_second=tokens_per_second,
        )
        return cls(
            Chat(CHAT, files.tokenizer, source=files.source, takes=("image", "video", "audio")),
            image=image,
            video=video,
            sound=Sound(extractor=WhisperFeatureExtractor.from_dict({"feature_size": 128, **files.audio})),
            facts={"merge_size": image.merge_size, "tokens_per_second": tokens_per_second},
        )

    @staticmethod
    def positions(types: np.ndarray, media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> np.ndarray:
        """Sound advances as text does. After a picture or a video all axes go on beyond its largest position."""
        positions = np.empty((3, len(types)), dtype=np.int32)
        images, videos = iter(media["image_grid_thw"].tolist()), iter(media["video_grid_thw"].tolist())
        seconds, merge = iter(media["video_second_per_grid"]), facts["merge_size"]
        kinds = np.where(types == AUDIO, TEXT, types)
        starts = np.concatenate(([0], np.flatnonzero(np.diff(kinds)) + 1)).tolist()
        current = 0
        for start, end in zip(starts, [*starts[1:], len(types)], strict=True):
            view = positions[:, start:end]
            if kinds[start] == TEXT:
                view[:] = current + np.arange(end - start)
            else:
                is_image = kinds[start] == IMAGE
                frames, rows, columns = next(images if is_image else videos)
                times = np.arange(frames, dtype=np.float32) * (0 if is_image else next(seconds))
                block = view.reshape(3, frames, rows // merge, columns // merge)
                # float32 products, then truncation: torch's own arithmetic for these ids.
                whole = (times * np.float32(facts["tokens_per_second"])).astype(np.int32)
                block[0] = current + whole[:, None, None]
                block[1] = current + np.arange(rows // merge)[None, :, None]
                block[2] = current + np.arange(columns // merge)[None, None, :]
            current = int(view.max()) + 1
        return positions

    @staticmethod
    def media_tokens(media: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> int | None:
        return patch_tokens(media, facts) + sum(map(audio_tokens, media["audio_feature_lengths"].tolist()))
