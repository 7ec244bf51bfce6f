"""The commands of `neatpack`, a file each, in the order of --help."""

from . import diff, export, inspect, pack, skipped, verify

COMMANDS = (pack, verify, skipped, inspect, diff, export)  # pack.py also has plan and split
