"""Makes torchvision importable, or ends the process with code 3; import it first, in a process of its own.

transformers decides at import whether torchvision is there, and with a CPU-only torch torchvision cannot be imported
before the two operators of its compiled half are declared.

python with_torchvision.py, and on each line of its input ["OUTPUT", "SCRIPT", argument, …] as JSON: runs scripts that
import this, each in a fork, and answers with a line, its exit code. To import all this takes longer than most of them.
"""

import gc
import json
import os
import runpy
import sys

import torch

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
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        for number, path in ((1, output), (2, f"{output}.err")):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
        sys.path[0], sys.argv = os.path.dirname(script), [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    from transformers import AutoProcessor  # noqa: F401 (for all of them)

    gc.freeze()  # forks need not look at it, and so copy it, when they collect garbage
    print("ready", flush=True)
    for line in sys.stdin:
        print(run(*json.loads(line)), flush=True)
