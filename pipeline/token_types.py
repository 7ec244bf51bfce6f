"""What each token of a document is: text, or one of a picture, a video or a sound. Written here and nowhere else."""

from collections.abc import Mapping, Sequence

import numpy as np

from neatpack.format.layout import IMAGE, TEXT, TOKEN_TYPES, VIDEO, MediaKind


def token_types(ids: np.ndarray, placeholders: Mapping[MediaKind, int], video_span: Sequence[int] = ()) -> np.ndarray:
    """By the placeholder of each kind. `video_span`: two tokens between which pictures are frames of a video, where a
    family writes both by one token: placeholder 5, span (8, 9), ids [5, 8, 5, 3, 9, 5] -> [1, 0, 2, 0, 0, 1].
    """
    types = np.full(len(ids), TEXT, dtype=np.uint8)
    for kind, token in placeholders.items():
        types[ids == token] = TOKEN_TYPES[kind]
    if video_span:
        start, end = video_span
        inside = np.cumsum(ids == start) > np.cumsum(ids == end)
        types[inside & (types == IMAGE)] = VIDEO
    return types
