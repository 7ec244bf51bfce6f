"""A second run over a finished output: what it saw is as it was, or it looks into everything again."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import DEMO_PROCESSOR, ROOT
from support.commands import main
from support.data import TinyData, mixed_rows
from support.errors import numbers_in, printed_code, prints_code, raises
from support.outputs import files_of
from support.packed import tiny_config

from neatpack import PackConfig, UserError, run_pack

pytestmark = pytest.mark.net

RECORD = "work/finished.json"


@pytest.fixture
def config(tmp_path: Path) -> PackConfig:
    """A finished output, of a processor of its own, and what made it."""
    shutil.copytree(DEMO_PROCESSOR, tmp_path / "processor")
    meta = mixed_rows(TinyData(tmp_path / "data"), 8, 3).write()
    config = tiny_config(meta, tmp_path / "out", processor=str(tmp_path / "processor"))
    run_pack(config)
    return config


class Looked(list[str]):
    """The runs that read the rows again, as the interpreter reports what it opens: a run opens the meta JSON first."""

    is_new_run = False

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith("/meta.json"):
            self.is_new_run = True
        elif event == "open" and str(arguments[0]).endswith("/rows.jsonl") and self.is_new_run:
            self.append(str(arguments[0]))
            self.is_new_run = False


LOOKED = Looked()
sys.addaudithook(LOOKED.note)  # for good: none can be removed


@pytest.fixture
def looked(config: PackConfig) -> Looked:
    LOOKED.clear()
    return LOOKED


def test_what_was_seen_before_is_enough(config: PackConfig, looked: Looked) -> None:
    before = files_of(Path(config.out))
    again = run_pack(config)
    assert again.already_done and not looked
    assert again.summary.startswith(f"{config.out}\n  samples   11 = 11 rows")
    assert run_pack(dataclasses.replace(config, num_workers=3)).already_done and not looked, "it shapes nothing"
    Path(config.out, RECORD).unlink()
    assert run_pack(config) == again, "told in the same words by a run that looks into everything"
    assert len(looked) == 1
    assert run_pack(config).already_done and len(looked) == 1, "which has left a record again"
    assert files_of(Path(config.out)) == before


def _flags(config: PackConfig) -> list[str]:
    return ["pack", "--meta", config.meta, "--processor", config.processor, "--out", config.out, "--pack-size", "512",
            "--shard-mb", "1", "--group-size", "4", "--pixels", "u8"]  # fmt: skip


def _rows(config: PackConfig) -> Path:
    return Path(config.meta).with_name("rows.jsonl")


def _one_row_more(config: PackConfig) -> None:
    rows = _rows(config).read_bytes()
    _rows(config).write_bytes(rows + rows.splitlines(keepends=True)[0])


def _another_letter(config: PackConfig) -> None:
    """The same size, and the same time, as far as a program can set it."""
    status = _rows(config).stat()
    _rows(config).write_bytes(_rows(config).read_bytes().replace(b"Count", b"Tally", 1))
    os.utime(_rows(config), ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (_rows(config).stat().st_size, _rows(config).stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def _another_file(config: PackConfig) -> None:
    """In the place of the old one, with its time."""
    copy = _rows(config).with_name("copy.jsonl")
    shutil.copy2(_rows(config), copy)
    copy.write_bytes(copy.read_bytes().replace(b"Count", b"Tally", 1))
    shutil.copystat(_rows(config), copy)
    copy.replace(_rows(config))


def _another_meta(config: PackConfig) -> None:
    entries = json.loads(Path(config.meta).read_text())
    entries["tiny"]["sample_ratio"] = 2.0
    Path(config.meta).write_text(json.dumps(entries))


@pytest.mark.parametrize(
    "change",
    [_one_row_more, _another_letter, _another_file, _another_meta],
    ids=lambda f: f.__name__,
)
def test_another_input_is_noticed_and_refused(
    config: PackConfig, looked: Looked, change: Callable[[PackConfig], None]
) -> None:
    change(config)
    with raises(UserError, "output-mismatch", out=config.out):
        run_pack(config)
    assert len(looked) == 1
    with raises(UserError, "output-mismatch", out=config.out):
        run_pack(config)
    assert run_pack(dataclasses.replace(config, overwrite=True)).already_done is False
    assert run_pack(config).already_done and len(looked) == 3, "the new output has a record of its own"


def test_what_only_looks_different_is_looked_at_once(config: PackConfig, looked: Looked) -> None:
    os.utime(_rows(config))
    assert run_pack(config).already_done and len(looked) == 1
    assert run_pack(config).already_done and len(looked) == 1
    Path(config.processor, "README.md").write_text("mine")
    assert run_pack(config).already_done and len(looked) == 2
    assert run_pack(config).already_done and len(looked) == 2


def test_another_template_is_noticed(config: PackConfig) -> None:
    """By another process: one keeps its processors."""
    template = Path(config.processor, "chat_template.jinja")
    template.write_text("{# another #}" + template.read_text())
    command = [sys.executable, "-m", "neatpack.pipeline.cli", *_flags(config), "--engine", "inline"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, printed_code(done.stderr)) == (2, "output-mismatch"), done.stderr


@pytest.mark.parametrize("name", ["config", "datasets", "data", "processor", "code"])
def test_whatever_is_otherwise_is_looked_at(config: PackConfig, looked: Looked, name: str) -> None:
    """Such as `code`: other versions of packages."""
    record = json.loads(Path(config.out, RECORD).read_text())
    assert sorted(record["seen"]) == ["code", "config", "data", "datasets", "processor"]
    record["seen"][name] = "another"
    Path(config.out, RECORD).write_text(json.dumps(record))
    assert run_pack(config).already_done and len(looked) == 1
    assert run_pack(config).already_done and len(looked) == 1


@pytest.mark.parametrize("lost", ["manifest.json", "report.html", RECORD])
def test_what_is_missing_is_made_again(config: PackConfig, looked: Looked, lost: str) -> None:
    before = files_of(Path(config.out))
    Path(config.out, lost).unlink()
    run_pack(config)
    assert len(looked) == 1 and Path(config.out, lost).is_file()
    assert files_of(Path(config.out)) == before


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"seen": 1}', b"\xff", b'{"seen": {}, "fingerprint": ""}'])
def test_a_record_that_is_none_is_none(config: PackConfig, looked: Looked, content: bytes) -> None:
    Path(config.out, RECORD).write_bytes(content)
    assert run_pack(config).already_done and len(looked) == 1


def test_a_record_of_another_output_says_nothing(config: PackConfig, looked: Looked, tmp_path: Path) -> None:
    """As after a run that was killed when its new output was in place, and its record not yet."""
    record = Path(config.out, RECORD).read_bytes()
    run_pack(dataclasses.replace(config, pack_size=256, overwrite=True))
    Path(config.out, RECORD).write_bytes(record)
    with raises(UserError, "output-mismatch", changed=["config.pack_size"]):
        run_pack(config)


def test_media_that_are_to_be_checked_are(config: PackConfig, looked: Looked, tmp_path: Path) -> None:
    config = dataclasses.replace(config, check_media="size", out=str(tmp_path / "checked"))
    run_pack(config)
    assert not Path(config.out, RECORD).exists()
    assert run_pack(config).already_done and len(looked) == 2


def test_both_outputs_of_a_holdout(config: PackConfig, looked: Looked, tmp_path: Path) -> None:
    config = dataclasses.replace(config, holdout=0.3, out=str(tmp_path / "both"), max_skipped=1.0)
    first = run_pack(config)
    second = run_pack(config)
    assert len(looked) == 1 and second.holdout is not None and second.holdout.already_done
    assert first.holdout is not None and second.holdout.summary == first.holdout.summary
    (tmp_path / "both-holdout" / "manifest.json").unlink()
    again = run_pack(config)
    assert len(looked) == 2 and again.already_done and again.holdout is not None and not again.holdout.already_done
    with raises(UserError, "output-mismatch", holdout=str(tmp_path / "both-holdout")):
        run_pack(dataclasses.replace(config, holdout=0.0))


def test_losses_are_told_again(
    config: PackConfig, looked: Looked, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with _rows(config).open("ab") as rows:
        rows.write(b"broken\n" * 5)
    flags = ["pack", "--meta", config.meta, "--processor", config.processor, "--out", str(tmp_path / "lossy"),
             "--pack-size", "512", "--engine", "inline", "--keep-going"]  # fmt: skip
    assert main(flags) == 1
    first = capsys.readouterr()
    assert main(flags) == 1 and len(looked) == 1
    second = capsys.readouterr()
    assert second.err == first.err and prints_code(second.err, "too-many-skipped")
    assert numbers_in(second.err.splitlines()[0].removeprefix(f"neatpack: {tmp_path / 'lossy'}"))[:2] == [5, 16]
    assert second.out.startswith(f"{tmp_path / 'lossy'} ") and second.out.partition("\n")[2] == first.out


def test_a_clock_that_is_ahead_is_not_trusted(config: PackConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1.0)
    run_pack(config)
    assert not Path(config.out, RECORD).exists()


def test_nothing_heavy_is_imported(config: PackConfig) -> None:
    """In a process of its own, on Ray: which is not started."""
    flags = _flags(config)
    code = (
        "import sys\nfrom neatpack.pipeline.cli import main\n"
        f"code = main({flags!r})\n"
        "print(code, sorted({'torch', 'transformers', 'ray', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith(f"{config.out} ")
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
