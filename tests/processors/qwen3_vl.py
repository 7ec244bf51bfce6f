"""The demo's processor as one of Qwen3-VL."""

import json
import shutil
from pathlib import Path

from helpers import DEMO_PROCESSOR


def make(folder: Path) -> Path:
    shutil.copytree(DEMO_PROCESSOR, folder)
    config = folder / "preprocessor_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"processor_class": "Qwen3VLProcessor"}))
    return folder
