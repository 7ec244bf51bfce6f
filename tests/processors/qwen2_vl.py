"""The demo's processor is one of Qwen2.5-VL."""

import shutil
from pathlib import Path

from places import DEMO_PROCESSOR


def make(folder: Path) -> Path:
    return Path(shutil.copytree(DEMO_PROCESSOR, folder))
