"""What is imported when: every task and every loader worker pays for it at its start."""

import subprocess
import sys

import pytest
from helpers import ROOT


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("neatpack", "numpy"),
        ("neatpack.pipeline.cli", "torch"),
        ("neatpack.pipeline.cli", "yaml"),  # --help works without the extra that brings it
        ("neatpack.pipeline.run", "transformers.processing_utils"),  # seconds: all of transformers' processors
        ("neatpack.loaders", "transformers"),
        ("neatpack.loaders", "PIL"),
    ],
)
def test_what_is_not_needed_is_not_imported(module, absent):
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
