"""neatpack pack | plan | split: what runs a job, or a part of it."""

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from neatpack.storage.location import Location

from ..config import PackConfig, UserError, place_of
from ..display import shown
from ..flags import add_flags, load_config
from ..runtime.again import run_again
from ..runtime.logs import to_stderr, to_stdout
from ..runtime.progress import (
    COMMITTING,
    LOADING,
    MEASURING,
    PLANNING,
    READING,
    RENDERING,
    SPLITTING,
    STARTING,
    STOPPING,
    Progress,
)
from ..shard.words import counted
from .common import DONE, FAILED, command


def add_pack(commands: Any) -> None:
    pack = command(
        commands,
        "pack",
        _pack,
        elsewhere="--out or --work",
        description="Pack the data sets of a meta JSON into OUT/shards/*.tar, with an index, statistics and a ledger "
        "of every input row. Killed at any instant, the same command goes on where it was.",
        epilog="Example: neatpack pack --meta meta.json --processor Qwen/Qwen2.5-VL-7B-Instruct --out packed "
        "--pack-size 16384",
    )
    add_flags(pack)


def add_plan(commands: Any) -> None:
    plan = command(
        commands,
        "plan",
        _plan,
        elsewhere="--out or --work",
        description="Measure every row and plan the packs, without decoding a pixel; print what packing would give. "
        "With --out or --work the measured tokens are kept, and `pack` starts from them.",
    )
    add_flags(plan, omit=("overwrite", "keep_going"), optional=("out",))
    plan.add_argument(
        "--write-lengths",
        metavar="DIR",
        help="write the rows with their exact lengths (_text_tokens, _media_tokens, mm_inputs_meta) and a meta.json to "
        "DIR, for packing online",
    )


def add_split(commands: Any) -> None:
    split = command(
        commands,
        "split",
        _split,
        elsewhere="--out",
        description="Write the rows of a meta JSON's data sets, as they are, to OUT/train and OUT/holdout, each with a "
        "meta.json: the rows that `pack --holdout` holds out, and the others. Media stay where they are.",
        epilog="Example: neatpack split --meta meta.json --holdout 0.01 --out halves",
    )
    keys = ("meta", "out", "datasets", "holdout", "engine", "num_workers")
    add_flags(split, omit=tuple(f.name for f in dataclasses.fields(PackConfig) if f.name not in keys))


def _pack(args: argparse.Namespace) -> int:
    config = load_config(args)
    return _survived(args, config, lambda: _print_packed(args, config))


def _survived(args: argparse.Namespace, config: PackConfig, job: Callable[[], int]) -> int:
    return run_again(job) if args.in_fork and config.engine == "inline" else job()


def _shown(args: argparse.Namespace, config: PackConfig, *stages: str) -> AbstractContextManager[Progress]:
    """Progress from here on; `main` called by another program shows none."""
    on_ray = config.engine == "ray"
    with_ray = [STARTING, *stages, STOPPING] if on_ray else stages
    to = f" -> {config.out}" if config.out else ""
    return shown(
        f"neatpack {args.command} {config.meta}{to}", [LOADING, *with_ray], visible=args.in_fork, on_failure=args.report
    )


def _print_packed(args: argparse.Namespace, config: PackConfig) -> int:
    with _shown(args, config, READING, MEASURING, PLANNING, RENDERING, COMMITTING) as progress:
        # Here and not above: what they import takes seconds, which --help and a wrong flag should not.
        from ..config import DataLossError
        from ..run import run_pack

        try:
            packed = run_pack(config, progress)
        except DataLossError as error:
            loss: DataLossError | None = error
        else:
            loss = None
    if loss is not None:
        to_stdout(loss.summary)
        for out, troubles in loss.troubles.items():
            _say_troubles(out, troubles)
        return FAILED
    if packed.already_done and (packed.holdout is None or packed.holdout.already_done):
        to_stdout(f"{config.out} is finished and made from the same inputs: nothing to do")
    for of in (packed, packed.holdout):
        if of is not None:
            to_stdout(of.summary)
    lost = [_say_troubles(config.out, packed.troubles)]
    lost += [_say_troubles(config.for_holdout().out, packed.holdout.troubles)] if packed.holdout else []
    return FAILED if any(lost) else DONE


def _say_troubles(where: str, troubles: Sequence[str]) -> bool:
    """On stderr, after the summary; whether there are any."""
    if troubles:
        to_stderr(f"neatpack: {where}: " + "\n  ".join(troubles))
    return bool(troubles)


def _plan(args: argparse.Namespace) -> int:
    config = load_config(args, optional=("out",))
    if config.out or config.work:
        return _survived(args, config, lambda: _print_plan(args, config, keeps_work=True))
    with tempfile.TemporaryDirectory(prefix="neatpack-plan-") as folder:
        args.work = folder
        config = load_config(args, optional=("out",))
        return _survived(args, config, lambda: _print_plan(args, config, keeps_work=False))


def _print_plan(args: argparse.Namespace, config: PackConfig, *, keeps_work: bool) -> int:
    if args.write_lengths and config.holdout:
        raise UserError(
            "--write-lengths writes all rows, also those that --holdout keeps from training; use `neatpack split`, and "
            "plan each half without --holdout",
            code="option-conflict",
            option="write_lengths",
            other="holdout",
        )
    with _shown(args, config, READING, MEASURING, PLANNING) as progress:
        from ..run import run_plan, write_plan_lengths

        planned = run_plan(config, progress)
    from ..shard.summary import describe_plan

    to_stdout(describe_plan(planned))
    if args.write_lengths:
        folder = place_of("--write-lengths", args.write_lengths)
        counts = write_plan_lengths(planned, folder, keeps_work=keeps_work)
        to_stdout(f"{counted(sum(counts.values()), 'row')} with lengths in {folder}/meta.json")
    lost = [_say_troubles("plan", planned.troubles)]
    lost += [_say_troubles("plan of the holdout", planned.holdout.troubles)] if planned.holdout else []
    return FAILED if any(lost) else DONE


def _split(args: argparse.Namespace) -> int:
    config = load_config(args, optional=("processor",))
    if not config.holdout:
        raise UserError(
            "missing --holdout: give the share of the rows to hold out, above 0 and below 1",
            code="option-missing",
            option="holdout",
        )
    with _shown(args, config, READING, SPLITTING) as progress:
        from ..run import run_split

        counts = run_split(config, progress)
    for name, num_rows in counts.items():
        to_stdout(f"{counted(num_rows, 'row')} in {Location.parse(config.out) / name}/meta.json")
    return DONE
