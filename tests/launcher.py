"""Starts scripts on ranks as torchrun does, but from a process that has imported what they need: seconds less for each.

As a program it reads a line of JSON per run from stdin (the arguments of `run`), forks as many ranks with RANK,
WORLD_SIZE and so on, and writes a line with their exit codes. When one dies, the others are ended.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ports import free_ports

TESTS = Path(__file__).resolve().parent
TIME_LIMIT = 600  # seconds; who waits for a rank that has failed is ended by then
PORT_TAKEN = "EADDRINUSE"  # as torch.distributed says it


class Launcher:
    """The program, running; it ends by an empty line. That its input ends it would never see, as long as a fork of this
    process lives that has it open, too."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if sys.platform == "linux":
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        self.process = subprocess.Popen(
            [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def launch(
        self,
        script: Path,
        arguments: Sequence[Any],
        output: Path,
        *,
        processes: int = 2,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[list[int], list[str]]:
        """Exit codes of the ranks, and what each printed."""
        asked = {"script": str(script), "arguments": [*map(str, arguments)], "environment": dict(environment or {}),
                 "processes": processes, "output": str(output)}  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        codes = json.loads(self.process.stdout.readline())
        return codes, [Path(f"{output}.{rank}").read_text() for rank in range(processes)]

    def close(self) -> None:
        self.process.communicate("\n")


def main() -> None:
    """Imports, and then forks."""
    sys.path[:0] = [str(TESTS.parent), str(TESTS)]
    import accelerate  # noqa: F401
    import lightning  # noqa: F401
    import tiny_models  # noqa: F401
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.pipelining  # noqa: F401
    from transformers import AutoConfig, AutoModelForImageTextToText, Trainer  # noqa: F401

    import neatpack.loaders.dataset
    import neatpack.loaders.hf
    import neatpack.pipeline.families.restore
    import neatpack.pipeline.media.image  # noqa: F401

    gc.freeze()  # what is imported stays: forks need not look at it, and so copy it, when they collect garbage
    for line in sys.stdin:
        if not line.strip():
            break
        print(json.dumps(run(**json.loads(line))), flush=True)


def run(script: str, arguments: list[str], environment: dict[str, str], processes: int, output: str) -> list[int]:
    """Again, where another process has taken the port between our choice and the first rank's."""
    for _ in range(5):
        (port,) = free_ports(1)
        codes = run_at(port, script, arguments, environment, processes, output)
        said = [Path(f"{output}.{rank}").read_text() for rank in range(processes)] if any(codes) else []
        if not any(PORT_TAKEN in words for words in said):
            break
    return codes


def run_at(
    port: int, script: str, arguments: list[str], environment: dict[str, str], processes: int, output: str
) -> list[int]:
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
    from forked import become

    signal.alarm(TIME_LIMIT)
    os.environ.update(environment)
    sys.path[:0] = [str(Path(script).parent), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    Path(output).unlink(missing_ok=True)
    become(script, arguments, output, output)


if __name__ == "__main__":
    main()
