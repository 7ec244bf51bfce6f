"""The commands of `neatpack`, a file each, in the order of --help."""

from . import diff, export, inspect, pack, recode, report, show, skipped, verify

COMMANDS = (pack, verify, show, skipped, report, inspect, diff, recode, export)  # pack.py also has plan and split
