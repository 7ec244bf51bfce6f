"""neatpack pack | plan | split | verify | skipped | export."""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from . import __version__
from .config import PackConfig, UserError, absolute, add_flags, load_config
from .extras import remedy
from .manifest import Manifest, OutputError
from .runtime.again import run_again
from .runtime.faults import behind, sentence
from .runtime.logs import logged_to_stderr
from .runtime.storage import write_whole
from .shard.words import counted

DONE, FAILED, WRONG_INPUT = 0, 1, 2


def command() -> int:
    """What the shell calls: a process of our own, which may be forked."""
    return main(in_fork=True)


def main(argv: Sequence[str] | None = None, *, in_fork: bool = False) -> int:
    """`in_fork`: jobs of --engine inline run in a forked process, so that they survive media that crash it."""
    args = _parser().parse_args(argv)
    args.in_fork = in_fork
    # Nothing here trains; libraries that warn about missing accelerators only confuse.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        with logged_to_stderr(args.verbose):
            return int(args.run(args))
    except UserError as error:
        if (fault := behind(error)) is not error:
            return _failed(fault, verbose=args.verbose)
        print(f"neatpack: {error}", file=sys.stderr)
        return WRONG_INPUT
    except ModuleNotFoundError as error:
        if not (message := remedy(error.name, f"neatpack {args.command}", "pack")):
            raise
        print(message, file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt:
        print("neatpack: stopped; run the same command again to go on", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        return DONE
    except Exception as error:
        return _failed(error, verbose=args.verbose)


def _failed(error: Exception, *, verbose: int) -> int:
    """A fault of the machine is told in a sentence; an error of the program is raised, for its traceback is wanted."""
    from .media.remote import Unreachable

    message = str(error) if isinstance(error, Unreachable) else sentence(error)
    if not message:
        raise error
    if verbose:
        traceback.print_exception(error)
    print(f"neatpack: {message}", file=sys.stderr)
    return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neatpack",
        description="Packs multimodal conversations, once and exactly, into ready-to-train webdataset shards.",
        epilog="Exit codes: 0 done, 1 the job or a check failed or the job lost data (--max-skipped), 2 the input is "
        "wrong.",
    )
    parser.add_argument("--version", action="version", version=f"neatpack {__version__}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")

    pack = _command(
        commands,
        "pack",
        _pack,
        help="pack the data sets of a meta JSON into shards",
        description="Pack the data sets of a meta JSON into OUT/shards/*.tar, with an index, statistics and a ledger "
        "of every input row. Killed at any instant, the same command goes on where it was.",
        epilog="Example: neatpack pack --meta meta.json --processor Qwen/Qwen2.5-VL-7B-Instruct --out packed "
        "--pack-size 16384",
    )
    add_flags(pack)
    plan = _command(
        commands,
        "plan",
        _plan,
        help="measure and plan only: what would packing give?",
        description="Measure every row and plan the packs, without decoding a pixel; print what packing would give. "
        "With --out or --work the measured tokens are kept, and `pack` starts from them.",
    )
    add_flags(plan, omit=("overwrite",), optional=("out",))
    plan.add_argument(
        "--write-lengths",
        metavar="DIR",
        help="write the rows with their exact lengths (_text_tokens, _media_tokens, mm_inputs_meta) and a meta.json to "
        "DIR, for packing online",
    )
    split = _command(
        commands,
        "split",
        _split,
        help="split data sets into rows for training and for validation, without packing",
        description="Write the rows of a meta JSON's data sets, as they are, to OUT/train and OUT/holdout, each with a "
        "meta.json: the rows that `pack --holdout` holds out, and the others. Media stay where they are.",
        epilog="Example: neatpack split --meta meta.json --holdout 0.01 --out halves",
    )
    keys = ("meta", "out", "datasets", "holdout", "engine", "num_workers")
    add_flags(split, omit=tuple(f.name for f in dataclasses.fields(PackConfig) if f.name not in keys))
    verify = _command(
        commands,
        "verify",
        _verify,
        help="prove a finished output",
        description="Check digests, tars, index, ledger and every pack of a finished output: each input row exactly "
        "once, planned = materialized lengths, labels on assistant tokens only, media tokens = grid tokens.",
    )
    verify.add_argument("out", metavar="OUT", help="a finished output")
    verify.add_argument("--engine", choices=("inline", "ray"), default="inline", help="ray: shards in parallel")
    skipped = _command(
        commands,
        "skipped",
        _skipped,
        help="list the rows of a finished output that are in no pack",
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
    export = _command(
        commands,
        "export",
        _export,
        help="make a finished output readable for another loader",
        description="Write beside the shards of a finished output what another loader wants to find there; the shards "
        "stay as they are. energon: Megatron-Energon 7, without running `energon prepare`; its TaskEncoder cooks the "
        "packs by neatpack.loaders.energon.cook_pack.",
    )
    export.add_argument("loader", metavar="LOADER", choices=("energon",), help="energon")
    export.add_argument("out", metavar="OUT", help="a finished output")
    return parser


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], **texts: str) -> Any:
    command = commands.add_parser(name, formatter_class=partial(argparse.HelpFormatter, max_help_position=32), **texts)
    command.add_argument(
        "-v", "--verbose", action="count", default=0, help="say what is done, on stderr; -vv: in detail"
    )
    command.set_defaults(run=run)
    return command


