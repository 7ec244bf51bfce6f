"""The commands of `neatpack`, a file each, in the order of --help."""

from . import diff, export, inspect, pack, report, skipped, verify

COMMANDS = (pack, verify, skipped, report, inspect, diff, export)  # pack.py also has plan and split
