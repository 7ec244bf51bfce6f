"""neatpack export"""

import argparse
from pathlib import Path
from typing import Any

from ..config import UserError, absolute
from ..manifest import Manifest, OutputError
from ..shard.words import counted
from .common import DONE, command


def add_to(commands: Any) -> None:
    export = command(
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


def _export(args: argparse.Namespace) -> int:
    from ..shard.export import export_energon

    out = Path(absolute("OUT", args.out))
    try:
        manifest = Manifest.read(out)
        num_shards = export_energon(out, manifest)
    except OutputError as error:
        raise UserError(str(error)) from None
    packs = f"{counted(manifest.counts.packs, 'pack')} in {counted(num_shards, 'shard')}"
    print(f"{out}: {packs}, readable by Megatron-Energon")
    return DONE
