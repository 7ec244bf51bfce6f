"""A script, run by the fork of a process that has imported what it needs."""

import os
import runpy
import sys
from collections.abc import Sequence
from typing import NoReturn


def become(script: str, arguments: Sequence[str], stdout: str, stderr: str) -> NoReturn:
    """Runs it as `python SCRIPT …` would, and ends this process by its exit code. It prints to these files."""
    code = 1
    try:
        for number, path in ((1, stdout), (2, stderr)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        sys.argv = [script, *arguments]
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
