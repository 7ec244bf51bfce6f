"""3-axis (temporal, height, width) position ids of one document, in numpy and without a model object.

Text advances all three axes together; a vision block of t x h x w merged patches is laid out on a grid of its own, and
the text after it goes on max(h, w) further (not t: transformers v5 changed this from v4).
"""

from collections.abc import Sequence

import numpy as np

from neatpack.format.layout import IMAGE, TEXT


def mrope_positions(
    token_types: np.ndarray,
    image_grids: Sequence[tuple[int, int, int]],
    video_grids: Sequence[tuple[int, int, int]] = (),
    *,
    merge_size: int,
    video_intervals: Sequence[float] | None = None,
) -> np.ndarray:
    """Position ids [3, L] for token types like [0, 0, 1, 1, 1, 1, 0]; grids in patches, in order of appearance.

    `video_intervals`: position units between the temporal patches of each video (Qwen2.5-VL: tokens per second times
    seconds per temporal patch); 1 where not given.
    """
    positions = np.empty((3, len(token_types)), dtype=np.int32)
    if not len(token_types):
        return positions
    # Runs of equal type: [0, 0, 1, 1, 0] -> starts [0, 2, 4], ends [2, 4, 5].
    starts = np.concatenate(([0], np.flatnonzero(np.diff(token_types)) + 1))
    ends = np.append(starts[1:], len(token_types))
    images, videos = iter(image_grids), iter(video_grids)
    intervals = iter(video_intervals if video_intervals is not None else [1] * len(video_grids))
    current = 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        kind = token_types[start]
        if kind == TEXT:
            positions[:, start:end] = np.arange(current, current + end - start)
            current += end - start
            continue
        frames, rows, columns = next(images) if kind == IMAGE else next(videos)
        rows, columns = rows // merge_size, columns // merge_size
        assert frames * rows * columns == end - start, "vision tokens differ from their grid"
        interval = 1 if kind == IMAGE else next(intervals)
        # float32 product, then truncation: torch's own arithmetic for these ids.
        times = (np.arange(frames, dtype=np.float32) * np.float32(interval)).astype(np.int32)
        block = positions[:, start:end].reshape(3, frames, rows, columns)
        block[0] = current + times[:, None, None]
        block[1] = current + np.arange(rows)[None, :, None]
        block[2] = current + np.arange(columns)[None, None, :]
        current += max(rows, columns)
    return positions
