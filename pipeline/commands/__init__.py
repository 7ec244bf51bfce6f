"""The commands of `neatpack`, in the order of --help; the file of one is imported when it is the one asked for."""

from importlib import import_module
from typing import Any

COMMANDS = {
    "pack": "pack the data sets of a meta JSON into shards",
    "plan": "measure and plan only: what would packing give?",
    "split": "split data sets into rows for training and for validation, without packing",
    "verify": "prove a finished output",
    "show": "show a pack as text and pictures, with what is trained on; or a row before it is packed",
    "skipped": "list the rows of a finished output that are in no pack",
    "report": "write OUT/report.html: what an output holds, in one page",
    "inspect": "show the tables of a finished output",
    "diff": "what changed between two finished outputs",
    "export": "make a finished output readable for another loader, or ready for the hub",
}
_OF_PACK = ("plan", "split")  # pack.py has these, too


def add_to(commands: Any, name: str) -> None:
    """A command with all its flags."""
    file = import_module(f".{'pack' if name in _OF_PACK else name}", __name__)
    getattr(file, f"add_{name}" if name in ("pack", *_OF_PACK) else "add_to")(commands)
