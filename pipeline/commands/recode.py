"""neatpack recode"""

import argparse
from typing import Any

from ..config import UserError, place_of
from ..display import shown
from ..manifest import Manifest
from ..runtime.logs import to_stdout
from ..runtime.progress import COMMITTING, LOADING, RECODING, STARTING, STOPPING
from ..shard.words import counted, size
from .common import DONE, command


def add_to(commands: Any) -> None:
    recode = command(
        commands,
        "recode",
        _recode,
        elsewhere="--out",
        description="Write a finished output anew, its pixels as u8, as zstd, or those of videos so and pictures as "
        "they were: the same packs in the same order, without measuring, planning or media files. From a picture's own "
        "bytes (source) one can go to pixels, and not back. Killed at any instant, the same command goes on.",
        epilog="Example: neatpack recode packed --pixels zstd --out packed-zstd",
    )
    recode.add_argument("out", metavar="OUT", help="a finished output")
    recode.add_argument(
        "--pixels",
        metavar="CODEC",
        required=True,
        help="u8, zstd or by kind, image=zstd,video=u8; a kind that is not named stays as it is",
    )
    recode.add_argument("--out", dest="target", metavar="NEW", required=True, help="directory or URI of the new output")
    recode.add_argument("--engine", choices=("inline", "ray"), default="inline", help="ray: shards in parallel")


def _recode(args: argparse.Namespace) -> int:
    out, target = place_of("OUT", args.out), place_of("--out", args.target)
    if not args.pixels:
        raise UserError(
            "--pixels is empty; give u8, zstd, or by kind, image=zstd,video=u8", code="option-invalid", option="pixels"
        )
    manifest = Manifest.read(out)
    stages = [RECODING, COMMITTING]
    stages = [LOADING, STARTING, *stages, STOPPING] if args.engine == "ray" else [LOADING, *stages]
    with shown(f"neatpack recode {out} -> {target}", stages, visible=args.in_fork, on_failure=args.report) as progress:
        from neatpack.storage.lock import lock_folders

        from ..runtime.engine import engine
        from ..shard.recode import recode, recoding
        from ..view.report.page import add_report

        job = recoding(out, manifest, args.pixels, target)
        with lock_folders([target / "work"]), engine(args.engine, progress=progress) as running:
            made = recode(job, running)
            running.run(add_report, [(target, made, False)], title="report", unit="page")
    before, after = (sum(found.shards.bytes) for found in (manifest, made))
    share = after / max(1, before)
    to_stdout(f"{target}: {counted(made.counts.packs, 'pack')}, {size(after)} of shards, {share:.2f} of what {out} has")
    return DONE
