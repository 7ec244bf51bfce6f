"""Folders in a shared TMPDIR: those that others prepared are refused, and nothing is written through their links."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import DEMO_PROCESSOR, TinyData, mixed_rows, tiny_config
from object_store import serving
from support.errors import raises

from neatpack.pipeline.cli import main
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.hub import processor_here
from neatpack.pipeline.runtime.journal import journal
from neatpack.storage.location import Location
from neatpack.storage.private_folders import private_folder, temporary_folder

STRANGER = 65534


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TMPDIR that everyone may write to."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def own(shared: Path) -> Path:
    return shared / f"neatpack-{os.getuid()}"


def make_link(folder: Path, elsewhere: Path) -> None:
    folder.symlink_to(elsewhere)


def make_dangling_link(folder: Path, elsewhere: Path) -> None:
    folder.symlink_to(elsewhere / "absent")


def make_open(folder: Path, _: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def make_readable(folder: Path, _: Path) -> None:
    folder.mkdir()
    folder.chmod(0o750)


def make_file(folder: Path, _: Path) -> None:
    folder.touch()


def make_of_stranger(folder: Path, _: Path) -> None:
    if os.getuid():
        pytest.skip("only root can give folders away")
    folder.mkdir(mode=0o700)
    os.chown(folder, STRANGER, STRANGER)


PREPARED: list[Callable[[Path, Path], None]] = [
    make_link, make_dangling_link, make_open, make_readable, make_file, make_of_stranger
]  # fmt: skip


@pytest.mark.parametrize("prepare", PREPARED)
@pytest.mark.parametrize("inner", ["", "journals", "processors"])
def test_folder_that_another_user_prepared_is_refused(
    prepare: Callable[[Path, Path], None], inner: str, shared: Path, tmp_path: Path
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    if inner:
        private_folder()
    prepare(own(shared) / inner if inner else own(shared), elsewhere)
    journal_place = Location.parse("s3://bucket/out/work/measured/0.journal")
    with raises(UserError, "folder-unsafe"):
        private_folder("journals" if inner != "processors" else inner)
    if inner != "processors":
        with pytest.raises(UserError), journal(journal_place):
            pass
    if not inner:
        with pytest.raises(UserError), temporary_folder("ray-path-"):
            pass
    assert not list(elsewhere.rglob("*"))


def test_private_folders_have_mode_0700(shared: Path) -> None:
    before = os.umask(0)
    try:
        with journal(Location.parse("s3://bucket/out/0.journal")), temporary_folder("ray-path-") as folder:
            found = [own(shared), *own(shared).iterdir(), folder]
            assert {stat.S_IMODE(each.stat().st_mode) for each in found if each.is_dir()} == {0o700}
    finally:
        os.umask(before)


def test_copy_of_a_processor_is_private_and_not_taken_from_a_link(shared: Path, tmp_path: Path) -> None:
    """A processor may bring code: a copy that a stranger prepared would run it."""
    for file in DEMO_PROCESSOR.iterdir():
        target = tmp_path / "bucket" / "processor" / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    with serving(tmp_path / "bucket") as store:
        own(shared).symlink_to(tmp_path / "bucket")
        with raises(UserError, "folder-unsafe"):
            processor_here(store.plain_uri("processor"))
        own(shared).unlink()
        copy = Path(processor_here(store.plain_uri("processor")))
    assert copy.is_relative_to(own(shared)) and (copy / "tokenizer_config.json").is_file()


def test_run_says_which_folder_is_not_its_own(
    shared: Path, tmp_path: Path, tiny: TinyData, capsys: pytest.CaptureFixture[str]
) -> None:
    make_open(own(shared), tmp_path)
    config = tiny_config(mixed_rows(tiny, 2, 1).write(), tmp_path / "out")
    command = ["pack", "--meta", config.meta, "--processor", config.processor, "--out", config.out, "--engine", "ray"]
    assert main(command) == 2
    printed = capsys.readouterr().err
    assert f"{own(shared)}: " in printed and "0777" in printed and "0700" in printed
    assert "Traceback" not in printed
