"""The demo's processor as one of Qwen3-VL."""

import json
import shutil
from pathlib import Path
from typing import Any

from places import DEMO_PROCESSOR


def make(folder: Path) -> Path:
    shutil.copytree(DEMO_PROCESSOR, folder)
    _edit(folder / "preprocessor_config.json", {"processor_class": "Qwen3VLProcessor"})
    _edit(folder / "config.json", {"model_type": "qwen3_vl"})
    return folder


def _edit(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
