"""neatpack skipped"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from neatpack.format.manifest import Manifest
from neatpack.storage.files import write_whole

from ..config import UserError, place_of
from ..runtime.logs import to_stderr
from ..safe import harmless, harmless_json, harmless_line
from ..shard.words import counted
from .common import DONE, FAILED, FOLLOW, add_follow, command


def add_to(commands: Any) -> None:
    skipped = command(
        commands,
        "skipped",
        _skipped,
        elsewhere="--out",
        description="List the rows that were skipped, each once: the file it came from, data set, row, "
        "reason and detail. What sample_ratio or --holdout left out is listed only if --reason names it.",
        epilog="Example: neatpack skipped packed --reason bad_row --follow-sources --rows --out repair.jsonl",
    )
    skipped.add_argument("output", metavar="OUT", help="a finished output")
    skipped.add_argument("--reason", metavar="REASON", help="only these reasons (comma-separated)")
    skipped.add_argument("--dataset", metavar="NAME", default="", help="only this data set")
    form = skipped.add_mutually_exclusive_group()
    form.add_argument(
        "--jsonl", action="store_true", help="as JSON lines; with --follow-sources each has the row itself"
    )
    form.add_argument(
        "--rows",
        action="store_true",
        help="the rows alone, exactly as they were: to be repaired and packed again; needs --follow-sources",
    )
    add_follow(skipped, "add the line of each row, and the row itself")
    skipped.add_argument("--out", metavar="FILE", default="", help="write there instead of to stdout")


def _skipped(args: argparse.Namespace) -> int:
    from ..shard.skipped import skipped_rows

    out = place_of("OUT", args.output)
    if args.rows and not args.follow_sources:
        raise UserError(
            f"--rows: the rows are in the data files that {out} names; add {FOLLOW} if you trust it",
            code="option-missing",
            option=FOLLOW,
            out=str(out),
        )
    reasons = [reason.strip() for reason in (args.reason or "").split(",") if reason.strip()]
    problems: list[str] = []
    unread = 0
    found = skipped_rows(
        out, Manifest.read(out), reasons=reasons, dataset=args.dataset, follow=args.follow_sources, problems=problems
    )
    with _written_to(args.out) as write:
        for row in found:
            if not args.rows:
                as_json = args.jsonl and harmless_json(json.dumps(row.to_json(), ensure_ascii=False))
                write((as_json or harmless_line(row.described())).encode() + b"\n")
            elif row.text is not None:
                write(row.text.rstrip(b"\r\n") + b"\n")
            else:
                unread += 1
    for problem in problems:
        to_stderr(f"neatpack: {harmless_line(problem)}; what is known of its rows is the ledger's")
    if unread:
        to_stderr(f"neatpack: {counted(unread, 'row')} could not be read and written [data-unreadable]")
    return FAILED if unread else DONE


@contextmanager
def _written_to(file: str) -> Iterator[Callable[[bytes], object]]:
    """Rows are bytes, whatever the terminal's encoding is; a terminal gets them harmless."""
    if not file:
        is_terminal = sys.stdout.isatty()

        def write(content: bytes) -> object:
            content = harmless(content.decode("utf-8", "replace")).encode() if is_terminal else content
            return sys.stdout.buffer.write(content)

        yield write
        sys.stdout.buffer.flush()
        return
    try:
        with write_whole(place_of("--out", file)) as target:
            yield target.write
    except OSError as error:
        raise UserError(
            f"--out {file}: cannot be written: {error.strerror}", code="machine", option="out", path=str(file)
        ) from None
