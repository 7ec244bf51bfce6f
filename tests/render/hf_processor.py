"""Run a whole HF processor (torchvision backend) over conversations and save its tensors; a process of its own.

python hf_processor.py SPEC.json OUT.npz [--declare]

transformers decides at import whether torchvision is there, and with a CPU-only torch torchvision cannot be imported
before the two operators of its compiled half are declared (`--declare`). Exit 3: no usable torchvision.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

if "--declare" in sys.argv:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    sys.exit(3)

from PIL import Image, ImageOps
from transformers import AutoProcessor

arrays = {}
for processor_path, conversations in json.loads(Path(sys.argv[1]).read_text()).items():
    processor = AutoProcessor.from_pretrained(processor_path)
    for number, messages in enumerate(conversations):
        paths = [part["path"] for turn in messages for part in turn["content"] if part["type"] == "image"]
        images = [ImageOps.exif_transpose(Image.open(path)) for path in paths]
        text = processor.apply_chat_template(messages, tokenize=False)
        out = processor(text=[text], images=images or None, return_tensors="np", return_mm_token_type_ids=True)
        for key, value in out.items():
            arrays[f"{Path(processor_path).name}/{number}/{key}"] = value
np.savez(sys.argv[2], **arrays)
