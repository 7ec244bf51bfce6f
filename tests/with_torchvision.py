"""Makes torchvision importable, or ends the process with code 3; import it first, in a process of its own.

transformers decides at import whether torchvision is there, and with a CPU-only torch torchvision cannot be imported
before the two operators of its compiled half are declared (`--declare`).
"""

import sys

import torch

if "--declare" in sys.argv:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    sys.exit(3)
