"""What a command costs before it does anything: `neatpack --help`, and `neatpack pack` over a finished output.

Each in a process of its own, by its CPU seconds: what is imported, mostly, from modules that were compiled the first
time, as an installed package is. The third side is a Python that imports nothing, which nobody can be faster than.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from jobs.demo.make_data import make_demo

from .side_by_side import Options, Row, side_by_side

ROOT = Path(__file__).resolve().parents[2]
HELP, AGAIN, BARE = "neatpack --help", "neatpack pack, over a finished output", "python -c pass"


def rows(options: Options) -> Iterator[Row]:
    meta = options.meta or _drawn(options.folder)
    pack = [
        "pack", "--meta", str(meta), "--processor", options.processor, "--out", str(options.folder / "start"),
        "--max-skipped", "1", "--engine", "inline",
    ]  # fmt: skip
    compiled = options.folder / "compiled"
    neatpack = partial(_python, compiled, "-m", "neatpack.pipeline.cli")
    neatpack(*pack)
    seconds = side_by_side(
        {
            BARE: partial(_python, compiled, "-c", "pass"),
            HELP: partial(neatpack, "--help"),
            AGAIN: partial(neatpack, *pack),
        },
        options.repeats,
    )
    for what, wanted in ((HELP, 0.12), (AGAIN, 1.0)):
        yield Row(what=what, figure=seconds[what], wanted=wanted, unit="s", of=seconds)


def _drawn(folder: Path) -> Path:
    return make_demo(folder / "start-data")


def _python(compiled: Path, *arguments: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(compiled)}
    subprocess.run([sys.executable, *arguments], env=env, check=True, capture_output=True, cwd=ROOT)
