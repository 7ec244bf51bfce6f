"""The command line: `neatpack COMMAND …`, and what becomes of errors."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from . import __version__
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
    from .commands.common import DONE, FAILED, WRONG_INPUT  # here and not above: --help does without all of this
    from .errors import UserError
    from .extras import remedy
    from .manifest import OutputError
    from .runtime.faults import behind
    from .runtime.freed import keep_freed
    from .runtime.logs import logged_to_stderr, to_stderr

    if in_fork:
        keep_freed()
    # Nothing here trains; libraries that warn about missing accelerators only confuse.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        with logged_to_stderr(args.verbose):
            return int(args.run(args))
    except (UserError, OutputError) as error:
        if (fault := behind(error)) is not error:
            return _failed(fault, args)
        to_stderr(f"neatpack: {error}")
        return WRONG_INPUT
    except ModuleNotFoundError as error:
        if not (message := remedy(error.name, f"neatpack {args.command}", "pack")):
            raise
        to_stderr(message)
        return WRONG_INPUT
    except KeyboardInterrupt:
        to_stderr("neatpack: stopped; run the same command again to go on")
        return FAILED
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        return DONE
    except Exception as error:
        return _failed(error, args)


def _failed(error: Exception, args: argparse.Namespace) -> int:
    """A fault of the machine is told in a sentence; an error of the program is raised, for its traceback is wanted."""
    from .commands.common import FAILED
    from .runtime.clients import Unreachable
    from .runtime.faults import sentence
    from .runtime.logs import to_stderr

    message = str(error) if isinstance(error, Unreachable) else sentence(error, args.elsewhere)
    if not message:
        raise error
    if args.verbose:
        _print_traceback(error)
    to_stderr(f"neatpack: {message}")
    return FAILED


def _print_traceback(*error: Any) -> None:
    """Print the traceback of an error of the program; its message may quote data."""
    import traceback

    from .runtime.logs import to_stderr

    to_stderr("".join(traceback.format_exception(*error)).rstrip("\n"))


def _parser(asked: str | None = None) -> argparse.ArgumentParser:
    """With the flags of the command that is asked for; None: of all."""
    parser = argparse.ArgumentParser(
        prog="neatpack",
        description="Packs multimodal conversations, once and exactly, into ready-to-train webdataset shards.",
        epilog="Exit codes: 0 done, 1 the job or a check failed or the job lost data (--max-skipped), 2 the input is "
        "wrong.",
    )
    parser.add_argument("--version", action="version", version=f"neatpack {__version__}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")

    for name, words in COMMANDS.items():
        if asked in (None, name):
            add_to(commands, name)
        else:
            commands.add_parser(name, help=words)
    return parser


if __name__ == "__main__":
    raise SystemExit(command())
