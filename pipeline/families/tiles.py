"""Rules that several families share: pictures and frames as square tiles of one size."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from neatpack.format.layout import TOKEN_TYPES, Delivery, MediaArray

from ..config import UserError
from ..media.pixels import resize_torch, tiles_of
from ..records import MeasuredMedia
from .base import Arrays, Grid, ImageRule, Size, VideoRule
from .rules import PixelRule, thinned

ONE_TILE = "gives every frame one tile"  # why it has no sizes to set


@dataclass(frozen=True, kw_only=True)
class SquareTiles(PixelRule):
    """Pictures or frames as square tiles of one size."""

    side: int  # pixels

    @property
    def tile(self) -> tuple[int, int, int]:
        """The shape of a stored tile."""
        return len(self.image_mean), self.side, self.side

    def in_tiles(self, rows: int, columns: int, longest_edge: int = 0) -> tuple[Size, Grid]:
        """The size and the grid of so many: 2 rows of 3 tiles of 56 pixels -> (112, 168), (1, 2, 3).

        longest_edge: what the longer side was brought to before, if it was.
        """
        if not rows * columns:
            raise ValueError(f"a side of it vanishes when the other is brought to {longest_edge}; crop the picture")
        return (rows * self.side, columns * self.side), (1, rows, columns)


@dataclass(frozen=True, kw_only=True)
class CountedTiles(SquareTiles):
    """As many tokens for every tile."""

    tile_tokens: int = 1

    def tokens(self, medium: MeasuredMedia) -> int:
        return self.num_rows(medium) * self.tile_tokens


@dataclass(frozen=True, kw_only=True)
class TileImages(CountedTiles, ImageRule):
    """Pictures that are resized to whole tiles."""

    @property
    def smallest(self) -> MeasuredMedia:
        return self.blank(*self.in_tiles(1, 1))


@dataclass(frozen=True, kw_only=True)
class TilesAndWhole(TileImages):
    """Behind the tiles the whole picture as one more, unless there is only one."""

    def num_rows(self, medium: MeasuredMedia) -> int:
        """2 x 3 -> 7, 1 x 1 -> 1."""
        tiles = super().num_rows(medium)
        return tiles + (tiles > 1)

    def tiles(self, resized: np.ndarray, whole: Callable[[Size], np.ndarray]) -> np.ndarray:
        """Of a resized picture, and where there are several, of `whole`: the picture as large as it is told."""
        tiles = tiles_of(resized, self.side)
        if len(tiles) == 1:
            return tiles
        return np.concatenate([tiles, tiles_of(whole((self.side, self.side)), self.side)])


@dataclass(frozen=True, kw_only=True)
class FrameTiles(SquareTiles, VideoRule):
    """Every frame is one tile; always as torchvision does, transformers' only backend for videos."""

    fps: float | None
    num_frames: int | None
    max_frames: int  # 0: no bound
    wishes = ("nframes", "max_frames")

    def wished(self, asked: Mapping[str, int]) -> Self:
        if "nframes" in asked:  # whatever the config has; all frames where there are fewer
            return replace(self, num_frames=None, fps=None, max_frames=asked["nframes"])
        return replace(self, max_frames=asked["max_frames"])

    def shape(self, num_frames: int, height: int, width: int) -> tuple[Size, Grid]:
        return (self.side, self.side), (num_frames, 1, 1)

    def resized(self, frame: np.ndarray) -> np.ndarray:
        return resize_torch(frame, (self.side, self.side))

    def smaller(self, medium: MeasuredMedia, level: int) -> MeasuredMedia:
        """Each level halves the frames."""
        frames = thinned(medium.frames, max(1, len(medium.frames) >> level))
        return replace(medium, frames=frames, grid=(len(frames), 1, 1))

    def tiles(self, frames: Iterable[np.ndarray]) -> np.ndarray:
        return np.concatenate([tiles_of(self.resized(frame), self.side) for frame in frames])


@dataclass(frozen=True, kw_only=True)
class TilesOfBoth(CountedTiles):
    """Tiles of pictures and frames of videos in one array, told apart by another: the model needs no such thing, but
    readers need not guess.
    """

    counted: ClassVar[str]  # the array with the number of tiles of each medium
    delivery: ClassVar[Mapping[str, Any]] = {}

    @property
    def arrays(self) -> dict[str, MediaArray]:
        both: Any = {"kinds": ("image", "video")}
        deliver = Delivery(table="image", **self.delivery)
        return {
            "visual_kinds": MediaArray(**both, dtype="int64", row=()),
            self.counted: MediaArray(**both, dtype="int64", row=()),
            "pixel_values": MediaArray(**both, dtype="uint8", row=self.tile, counts=self.counted, deliver=deliver),
        }

    def as_arrays(self, tiles: np.ndarray) -> Arrays:
        kind, number = (np.array([value], dtype=np.int64) for value in (TOKEN_TYPES[self.kind], len(tiles)))
        return {"visual_kinds": kind, self.counted: number, "pixel_values": tiles}


def check_alike(
    source: str, family: str, images: Mapping[str, Any], videos: Mapping[str, Any], names: Iterable[str]
) -> None:
    """What one array cannot have twice: settings of these names, in the configs of pictures and of videos."""
    for name in names:
        if images[name] != videos[name]:
            raise UserError(
                f"--processor {source}: {name} of pictures is {images[name]}, and of videos {videos[name]}; "
                f"{family} has both in one array, and needs the same",
                code="processor-unsupported",
                key=name,
                family=family,
            )
