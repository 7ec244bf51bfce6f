"""neatpack report"""

import argparse
from typing import Any

from neatpack.format.manifest import Manifest

from ..config import place_of
from ..runtime.logs import to_stdout
from ..shard.words import size
from .common import DONE, add_follow, command


def add_to(commands: Any) -> None:
    report = command(
        commands,
        "report",
        _report,
        elsewhere="place by --html",
        description="Write OUT/report.html, one page that opens offline: lengths, fill, balance of training steps at "
        "any number of ranks, the mixture, skips with examples, sizes of media, some documents. `pack` writes it, too.",
    )
    report.add_argument("out", metavar="OUT", help="a finished output")
    add_follow(report, "add what the rows of some documents say")
    report.add_argument("--html", metavar="FILE", default="", help="write it there, and not into OUT")


def _report(args: argparse.Namespace) -> int:
    from ..view.report.page import write_report

    out = place_of("OUT", args.out)
    target = place_of("--html", args.html) if args.html else None
    written = write_report(out, Manifest.read(out), target, follow=args.follow_sources)
    to_stdout(f"{written}: {size(written.stat().st_size)}, for any browser")
    return DONE
