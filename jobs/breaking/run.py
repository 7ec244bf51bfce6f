"""A command that is disturbed once, and what became of it: a sentence, and by the same command again the same bytes."""

import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from neatpack.pipeline.cli import main

from .disk import Disk

TOLD, SURVIVED, KILLED, ENDED = "told in a sentence", "survived", "killed", "not reached"
CODE = re.compile(r" \[[a-z-]+\]$")  # with which every error that a command prints ends

Files = Mapping[str, bytes]


class Wrong(Exception):
    """What must not be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """`neatpack pack` with these flags, into `out`.

    `before`: a finished output that lies there at the start, to be overwritten. `expected`: what comes of it in peace.
    """

    flags: Sequence[str]
    out: Path
    expected: Files
    before: Path | None = None

    @property
    def command(self) -> list[str]:
        return ["pack", *self.flags, "--out", str(self.out), *(["--overwrite"] if self.before else [])]

    def prepare(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        if self.before:
            shutil.copytree(self.before, self.out)

    def check(self, code: int, told: str) -> str:
        """What became of a disturbed run, and whether the next one puts it right."""
        outcome = _outcome(code, told)
        self.check_output(finished=outcome == SURVIVED)
        code, told = run_here(self.command)
        if code:
            raise Wrong(f"the next run ended with {code}: {told}")
        self.check_output(finished=True)
        return outcome

    def check_output(self, *, finished: bool) -> None:
        """An output that has a manifest is whole: the new one, or the one that is to be overwritten."""
        if not (self.out / "manifest.json").exists():
            if finished:
                raise Wrong("no manifest, and the run says that it is done")
            return
        found = files_of(self.out)
        wholes = [self.expected] + ([files_of(self.before)] if self.before and not finished else [])
        if found not in wholes:
            names = sorted(name for name in {*found, *self.expected} if found.get(name) != self.expected.get(name))
            raise Wrong(f"a manifest, and these files are others than expected: {', '.join(names)}")


def _outcome(code: int, told: str) -> str:
    if code == 0:
        return SURVIVED
    if code == -9:
        return KILLED
    sentences = [line for line in told.splitlines() if line.startswith("neatpack: ")]
    if code != 1 or len(sentences) != 1 or not CODE.search(sentences[0]) or "Traceback" in told:
        raise Wrong(f"ended with {code} and said: {told}")
    return TOLD


def run_here(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and stderr of a command in this process."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = main(command)
    return code, errors.getvalue()


def run_on(disk: Disk, command: Sequence[str]) -> tuple[int, str]:
    with disk.in_use():
        return run_here(command)


def killed_on(disk: Disk, command: Sequence[str]) -> tuple[int, str]:
    """The same in a fork, which the disk may end."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 70
        try:
            code, _ = run_on(disk, command)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ""


def files_of(out: Path) -> dict[str, bytes]:
    """Everything in an output but its work folder, and its report, which may tell how long the run took."""
    names = (path.relative_to(out) for path in sorted(out.rglob("*")) if path.is_file())
    parts = (name for name in names if name.parts[0] != "work" and "report.html" not in name.name)
    return {str(name): (out / name).read_bytes() for name in parts}
