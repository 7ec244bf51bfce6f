"""The commands of `neatpack`, a file each, in the order of --help."""

from . import export, pack, skipped, verify

COMMANDS = (pack, verify, skipped, export)  # pack.py also has plan and split
