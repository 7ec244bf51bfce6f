"""Errors for those who use neatpack: what is wrong with what they gave it, and what a job would lose of it."""

from collections.abc import Mapping


class UserError(ValueError):
    """The user's input is wrong (exit code 2): says what was got, what was expected and the remedy."""


class DataLossError(Exception):
    """By its plan, a job would lose more of its data than --max-skipped allows. Nothing is rendered (exit code 1)."""

    def __init__(self, summary: str, troubles: Mapping[str, tuple[str, ...]]) -> None:
        self.summary = summary  # of the plan
        self.troubles = dict(troubles)  # by output: what would be lost, in words
        super().__init__("; ".join(f"{out}: {lines[0]}" for out, lines in troubles.items()))
