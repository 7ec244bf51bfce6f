"""SmolVLM on the demo's vocabulary: Idefics3's, of another class, and a video processor. Doubles, as that is.

The template knows no videos and the vocabulary no <video>: so are the published ones.
"""

import json
from pathlib import Path
from typing import Any

from processors import idefics3

VIDEO = {"video_processor_type": "SmolVLMVideoProcessor", "size": {"longest_edge": 96},
         "max_image_size": {"longest_edge": 32}, "fps": 1, "num_frames": 8}  # fmt: skip


def make(folder: Path, video: dict[str, Any] | None = None, **image: Any) -> Path:
    """`video`: in the place of its video processor's config."""
    idefics3.make(folder, "SmolVLM", **image)
    (folder / "video_preprocessor_config.json").write_text(json.dumps(VIDEO if video is None else video))
    return folder


def make_published(folder: Path) -> Path:
    """As published: what is taken of a video is told beside the settings of pictures."""
    sampling = {"fps": 2, "max_frames": 5, "video_size": {"longest_edge": 64}}
    idefics3.make(folder, "SmolVLM", video_sampling=sampling, video_processor_type="SmolVLMVideoProcessor")
    return folder


def make_all_frames(folder: Path) -> Path:
    """Of an odd size, other than that of pictures, and resampled otherwise; every frame is taken."""
    return make(folder, {**VIDEO, "size": {"longest_edge": 57}, "resample": 3, "fps": None, "num_frames": None})
