"""Starts recipes as torchrun does, but from a process that has imported what they need: seconds less for each run.

Reads a line of JSON per run from stdin ({"script", "arguments", "environment", "processes", "output"}), forks as many
ranks with RANK, WORLD_SIZE and so on, and writes a line with their exit codes. When one dies, the others are ended.
"""

import gc
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

sys.path.append(str(Path(__file__).resolve().parents[1]))

import accelerate  # noqa: F401
import lightning  # noqa: F401
import torch.distributed.checkpoint
import torch.distributed.fsdp  # noqa: F401
from forked import become
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
            rank_of(
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


def rank_of(script: str, arguments: list[str], environment: dict[str, str], output: str) -> NoReturn:
    os.environ.update(environment)
    sys.path[:0] = [str(Path(script).parent), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    Path(output).unlink(missing_ok=True)
    become(script, arguments, output, output)


if __name__ == "__main__":
    main()
