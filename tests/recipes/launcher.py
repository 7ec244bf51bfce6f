"""Starts recipes as torchrun does, but from a process that has imported what they need: seconds less for each run.

Reads a line of JSON per run from stdin ({"script", "arguments", "environment", "processes", "output"}), forks as many
ranks with RANK, WORLD_SIZE and so on, and writes a line with their exit codes. When one dies, the others are ended.
"""

import gc
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path

import accelerate  # noqa: F401
import lightning  # noqa: F401
import torch.distributed.checkpoint
import torch.distributed.fsdp  # noqa: F401
from transformers import AutoConfig, AutoModelForImageTextToText, Trainer  # noqa: F401

import neatpack.loaders.hf
import neatpack.loaders.stream
import neatpack.pipeline.families.restore
import neatpack.pipeline.media.image  # noqa: F401


def main() -> None:
    gc.freeze()  # what is imported stays: forks need not look at it, and so copy it, when they collect garbage
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


def run(script: str, arguments: list[str], environment: dict[str, str], processes: int, output: str) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(processes):
        if not (pid := os.fork()):
            where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes,
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip
            become(
                script, arguments, environment | {key: str(value) for key, value in where.items()}, f"{output}.{rank}"
            )
        ranks[pid] = rank
    codes = [0] * processes
    while ranks:
        pid, status = os.wait()
        codes[ranks.pop(pid)] = os.waitstatus_to_exitcode(status)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    return codes


def become(script: str, arguments: list[str], environment: dict[str, str], output: str) -> None:
    """Never returns."""
    os.environ.update(environment)
    sys.path[:0] = [str(Path(script).parent), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = [script, *arguments]
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
