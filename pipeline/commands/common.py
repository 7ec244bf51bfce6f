"""What the commands share: exit codes, and how one is declared."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from . import COMMANDS

FOLLOW = "--follow-sources"
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


def add_follow(parser: Any, gain: str) -> None:
    """Add the flag without which nothing that an output names is opened: the output may come from a stranger."""
    parser.add_argument(
        FOLLOW,
        action="store_true",
        help=f"{gain}: open the data files and the processor that OUT/sources.json and OUT/work name. Only for outputs "
        "that you trust: they may name any file of this machine, and any store that it has credentials for",
    )
