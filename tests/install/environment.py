"""The wheel, and fresh environments to install it into. What it requires is linked from the running environment:
nothing is downloaded, and a hundred packages take a second."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

SOURCES = ("neatpack", "pipeline", "loaders")
# Ray on loopback only: it takes 127.0.0.1 where it may not make a cluster.
LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "HF_HUB_OFFLINE": "1", "RAY_worker_niceness": "0"}  # fmt: skip


def copy_checkout(folder: Path) -> Path:
    """The source as one would download it: no environment, nothing compiled, no build."""
    folder.mkdir(parents=True)
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def build_wheel(folder: Path) -> Path:
    pip(
        "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, copy_checkout(folder / "src")
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def build_wheel_from_sdist(folder: Path) -> Path:
    """Build the source archive, unpack it, and build the wheel from that."""
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", build, folder], cwd=copy_checkout(folder / "src"), capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder / "sdist", filter="data")
    (source,) = (folder / "sdist").iterdir()
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def requirements_of(wheel: Path, extra: str = "") -> list[Requirement]:
    """What `pip install neatpack[extra]` would ask for."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(content.read(name).decode())
    return _asked(metadata.get_all("Requires-Dist"), extra)


def make_environment(folder: Path, requirements: Iterable[Requirement], wheel: Path | None = None) -> Path:
    """The folder of programs of a new environment that has these, what they require in turn, and the wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in _with_all_they_require(requirements):
        for entry in {file.parts[0] for file in package.files or ()}:
            # ..: programs. A .pth would lead out of the environment. Some packages share a folder, as google/.
            if entry not in ("..", "__pycache__") and not entry.endswith(".pth") and not (site / entry).exists():
                (site / entry).symlink_to(package.locate_file(entry))
    if wheel:
        pip("--python", folder / "bin" / "python", "install", "--no-index", "--no-deps", wheel)
    return folder / "bin"


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that finds nothing of this test's own environment."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RAY_", "VIRTUAL_ENV"))}
    # A short path: those of Ray's sockets may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="np", ignore_cleanup_errors=True) as session:
        variables = kept | LOCAL | {"RAY_TMPDIR": session}
        return subprocess.run([*map(str, command)], cwd=cwd, env=variables, capture_output=True, text=True)


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def _asked(lines: Iterable[str] | None, extra: str) -> list[Requirement]:
    each = map(Requirement, lines or ())
    return [one for one in each if one.marker is None or one.marker.evaluate({"extra": extra})]


def _with_all_they_require(requirements: Iterable[Requirement]) -> list[Distribution]:
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        package = found.setdefault(name, distribution(name))
        assert requirement.specifier.contains(package.version, prereleases=True), f"{requirement}: {package.version}"
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += _asked(package.requires, extra)
    return list(found.values())
