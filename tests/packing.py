"""Runs `python pipeline/pack.py …` again and again, from a process that has imported what it needs.

To be killed, a run need not have imported transformers, which takes it 4 s of CPU. As a program this reads a line of
JSON per run from stdin, the arguments and the environment, forks, and writes the id of the process, and when that has
ended, its exit code.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "pipeline" / "pack.py"


class Packing:
    """The program, running. One run at a time: `start` it, and `kill` it or `wait` for it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process, self._pid = process, 0
        self.code: int | None = None

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([list(arguments), dict(environment)]).encode() + b"\n")
        self._pid, self.code = self._answer(), None

    def lives(self) -> bool:
        assert self._process.stdout is not None
        if self.code is None and select.select([self._process.stdout], [], [], 0)[0]:
            self.code = self._answer()
        return self.code is None

    def kill(self) -> None:
        """By SIGKILL; nothing happens if it has ended."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.code is None:
            self.code = self._answer()
        return self.code

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextmanager
def packing() -> Iterator[Packing]:
    command = [sys.executable, __file__]
    # Without buffers: what has been said is in the pipe, where `lives` looks for it.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        running = Packing(process)
        try:
            yield running
        finally:  # a run that waits for a server would be waited for
            running.kill()


def main() -> None:
    """Imports, and then forks."""
    sys.path[:0] = [str(ROOT)]
    import torch  # noqa: F401
    from forked import become
    from transformers import AutoTokenizer, Qwen2Tokenizer  # noqa: F401

    from neatpack import PackedShards, run_pack  # noqa: F401

    child = 0
    for line in sys.stdin:
        if child:  # only now: until then its id is no other process's
            os.waitpid(child, 0)
        arguments, environment = json.loads(line)
        child = os.fork()
        if not child:
            os.environ.clear()
            os.environ.update(environment)
            become(str(SCRIPT), arguments, os.devnull, os.devnull)
        print(child, flush=True)
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        print(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status, flush=True)


if __name__ == "__main__":
    main()
