"""Makes torchvision importable, or ends the process with code 3; import it first, in a process of its own.

transformers decides at import whether torchvision is there, and with a CPU-only torch torchvision cannot be imported
before the two operators of its compiled half are declared.

python with_torchvision.py, and on each line of its input ["OUTPUT", "SCRIPT", argument, …] as JSON: runs scripts that
import this, each in a fork, and answers with a line, its exit code. To import all this takes longer than most of them.
"""

import gc
import json
import os
import sys

import torch
from forked import become

try:
    import torchvision
except ImportError:
    sys.exit(3)
except RuntimeError:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # the halves of a first try
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        sys.exit(3)


def run(output: str, script: str, *arguments: str) -> int:
    """The exit code of a script; what it prints goes to a file, and what it complains of to OUTPUT.err."""
    if not (child := os.fork()):
        sys.path[0] = os.path.dirname(script)
        become(script, arguments, output, f"{output}.err")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    from transformers import AutoProcessor  # noqa: F401 (for all of them)

    gc.freeze()  # forks need not look at it, and so copy it, when they collect garbage
    print("ready", flush=True)
    for line in sys.stdin:
        print(run(*json.loads(line)), flush=True)