def _pack(args: argparse.Namespace) -> int:
    config = load_config(args)
    return _survived(args, config, lambda: _print_packed(config))


def _survived(args: argparse.Namespace, config: PackConfig, job: Callable[[], int]) -> int:
    return run_again(job) if args.in_fork and config.engine == "inline" else job()


def _print_packed(config: PackConfig) -> int:
    # Here and not above: torch and transformers take seconds, which --help and a wrong flag should not.
    from .run import run_pack
    from .shard.report import describe_output

    packed = run_pack(config)
    if packed.already_done and (packed.holdout is None or packed.holdout.already_done):
        print(f"{config.out} is finished and made from the same inputs: nothing to do")
    for output, of in ((Path(config.out), packed), (Path(config.for_holdout().out), packed.holdout)):
        if of is not None:
            print(describe_output(output, of.manifest, reused_shards=of.reused_shards), flush=True)
    lost = [_say_troubles(config.out, packed.troubles)]
    lost += [_say_troubles(config.for_holdout().out, packed.holdout.troubles)] if packed.holdout else []
    return FAILED if any(lost) else DONE


def _say_troubles(where: str, troubles: Sequence[str]) -> bool:
    """On stderr, after the summary; whether there are any."""
    if troubles:
        print(f"neatpack: {where}: " + "\n  ".join(troubles), file=sys.stderr)
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
    from .run import run_plan, write_plan_lengths
    from .shard.report import describe_plan

    if args.write_lengths and config.holdout:
        raise UserError(
            "--write-lengths writes all rows, also those that --holdout keeps from training; use `neatpack split`, and "
            "plan each half without --holdout"
        )
    planned = run_plan(config)
    print(describe_plan(planned), flush=True)
    if args.write_lengths:
        folder = Path(absolute("--write-lengths", args.write_lengths))
        counts = write_plan_lengths(planned, folder, keeps_work=keeps_work)
        print(f"{counted(sum(counts.values()), 'row')} with lengths in {folder}/meta.json", flush=True)
    lost = [_say_troubles("plan", planned.troubles)]
    lost += [_say_troubles("plan of the holdout", planned.holdout.troubles)] if planned.holdout else []
    return FAILED if any(lost) else DONE


def _split(args: argparse.Namespace) -> int:
    config = load_config(args, optional=("processor",))
    if not config.holdout:
        raise UserError("missing --holdout: give the share of the rows to hold out, above 0 and below 1")
    from .run import run_split

    for name, num_rows in run_split(config).items():
        print(f"{counted(num_rows, 'row')} in {Path(config.out) / name}/meta.json")
    return DONE


def _verify(args: argparse.Namespace) -> int:
    from .runtime.engine import engine
    from .shard.report import describe_verified
    from .shard.verify import verify_output

    out = Path(absolute("OUT", args.out))
    try:
        manifest = Manifest.read(out)
    except OutputError as error:
        print(f"neatpack: {error}", file=sys.stderr)
        return FAILED
    with engine(args.engine) as running:
        problems = verify_output(out, manifest, running)
    for problem in problems:
        print(problem)
    if problems:
        print(f"{out}: {counted(len(problems), 'problem')}", file=sys.stderr)
        return FAILED
    print(describe_verified(out, manifest))
    return DONE


def _skipped(args: argparse.Namespace) -> int:
    from .shard.skipped import skipped_rows

    out = Path(absolute("OUT", args.output))
    reasons = [reason.strip() for reason in (args.reason or "").split(",") if reason.strip()]
    problems: list[str] = []
    unread = 0
    try:
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
    except OutputError as error:
        raise UserError(str(error)) from None
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
        with write_whole(Path(absolute("--out", file))) as target:
            yield target.write
    except OSError as error:
        raise UserError(f"--out {file}: cannot be written: {error.strerror}") from None


def _export(args: argparse.Namespace) -> int:
    from .shard.export import export_energon

    out = Path(absolute("OUT", args.out))
    try:
        manifest = Manifest.read(out)
        num_shards = export_energon(out, manifest)
    except OutputError as error:
        raise UserError(str(error)) from None
    packs = f"{counted(manifest.counts.packs, 'pack')} in {counted(num_shards, 'shard')}"
    print(f"{out}: {packs}, readable by Megatron-Energon")
    return DONE


if __name__ == "__main__":
    raise SystemExit(command())
