"""neatpack show"""

import argparse
import dataclasses
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neatpack.format.manifest import Manifest
from neatpack.storage.files import write_whole
from neatpack.storage.location import Location

from ..config import PackConfig, UserError, place_of
from ..flags import add_flags, load_config
from ..runtime.again import run_again
from ..runtime.logs import to_stdout
from .common import DONE, FAILED, FOLLOW, add_follow, command

if TYPE_CHECKING:
    from ..view.document import PackView

# What says how a whole output is made, and nothing of one row.
OF_OUTPUTS = (
    "out", "datasets", "holdout", "check_media", "packing_ratio", "max_packs", "group_size", "seed",
    "fake_image", "shard_mb", "max_skipped", "engine", "num_workers", "record_paths", "overwrite",
)  # fmt: skip
OF_ROWS = tuple(f.name for f in dataclasses.fields(PackConfig) if f.name not in (*OF_OUTPUTS, "processor"))


def add_to(commands: Any) -> None:
    show = command(
        commands,
        "show",
        _show,
        description="Show one pack of a finished output: its documents and where they came from, their text with the "
        "trained tokens in ⟦ ⟧, their pictures at the size the model sees, positions and the attention mask. With "
        "--meta and --row, show what a row of a data set would be in a pack.",
        epilog="Examples: neatpack show packed 3; neatpack show packed 3 --doc 0 --html pack.html; neatpack show "
        "--meta meta.json --processor Qwen/Qwen2.5-VL-7B-Instruct --row coco:17. The flags from --config on are those "
        "of `neatpack pack`, for --row; --processor and --trust-remote-code also say whose tokenizer reads a pack.",
    )
    show.add_argument("output", metavar="OUT", nargs="?", help="a finished output")
    show.add_argument("pack", metavar="PACK", nargs="?", help="number of a pack, from 0")
    show.add_argument("--doc", metavar="N", help="only this document of the pack, from 0 (position in the ledger)")
    show.add_argument("--row", metavar="DATASET:N", default="", help="a row of a data set of --meta, from 0")
    add_follow(show, "show texts, and the file and line of each document")
    show.add_argument("--html", metavar="FILE", default="", help="write a page there, which needs no other file")
    show.add_argument("--png", metavar="FILE", default="", help="write a picture there")
    show.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colours, and thumbnails of 24-bit colours: auto for a terminal, thumbnails if COLORTERM says truecolor",
    )
    add_flags(show, omit=OF_OUTPUTS, optional=("meta", "processor"))


def _show(args: argparse.Namespace) -> int:
    if args.row:
        return _show_row(args)
    if given := [name for name in OF_ROWS if name != "trust_remote_code" and getattr(args, name) is not None]:
        raise UserError(
            f"--{given[0].replace('_', '-')}: is for --row DATASET:N; a pack is shown as it was made",
            code="option-conflict",
            option=given[0],
        )
    if args.output is None or args.pack is None:
        raise UserError(
            "give OUT and the number of a PACK, or --meta, --processor and --row DATASET:N",
            code="option-missing",
            option="row",
        )
    from ..view.stored import stored_view

    out = place_of("OUT", args.output)
    number = _number("PACK", args.pack)
    view = stored_view(
        out,
        Manifest.read(out),
        number,
        only=None if args.doc is None else _number("--doc", args.doc),
        processor=args.processor or "",
        trust_remote_code=bool(args.trust_remote_code),
        follow=args.follow_sources,
    )
    return _print(view, args)


def _show_row(args: argparse.Namespace) -> int:
    if args.output is not None or args.doc is not None:
        raise UserError(
            "--row shows a row before it is packed: leave OUT, PACK and --doc out", code="option-conflict", option="row"
        )
    if args.follow_sources:
        raise UserError(
            f"{FOLLOW}: is for a pack of an output; --row reads what --meta names",
            code="option-conflict",
            option=FOLLOW,
        )
    dataset, colon, number = args.row.rpartition(":")
    if not colon or not dataset:
        raise UserError(
            f"--row {args.row}: expected DATASET:N, as in coco:17", code="option-invalid", option="row", got=args.row
        )
    row = _number("--row", number)
    config = load_config(args, optional=("out",))
    with tempfile.TemporaryDirectory(prefix="neatpack-show-") as folder:

        def job() -> int:
            # Here and not above: torch and transformers take seconds, which --help and a wrong flag should not.
            from ..view.row import row_view

            return _print(row_view(config, dataset, row, Path(folder)), args)

        return run_again(job) if args.in_fork else job()


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 12:
        raise UserError(f"{name} {text}: expected a whole number, from 0", code="option-invalid", option=name, got=text)
    return int(text)


def _print(view: "PackView", args: argparse.Namespace) -> int:
    from ..view.terminal import terminal_text

    written = []
    if args.html:
        from ..view.html import html_page

        written.append(_write("--html", args.html, html_page(view).encode()))
    if args.png:
        from ..view.lines import png_bytes
        from ..view.png import png_picture

        written.append(_write("--png", args.png, png_bytes(png_picture(view))))
    if written:
        to_stdout("\n".join(f"{view.title}: {file}" for file in written))
    else:
        is_terminal = sys.stdout.isatty()
        colours = args.color == "always" or (args.color == "auto" and is_terminal and not os.environ.get("NO_COLOR"))
        is_true = args.color == "always" or os.environ.get("COLORTERM") in ("truecolor", "24bit")
        width = shutil.get_terminal_size().columns if is_terminal else None
        text = terminal_text(view, colours=colours, thumbnails=colours and is_true, width=width)
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())  # whatever the terminal's encoding is
        sys.stdout.buffer.flush()
    return FAILED if view.skipped else DONE


def _write(flag: str, file: str, content: bytes) -> Location:
    path = place_of(flag, file)
    try:
        with write_whole(path) as target:
            target.write(content)
    except OSError as error:
        raise UserError(
            f"{flag} {file}: cannot be written: {error.strerror}", code="machine", option=flag, path=str(file)
        ) from None
    return path
