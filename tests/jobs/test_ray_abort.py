"""A failed run leaves its tasks alone: Ray's core aborts a driver that cancels tasks which complete meanwhile."""

import re
from pathlib import Path

import pytest
from helpers import ROOT

from jobs.ray_abort import count_aborts

pytestmark = pytest.mark.cluster


def test_failed_rounds_do_not_abort_the_driver() -> None:
    """A short version of `python jobs/ray_abort.py --rounds 200`. With cancelled tasks, 1 in 20 aborts."""
    assert count_aborts(20) == 0


def test_engine_cancels_no_task() -> None:
    files = Path(ROOT, "pipeline").rglob("*.py")
    assert not [file for file in files if re.search(r"ray\.cancel\(", file.read_text())]
