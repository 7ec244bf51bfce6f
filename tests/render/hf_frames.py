"""Which frames HF video processors choose, as JSON; a process of its own.

python hf_frames.py '[["Glm4vVideoProcessor", {}, [[total, fps], …]], …]'
"""

import json
import sys
from importlib import import_module

import with_torchvision  # noqa: F401 (first)
from transformers.video_utils import VideoMetadata

chosen = []
for name, settings, videos in json.loads(sys.argv[1]):
    processor = getattr(import_module("transformers"), name)(**settings)
    for total, fps in videos:
        metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
        chosen.append(processor.sample_frames(metadata, fps=settings.get("fps")).tolist())
print(json.dumps(chosen))
