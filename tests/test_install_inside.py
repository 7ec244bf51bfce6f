"""What test_install.py proves by internals."""

import sys
import tomllib
from pathlib import Path

from install.environment import run
from packaging.requirements import Requirement
from places import ROOT

from neatpack.pipeline.extras import EXTRAS, PACKAGES, remedy


def output_of(*command: str | Path, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


OTHER_NAMES = """
import neatpack, neatpack.errors, neatpack.loaders.ranks, sys
for name in ("pipeline", "pipeline.errors", "loaders", "loaders.ranks", "neatpack.tests", "neatpack.jobs"):
    try:
        __import__(name)
    except ImportError:
        continue
    print(name)
print(*[name for name in sys.modules if name.startswith(("pipeline", "loaders"))])
"""


def test_nothing_is_imported_twice_or_by_another_name():
    """In the checkout itself, where folders of these names lie at the top."""
    assert output_of(sys.executable, "-c", OTHER_NAMES, cwd=ROOT).split() == []


def test_the_extras_are_those_that_messages_speak_of():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        assert {PACKAGES.get(module, module) for module in modules} == {Requirement(d).name for d in declared[extra]}
    assert declared.keys() == {*EXTRAS, "dev"}


def test_the_remedy():
    assert remedy("ray", "neatpack pack", "pack") == (
        "neatpack pack needs ray, which is not installed: pip install 'neatpack[pack]'"
    )
    assert remedy("yaml", "x", "pack") == "x needs pyyaml, which is not installed: pip install 'neatpack[pack]'"
    assert (
        remedy("datasets", "x", "pack") == "x needs datasets, which is not installed: pip install 'neatpack[sources]'"
    )
    assert remedy("transformers.gone", "x", "pack") == remedy("numpy", "x", "pack") == remedy(None, "x", "pack") == ""
