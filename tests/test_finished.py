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
from helpers import DEMO_PROCESSOR, ROOT, TinyData, files_of, mixed_rows, tiny_config
from support.errors import numbers_in, prints_code, raises

from neatpack.pipeline import finished as finished_module, run
from neatpack.pipeline.cli import main
from neatpack.pipeline.config import PackConfig, UserError
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.finished import FILE, Finished
from neatpack.pipeline.run import Packed, run_pack


@pytest.fixture
def config(tmp_path: Path) -> PackConfig:
    """A finished output, of a processor of its own, and what made it."""
    shutil.copytree(DEMO_PROCESSOR, tmp_path / "processor")
    meta = mixed_rows(TinyData(tmp_path / "data"), 8, 3).write()
    config = tiny_config(meta, tmp_path / "out", processor=str(tmp_path / "processor"))
    run_pack(config)
    return config


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[PackConfig]:
    """Runs that looked into everything."""
    found: list[PackConfig] = []
    whole: Callable[..., dict[Any, Packed]] = run._packed

    def packed(config: PackConfig, *rest: Any) -> dict[Any, Packed]:
        found.append(config)
        return whole(config, *rest)

    monkeypatch.setattr(run, "_packed", packed)
    return found


def test_what_was_seen_before_is_enough(config: PackConfig, looked: list[PackConfig]) -> None:
    before = files_of(Path(config.out))
    again = run_pack(config)
    assert again.already_done and not looked
    assert again.summary.startswith(f"{config.out}\n  samples   11 = 11 rows")
    assert run_pack(dataclasses.replace(config, num_workers=3)).already_done and not looked, "it shapes nothing"
    Path(config.out, FILE).unlink()
    assert run_pack(config) == again, "told in the same words by a run that looks into everything"
    assert len(looked) == 1
    assert run_pack(config).already_done and len(looked) == 1, "which has left a record again"
    assert files_of(Path(config.out)) == before


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


def _another_template(config: PackConfig) -> None:
    template = Path(config.processor, "chat_template.jinja")
    template.write_text("{# another #}" + template.read_text())
    family_for.cache_clear()  # a process keeps a processor; the next run is in another


def _another_meta(config: PackConfig) -> None:
    entries = json.loads(Path(config.meta).read_text())
    entries["tiny"]["sample_ratio"] = 2.0
    Path(config.meta).write_text(json.dumps(entries))


@pytest.mark.parametrize(
    "change",
    [_one_row_more, _another_letter, _another_file, _another_template, _another_meta],
    ids=lambda f: f.__name__,
)
def test_another_input_is_noticed_and_refused(
    config: PackConfig, looked: list[PackConfig], change: Callable[[PackConfig], None]
) -> None:
    change(config)
    with raises(UserError, "output-mismatch", out=config.out):
        run_pack(config)
    assert len(looked) == 1
    with raises(UserError, "output-mismatch", out=config.out):
        run_pack(config)
    assert run_pack(dataclasses.replace(config, overwrite=True)).already_done is False
    assert run_pack(config).already_done and len(looked) == 3, "the new output has a record of its own"


def test_what_only_looks_different_is_looked_at_once(config: PackConfig, looked: list[PackConfig]) -> None:
    os.utime(_rows(config))
    assert run_pack(config).already_done and len(looked) == 1
    assert run_pack(config).already_done and len(looked) == 1
    Path(config.processor, "README.md").write_text("mine")
    assert run_pack(config).already_done and len(looked) == 2
    assert run_pack(config).already_done and len(looked) == 2


@pytest.mark.parametrize(
    ("name", "found"),
    [("versions", {"torch": "another"}), ("_own_files", [Path(__file__)]), ("_installed", [["site-packages", 1]])],
)
def test_other_code_looks_again(
    config: PackConfig, looked: list[PackConfig], monkeypatch: pytest.MonkeyPatch, name: str, found: Any
) -> None:
    monkeypatch.setattr(finished_module, name, lambda: found)
    assert run_pack(config).already_done and len(looked) == 1
    assert run_pack(config).already_done and len(looked) == 1


@pytest.mark.parametrize("lost", ["manifest.json", "report.html", FILE])
def test_what_is_missing_is_made_again(config: PackConfig, looked: list[PackConfig], lost: str) -> None:
    before = files_of(Path(config.out))
    Path(config.out, lost).unlink()
    run_pack(config)
    assert len(looked) == 1 and Path(config.out, lost).is_file()
    assert files_of(Path(config.out)) == before


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"seen": 1}', b"\xff", b'{"seen": {}, "fingerprint": ""}'])
def test_a_record_that_is_none_is_none(config: PackConfig, looked: list[PackConfig], content: bytes) -> None:
    Path(config.out, FILE).write_bytes(content)
    assert Finished.read(Path(config.out)) is None
    assert run_pack(config).already_done and len(looked) == 1


def test_a_record_of_another_output_says_nothing(config: PackConfig, looked: list[PackConfig], tmp_path: Path) -> None:
    """As after a run that was killed when its new output was in place, and its record not yet."""
    record = Path(config.out, FILE).read_bytes()
    run_pack(dataclasses.replace(config, pack_size=256, overwrite=True))
    Path(config.out, FILE).write_bytes(record)
    with raises(UserError, "output-mismatch", changed=["config.pack_size"]):
        run_pack(config)


def test_media_that_are_to_be_checked_are(config: PackConfig, looked: list[PackConfig], tmp_path: Path) -> None:
    config = dataclasses.replace(config, check_media="size", out=str(tmp_path / "checked"))
    run_pack(config)
    assert not Path(config.out, FILE).exists()
    assert run_pack(config).already_done and len(looked) == 2


def test_both_outputs_of_a_holdout(config: PackConfig, looked: list[PackConfig], tmp_path: Path) -> None:
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
    config: PackConfig, looked: list[PackConfig], capsys: pytest.CaptureFixture[str], tmp_path: Path
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
    monkeypatch.setattr("neatpack.pipeline.finished.time.time", lambda: 1.0)
    run_pack(config)
    assert not Path(config.out, FILE).exists()


def test_nothing_heavy_is_imported(config: PackConfig) -> None:
    """In a process of its own, on Ray: which is not started."""
    flags = ["pack", "--meta", config.meta, "--processor", config.processor, "--out", config.out, "--pack-size", "512",
             "--shard-mb", "1", "--group-size", "4", "--pixels", "u8"]  # fmt: skip
    code = (
        "import sys\nfrom neatpack.pipeline.cli import main\n"
        f"code = main({flags!r})\n"
        "print(code, sorted({'torch', 'transformers', 'ray', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith(f"{config.out} ")
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
