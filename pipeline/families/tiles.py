"""Rules that several families share: pictures and frames as square tiles of one size."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ..media.pixels import resize_torch, tiles_of
from ..records import MeasuredMedia
from .base import Grid, ImageRule, Size, VideoRule
from .rules import PixelRule


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
class TileImages(SquareTiles, ImageRule):
    """Pictures that are resized to whole tiles."""

    @property
    def smallest(self) -> MeasuredMedia:
        return self.blank(*self.in_tiles(1, 1))


@dataclass(frozen=True, kw_only=True)
class TilesAndWhole(TileImages):
    """Tiles of so many tokens each, and behind them the whole picture as one more, unless there is only one."""

    tile_tokens: int

    def num_rows(self, medium: MeasuredMedia) -> int:
        """2 x 3 -> 7, 1 x 1 -> 1."""
        tiles = math.prod(medium.grid)
        return tiles + (tiles > 1)

    def tokens(self, medium: MeasuredMedia) -> int:
        return self.num_rows(medium) * self.tile_tokens

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
        if "nframes" in asked:  # whatever bound the config has
            return replace(self, num_frames=asked["nframes"], max_frames=0)
        return replace(self, max_frames=asked["max_frames"])

    def shape(self, num_frames: int, height: int, width: int) -> tuple[Size, Grid]:
        return (self.side, self.side), (num_frames, 1, 1)

    def tiles(self, frames: Iterable[np.ndarray]) -> np.ndarray:
        return np.concatenate([tiles_of(resize_torch(frame, (self.side, self.side)), self.side) for frame in frames])
