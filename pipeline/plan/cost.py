"""About what rendering a pack takes. It only cuts the work evenly: nothing that comes out depends on it."""

import numpy as np

from .table import Plan

# Seconds that rendering takes on one core, by what the plan says: of a document, of a token, of a document with
# pictures or videos, of a byte of its media after resizing. By Qwen2.5-VL's rules: 0.5 ms for 6 documents and 2,048
# tokens of text (jobs/bench.py text: 30 to 160 us a document), 10 ms with a picture of 0.9 MB among them.
DOCUMENT_SECONDS, TOKEN_SECONDS, VISUAL_SECONDS, BYTE_SECONDS = 50e-6, 0.1e-6, 2.25e-3, 8e-9


def pack_seconds(plan: Plan) -> np.ndarray:
    if not plan.num_packs:
        return np.zeros(0)
    visual = (plan.packed["visual_tokens"].to_numpy() > 0).astype(np.int64)
    seconds: np.ndarray = (
        DOCUMENT_SECONDS * np.diff(plan.starts)
        + TOKEN_SECONDS * plan.per_pack("tokens")
        + VISUAL_SECONDS * np.add.reduceat(visual, plan.starts[:-1])
        + BYTE_SECONDS * plan.per_pack("media_bytes")
    )
    return seconds
