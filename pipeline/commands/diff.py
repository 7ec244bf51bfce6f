"""neatpack diff"""

import argparse
import json
from typing import Any

from ..config import place_of
from ..runtime.logs import to_stdout
from ..safe import harmless_json, harmless_line
from .common import DONE, command

DIFFERENT = 1  # as `diff` has it


def add_to(commands: Any) -> None:
    diff = command(
        commands,
        "diff",
        _diff,
        description="Compare two finished outputs: what they are made from, and row by row (by data set, number and "
        "repetition) what came, went, moved to another pack, changed its length, or is skipped or packed now.",
        epilog="Exit codes: 0 the same, 1 different, 2 one of them cannot be read.",
    )
    diff.add_argument("first", metavar="OUT1", help="a finished output")
    diff.add_argument("second", metavar="OUT2", help="another")
    diff.add_argument("--json", action="store_true", help="as JSON")
    diff.add_argument("--examples", metavar="N", type=int, default=3, help="rows named of each kind, at most (3)")


def _diff(args: argparse.Namespace) -> int:
    from ..view.diff import described, difference

    first, second = (place_of(name, given) for name, given in (("OUT1", args.first), ("OUT2", args.second)))
    found = difference(first, second, num_examples=args.examples)
    if args.json:
        to_stdout(harmless_json(json.dumps(found.to_json(), indent=1, ensure_ascii=False)))
    else:
        for line in described(first, second, found):
            to_stdout(harmless_line(line))
    return DONE if found.is_same else DIFFERENT
