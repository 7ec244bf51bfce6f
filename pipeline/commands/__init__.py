"""The commands of `neatpack`, a file each, in the order of --help."""

from . import export, pack, show, skipped, verify

COMMANDS = (pack, verify, show, skipped, export)  # pack.py also has plan and split
