"""What qwen-vl-utils makes of videos, as JSON; a process of its own.

python qwen_vl_utils_sizes.py [[total, fps, height, width], …]: for each, [number of frames, their numbers, size] or
null where it raises ValueError. Exit 3: no usable torchvision; exit 4: qwen-vl-utils is not installed.
"""

import json
import sys
from importlib import import_module
from typing import Any

import with_torchvision  # noqa: F401 (first)

try:
    vision_process: Any = import_module("qwen_vl_utils.vision_process")
except ImportError:
    sys.exit(4)
import torch

videos = json.loads(sys.argv[1])


def read(asked: dict[str, str]) -> tuple[torch.Tensor, dict[str, object], float]:
    """A reader as those of the package, of frames that are not decoded: nothing below depends on their pixels."""
    total, fps, height, width = videos[int(asked["video"])]
    count = vision_process.smart_nframes(asked, total_frames=total, video_fps=fps)
    indices = torch.linspace(0, total - 1, count).round().long().tolist()
    return torch.zeros(1, dtype=torch.uint8).expand(count, 3, height, width), {"frames_indices": indices}, 1.0


sizes: list[list[int]] = []


def resize(video: torch.Tensor, size: list[int], **_: object) -> torch.Tensor:
    sizes.append(size)
    return torch.zeros(1)


vision_process.VIDEO_READER_BACKENDS = {"torchvision": read}
vision_process.get_video_reader_backend = lambda: "torchvision"
vision_process.transforms.functional.resize = resize
found: list[list[object] | None] = []
for number in range(len(videos)):
    try:
        _, metadata = vision_process.fetch_video({"video": str(number)}, return_video_metadata=True)
        found.append([len(metadata["frames_indices"]), metadata["frames_indices"], sizes.pop()])
    except ValueError:
        found.append(None)
print(json.dumps(found))
