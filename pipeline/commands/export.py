"""neatpack export"""

import argparse
from typing import Any

from neatpack.format.manifest import Manifest
from neatpack.storage.location import Location

from ..config import UserError, place_of
from ..runtime.logs import to_stdout
from ..shard.words import counted
from .common import DONE, command


def add_to(commands: Any) -> None:
    export = command(
        commands,
        "export",
        _export,
        description="Write beside the shards of a finished output what others want to find there; the shards stay as "
        "they are. energon: for Megatron-Energon 7, without running `energon prepare`; its TaskEncoder cooks the packs "
        "by neatpack.loaders.energon.cook_pack. hub-card: OUT/README.md, the dataset card by which the Hugging Face "
        "hub and datasets.load_dataset(OUT) read it.",
    )
    export.add_argument("target", metavar="TARGET", choices=tuple(TARGETS), help=" or ".join(TARGETS))
    export.add_argument("out", metavar="OUT", help="a finished output")
    export.add_argument("--overwrite", action="store_true", help="hub-card: also over a card that somebody edited")


def _export(args: argparse.Namespace) -> int:
    if args.overwrite and args.target != "hub-card":
        raise UserError(
            f"--overwrite is for hub-card; {args.target} always writes the same files",
            code="option-conflict",
            option="overwrite",
            target=args.target,
        )
    out = place_of("OUT", args.out)
    to_stdout(TARGETS[args.target](out, Manifest.read(out), args))
    return DONE


def _energon(out: Location, manifest: Manifest, args: argparse.Namespace) -> str:
    from ..shard.export import export_energon

    num_shards = export_energon(out, manifest)
    packs = f"{counted(manifest.counts.packs, 'pack')} in {counted(num_shards, 'shard')}"
    return f"{out}: {packs}, readable by Megatron-Energon"


def _hub_card(out: Location, manifest: Manifest, args: argparse.Namespace) -> str:
    from ..shard.card import write_card

    return f"{write_card(out, manifest, overwrite=args.overwrite)}: say in it what the data are, and their licence"


TARGETS = {"energon": _energon, "hub-card": _hub_card}
