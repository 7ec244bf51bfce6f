"""neatpack verify"""

import argparse
from typing import Any

from neatpack.errors import OutputError
from neatpack.format.manifest import Manifest

from ..config import place_of
from ..display import shown
from ..runtime.logs import to_stderr, to_stdout
from ..runtime.progress import LOADING, STARTING, STOPPING, VERIFYING
from ..safe import harmless_line
from ..shard.words import counted
from .common import DONE, FAILED, command


def add_to(commands: Any) -> None:
    verify = command(
        commands,
        "verify",
        _verify,
        description="Check digests, tars, index, ledger and every pack of a finished output: each input row exactly "
        "once, planned = materialized lengths, labels on assistant tokens only, media tokens = grid tokens.",
    )
    verify.add_argument("out", metavar="OUT", help="a finished output")
    verify.add_argument("--engine", choices=("inline", "ray"), default="inline", help="ray: shards in parallel")


def _verify(args: argparse.Namespace) -> int:
    out = place_of("OUT", args.out)
    try:
        manifest = Manifest.read(out)
    except OutputError as error:
        to_stderr(f"neatpack: {error} [{error.code}]")
        return FAILED
    stages = [LOADING, STARTING, VERIFYING, STOPPING] if args.engine == "ray" else [LOADING, VERIFYING]
    with shown(f"neatpack verify {out}", stages, visible=args.in_fork, on_failure=args.report) as progress:
        from ..runtime.engine import engine
        from ..shard.summary import describe_verified
        from ..shard.verify import verify_output

        with engine(args.engine, progress=progress) as running:
            progress.enter(VERIFYING)
            problems = verify_output(out, manifest, running)
    for problem in problems:
        to_stdout(f"{harmless_line(problem)} [{problem.code}]")
    if problems:
        to_stderr(f"{out}: {counted(len(problems), 'problem')}")
        return FAILED
    to_stdout(describe_verified(out, manifest))
    return DONE
