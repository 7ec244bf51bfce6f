"""The command line itself: help, version, wrong flags, what it imports; and as a program."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ROOT, Run, flags
from support.errors import prints_code

pytestmark = pytest.mark.net


def test_wrong_flags(run: Run, meta: Path) -> None:
    for arguments, words in [
        ([], "COMMAND"),
        (["pak"], "pak"),
        (["pack", "--pack-sise", "1"], "--pack-sise"),
        (["pack", *flags(meta), "--engine", "spark"], "spark"),
        (["verify"], "OUT"),
    ]:
        code, _, errors = run(*arguments)
        assert (code, words in errors) == (2, True), arguments


def test_every_command_may_be_verbose(run: Run, meta: Path, out: Path) -> None:
    assert "verify: 1 " in run("verify", out, "--verbose")[2]
    assert "measure: 1 " in run("plan", *flags(meta), "-v")[2]


def test_help_names_every_key_and_its_default(run: Run) -> None:
    code, printed, _ = run("pack", "--help")
    words = " ".join(printed.split())
    assert code == 0
    for text in ("--meta META", "(required)", "--pack-size PACK_SIZE tokens in a pack, at most (default: 8192)"):
        assert text in words
    assert "--fake-image, --no-fake-image" in words
    assert "(default: true)" in words
    assert "--overwrite" not in run("plan", "--help")[1]
    code, printed, _ = run("split", "--help")
    assert code == 0 and "--holdout HOLDOUT" in printed
    assert "--processor" not in printed and "--pack-size" not in printed


def test_version(run: Run) -> None:
    from neatpack import __version__

    assert run("--version")[:2] == (0, f"neatpack {__version__}\n")


# As programs


def program(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd="/", timeout=60)


HELP = [
    ["--help"],
    ["pack", "--help"],
    ["plan", "--help"],
    ["split", "--help"],
    ["verify", "--help"],
    ["skipped", "--help"],
]
WRONG = [["pack", "--pack-size", "8k"], ["plan", "--meta", "m.json"], ["split", "--meta", "m.json", "--out", "o"]]


@pytest.mark.parametrize("arguments", [*HELP, *WRONG], ids=" ".join)
def test_help_and_wrong_flags_need_neither_torch_nor_ray(arguments: list[str]) -> None:
    code = (
        "import sys; from neatpack.pipeline.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('loaded:', *{'torch', 'transformers', 'ray', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "loaded:"
    if arguments in HELP:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(" ".join(["usage: neatpack", *arguments[:-1]]))
    else:
        assert done.stderr.startswith("neatpack: ")


def test_the_script_runs_from_anywhere() -> None:
    done = program(str(ROOT / "pipeline" / "pack.py"), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: neatpack pack ")
    assert "--pack-size" in done.stdout
    done = program(str(ROOT / "pipeline" / "pack.py"), "--pack-size", "4")
    assert (done.returncode, done.stdout) == (2, "")
    assert prints_code(done.stderr, "option-missing")
    assert all(flag in done.stderr for flag in ("--meta", "--processor", "--out"))
