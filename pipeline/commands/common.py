"""What the commands share: exit codes, and how one is declared."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from . import COMMANDS

DONE, FAILED, WRONG_INPUT = 0, 1, 2


def command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], **texts: str) -> Any:
    form = partial(argparse.HelpFormatter, max_help_position=32)
    parser = commands.add_parser(name, formatter_class=form, help=COMMANDS[name], **texts)
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="say what is done, on stderr; -vv: in detail"
    )
    parser.set_defaults(run=run)
    return parser
