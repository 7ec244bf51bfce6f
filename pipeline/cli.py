"""The command line: `neatpack COMMAND …`, and what becomes of errors."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import neatpack

from .commands import COMMANDS, add_to
from .runtime.interrupts import remember_interrupts


def command() -> int:
    """What the shell calls: a process of our own, which may be forked."""
    return main(in_fork=True)


def main(argv: Sequence[str] | None = None, *, in_fork: bool = False) -> int:
    """`in_fork`: the process is ours. It remembers interrupts, and jobs of --engine inline run in a fork of it, so that
    they survive media that crash it."""
    if in_fork:
        remember_interrupts()
        sys.excepthook = _print_traceback
    argv = sys.argv[1:] if argv is None else argv
    args = _parser(next((each for each in argv if not each.startswith("-")), "")).parse_args(argv)
    args.in_fork = in_fork
    from .commands.common import DONE, FAILED  # here and not above: --help does without all of this
    from .runtime.freed import keep_freed
    from .runtime.logs import logged_to_stderr, to_stderr

    if in_fork:
        keep_freed()
    # Nothing here trains; libraries that warn about missing accelerators only confuse.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    args.report = report = ErrorReport(args)
    try:
        with logged_to_stderr(args.verbose):
            return int(args.run(args))
    except KeyboardInterrupt:
        to_stderr("neatpack: stopped; run the same command again to go on")
        return FAILED
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        return DONE
    except Exception as error:
        if (code := report(error)) is None:
            raise
        return code


class ErrorReport:
    """Prints what an error means for the user, once: the engine calls it before Ray stops, `main` at the end."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._reported: tuple[Exception, int | None] | None = None

    def __call__(self, error: Exception) -> int | None:
        """Print the message of an error and return the exit code; None if it is a mistake of ours.

        That is raised by `main` for a caller in Python. In a process of our own its traceback is printed here.
        """
        if self._reported is None or self._reported[0] is not error:
            self._reported = error, self._printed(error)
        return self._reported[1]

    def _printed(self, error: Exception) -> int | None:
        from .commands.common import FAILED
        from .runtime.logs import write_line

        message, code = self._explained(error)
        if message:
            if self._args.verbose and code == FAILED:
                _print_traceback(error)
            write_line(message)
            return code
        if not self._args.in_fork:
            return None
        _print_traceback(error)
        return FAILED

    def _explained(self, error: Exception) -> tuple[str, int]:
        """The message of an error, "" for a mistake of ours, and the exit code."""
        from neatpack.errors import OutputError, UserError
        from neatpack.storage.clients import Unreachable

        from .commands.common import FAILED, WRONG_INPUT
        from .extras import remedy
        from .runtime.faults import behind, code_of, sentence

        if isinstance(error, UserError | OutputError):
            if (fault := behind(error)) is error:
                return f"neatpack: {error} [{error.code}]", WRONG_INPUT
            error = fault
        elif isinstance(error, ModuleNotFoundError):
            message = remedy(error.name, f"neatpack {self._args.command}", "pack")
            return message and f"{message} [package-missing]", WRONG_INPUT
        if isinstance(error, Unreachable):
            return f"neatpack: {error} [store-unreachable]", FAILED
        message = sentence(error, self._args.elsewhere)
        return message and f"neatpack: {message} [{code_of(error)}]", FAILED


def _print_traceback(*error: Any) -> None:
    """Print the traceback of an error of the program; its message may quote data."""
    import traceback

    from .runtime.logs import write_line

    write_line("".join(traceback.format_exception(*error)).rstrip("\n"))


def _parser(asked: str | None = None) -> argparse.ArgumentParser:
    """With the flags of the command that is asked for; None: of all."""
    parser = argparse.ArgumentParser(
        prog="neatpack",
        description="Packs multimodal conversations, once and exactly, into ready-to-train webdataset shards.",
        epilog="Exit codes: 0 done, 1 the job or a check failed or the job lost data (--max-skipped), 2 the input is "
        "wrong.",
    )
    parser.add_argument("--version", action="version", version=f"neatpack {neatpack.__version__}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")

    for name, words in COMMANDS.items():
        if asked in (None, name):
            add_to(commands, name)
        else:
            commands.add_parser(name, help=words)
    return parser


if __name__ == "__main__":
    raise SystemExit(command())
