"""Modules that lie in a data folder or in the working directory: nothing of them runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import plant_modules
from helpers import DEMO_PROCESSOR, ROOT, files_of, mixed_rows, tiny_config

from neatpack.pipeline.run import run_pack

pytestmark = pytest.mark.cluster

SMALL = ["--pack-size", "512", "--shard-mb", "1", "--group-size", "4", "--pixels", "u8"]


@pytest.fixture
def planted(tiny, tmp_path: Path):
    """A meta JSON in a folder with planted modules, the file that these would write, and what a good run gives."""
    meta = mixed_rows(tiny).write()
    run_pack(tiny_config(meta, tmp_path / "expected"))
    plant_modules(meta.parent, mark := tmp_path / "ran")
    return meta, mark


def launchers(tmp_path: Path) -> dict[str, list[str]]:
    """The ways to start a run that are safe in any working directory."""
    console = tmp_path / "bin" / "neatpack"
    console.parent.mkdir()
    console.write_text(
        f"#!{sys.executable}\nimport sys\nfrom neatpack.pipeline.cli import command\nsys.exit(command())\n"
    )
    console.chmod(0o755)
    return {
        "console": [str(console), "pack"],
        "script": [sys.executable, str(ROOT / "pipeline" / "pack.py")],
        "safe module": [sys.executable, "-P", "-m", "neatpack.pipeline.cli", "pack"],
    }


@pytest.mark.parametrize("engine", ["inline", "ray"])
@pytest.mark.parametrize("launcher_name", ["console", "script", "safe module"])
def test_planted_modules_do_not_run(planted, tmp_path: Path, engine: str, launcher_name: str) -> None:
    """In the folder of the data, which is the working directory, too; relative paths of the user go on to work."""
    meta, mark = planted
    command = launchers(tmp_path)[launcher_name]
    done = subprocess.run(
        [*command, "--meta", meta.name, "--processor", str(DEMO_PROCESSOR), "--out", "../out", "--engine", engine,
         *SMALL],
        cwd=meta.parent, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stderr[-3000:]
    assert files_of(tmp_path / "out") == files_of(tmp_path / "expected")


def test_planted_modules_do_not_run_in_workers_of_a_caller(planted, tmp_path: Path, monkeypatch) -> None:
    """Called from Python, where the working directory holds the data; it is the same after the run."""
    meta, mark = planted
    script = (
        "import os, sys\n"
        "from neatpack import PackConfig, run_pack\n"
        "if __name__ == '__main__':\n"
        f"    os.chdir({str(meta.parent)!r})\n"
        f"    packed = run_pack(PackConfig(meta='meta.json', processor={str(DEMO_PROCESSOR)!r}, out='../out',\n"
        "        engine='ray', num_workers=1, pack_size=512, shard_mb=1, group_size=4, pixels='u8'))\n"
        f"    assert os.getcwd() == {str(meta.parent)!r}\n"
    )
    (program := tmp_path / "program").mkdir()
    (program / "run.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "program/run.py"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stderr[-3000:]
    assert files_of(tmp_path / "out") == files_of(tmp_path / "expected")


def test_import_folder_of_workers_is_private_and_empty() -> None:
    """Of a path that stays on sys.path of workers, no other user may be the owner."""
    script = """
import os
from neatpack.pipeline.runtime.engine import engine
def look():
    import os, sys
    cwd = [path for path in sys.path if "ray-path-" in path]
    return [(path, oct(os.stat(path).st_mode)[-3:], os.stat(path).st_uid, os.listdir(path)) for path in cwd]
with engine("ray", 1) as running:
    ((path, mode, owner, inside),) = running.run(look, [()], title="look")[0]
assert (mode, owner, inside) == ("700", os.getuid(), []), (mode, owner, inside)
assert not os.path.exists(path)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
