"""The command line, in this process."""

import io
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from support.errors import printed_code
from support.outputs import Manifest, read_manifest

from neatpack.pipeline.cli import main as main


def run_command(*arguments: Any) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it printed."""
    printed, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(printed), redirect_stderr(errors):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
    return code, *(stream.buffer.getvalue().decode() for stream in (printed, errors))  # type: ignore[attr-defined]


def assert_verified(out: Path) -> Manifest:
    """Return the manifest of an output that `neatpack verify` accepts."""
    code, printed, errors = run_command("verify", out)
    assert code == 0, printed + errors
    return read_manifest(out)


class Found(NamedTuple):
    """A line of `neatpack verify`: the file or shard, the number of the pack where it is about one, and the code."""

    place: str
    pack: int | None
    code: str


def list_problems(out: Path) -> list[Found]:
    """Return what `neatpack verify` finds wrong; of a manifest that cannot be read, the error."""
    code, printed, errors = run_command("verify", out)
    return parse_problems(printed or errors) if code else []


def parse_problems(printed: str) -> list[Found]:
    """Return the problems that `neatpack verify` has printed."""
    found = []
    for line in printed.splitlines():
        place, pack = re.match(r"([^:]*): (?:pack (\d+): )?", line).groups()  # type: ignore[union-attr]
        found.append(Found(place, int(pack) if pack else None, printed_code(line)))
    return found
