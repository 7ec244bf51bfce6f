"""neatpack skipped"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..config import UserError, place_of
from ..manifest import Manifest
from ..runtime.storage import write_whole
from ..shard.words import counted
from .common import DONE, FAILED, command


def add_to(commands: Any) -> None:
    skipped = command(
        commands,
        "skipped",
        _skipped,
        elsewhere="--out",
        description="List the rows that were skipped, each once: the file and line it came from, data set, row, "
        "reason and detail. What sample_ratio or --holdout left out is listed only if --reason names it.",
        epilog="Example: neatpack skipped packed --reason bad_row --rows --out repair.jsonl",
    )
    skipped.add_argument("output", metavar="OUT", help="a finished output")
    skipped.add_argument("--reason", metavar="REASON", help="only these reasons (comma-separated)")
    skipped.add_argument("--dataset", metavar="NAME", default="", help="only this data set")
    form = skipped.add_mutually_exclusive_group()
    form.add_argument("--jsonl", action="store_true", help="as JSON lines, each with the row itself")
    form.add_argument(
        "--rows", action="store_true", help="the rows alone, exactly as they were: to be repaired and packed again"
    )
    skipped.add_argument("--out", metavar="FILE", default="", help="write there instead of to stdout")


def _skipped(args: argparse.Namespace) -> int:
    from ..shard.skipped import skipped_rows

    out = place_of("OUT", args.output)
    reasons = [reason.strip() for reason in (args.reason or "").split(",") if reason.strip()]
    problems: list[str] = []
    unread = 0
    found = skipped_rows(out, Manifest.read(out), reasons=reasons, dataset=args.dataset, problems=problems)
    with _written_to(args.out) as write:
        for row in found:
            if not args.rows:
                text = json.dumps(row.to_json(), ensure_ascii=False) if args.jsonl else row.described()
                write(text.encode("utf-8", "surrogatepass") + b"\n")
            elif row.text is not None:
                write(row.text.rstrip(b"\r\n") + b"\n")
            else:
                unread += 1
    for problem in problems:
        print(f"neatpack: {problem}; what is known of its rows is the ledger's", file=sys.stderr)
    if unread:
        print(f"neatpack: {counted(unread, 'row')} could not be read and written", file=sys.stderr)
    return FAILED if unread else DONE


@contextmanager
def _written_to(file: str) -> Iterator[Callable[[bytes], object]]:
    """Rows are bytes, whatever the terminal's encoding is."""
    if not file:
        yield lambda content: sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        with write_whole(place_of("--out", file)) as target:
            yield target.write
    except OSError as error:
        raise UserError(f"--out {file}: cannot be written: {error.strerror}") from None
