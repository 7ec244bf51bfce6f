"""How pixels become patches in processors of the Qwen kind, read from their own config."""

from dataclasses import dataclass
from typing import Any

from neatpack.pipeline.families.base import Grid
from neatpack.pipeline.media.resize import smart_resize_image


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    min_pixels: int
    max_pixels: int
    rescale_factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_config(cls, config: dict[str, Any], **more: Any) -> Any:
        size = config["size"]
        return cls(
            patch_size=config["patch_size"],
            merge_size=config["merge_size"],
            temporal_patch_size=config["temporal_patch_size"],
            min_pixels=config.get("min_pixels") or size["shortest_edge"],
            max_pixels=config.get("max_pixels") or size["longest_edge"],
            rescale_factor=config["rescale_factor"],
            mean=tuple(config["image_mean"]),
            std=tuple(config["image_std"]),
            **more,
        )

    @property
    def factor(self) -> int:
        """Pixels on a side of a merged patch."""
        return self.patch_size * self.merge_size

    @property
    def patch_bytes(self) -> int:
        """Bytes of one frame's patch: uint8. A still image is stored without its duplicate in time."""
        return len(self.mean) * self.patch_size**2

    def tokens(self, grid: Grid) -> int:
        return grid[0] * grid[1] * grid[2] // self.merge_size**2


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageGeometry(Geometry):
    def resized(self, height: int, width: int) -> tuple[int, int]:
        return smart_resize_image(height, width, self.factor, self.min_pixels, self.max_pixels)

    def grid(self, height: int, width: int) -> Grid:
        new_height, new_width = self.resized(height, width)
        return 1, new_height // self.patch_size, new_width // self.patch_size


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoGeometry(Geometry):
    fps: float | None
    num_frames: int | None
    min_frames: int
    max_frames: int
    samples_frames: bool
    cap_pixels_per_frame: bool
    max_video_tokens: int
