"""What the commands share: exit codes, and how one is declared."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from . import COMMANDS

DONE, FAILED, WRONG_INPUT = 0, 1, 2


def command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], *, elsewhere: str = "", **texts: str
) -> Any:
    """`elsewhere`: flags that say where it writes, for whom it cannot write there."""
    form = partial(argparse.HelpFormatter, max_help_position=32)
    parser = commands.add_parser(name, formatter_class=form, help=COMMANDS[name], **texts)
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="say what is done, on stderr; -vv: in detail"
    )
    parser.set_defaults(run=run, elsewhere=elsewhere)
    return parser
