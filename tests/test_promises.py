"""Promises that a redesign could break silently: what is on disk and when, one run at a time, nothing stale is kept."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from places import DEMO_PROCESSOR, ROOT
from support.commands import assert_verified, run_command
from support.data import TinyData, mixed_rows, picture
from support.outputs import files_of, read_index, read_ledger, read_manifest
from support.packed import tiny_config

from neatpack import OutputError, PackedShards, UserError, run_pack

pytestmark = pytest.mark.net


def test_files_are_synced_before_they_get_their_names_and_the_manifest_comes_last(
    tiny: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta, out = mixed_rows(tiny, 8, 3).write(), tmp_path / "out"
    synced: set[int] = set()  # inodes of files and folders
    named: list[tuple[str, bool]] = []
    folders: list[Path] = []  # of the names whose folder is not synced yet
    rename = os.replace

    def sync(file: int) -> None:
        found = os.fstat(file)
        synced.add(found.st_ino)
        folders[:] = [folder for folder in folders if folder.stat().st_ino != found.st_ino]

    def replace(old: Any, new: Any, **keys: Any) -> None:
        is_synced = os.stat(old).st_ino in synced
        rename(old, new, **keys)
        if Path(new).is_relative_to(out) and "work" not in Path(new).relative_to(out).parts:
            named.append((str(Path(new).relative_to(out)), is_synced))
            folders.append(Path(new).parent)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    run_pack(tiny_config(meta, out))
    names = [name for name, _ in named if name != "report.html"]
    assert names[-1] == "manifest.json", "whoever sees it may read all the others"
    assert {name for name in files_of(out)} <= set(names)
    assert [name for name, is_synced in named if not is_synced and name != "report.html"] == []
    assert folders in ([], [out]), "a name is on disk when its folder is; the report may be lost"


def test_two_runs_at_once_are_one(tiny: TinyData, tmp_path: Path) -> None:
    """The first is stopped where it holds its lock."""
    meta, out = mixed_rows(tiny, 8, 3).write(), tmp_path / "out"
    flags = ["--meta", meta, "--processor", DEMO_PROCESSOR, "--out", out, "--engine", "inline", "--pack-size", "512"]
    command = [sys.executable, ROOT / "pipeline" / "pack.py", *flags]
    first = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             start_new_session=True)  # fmt: skip
    try:
        while not list(out.glob("work/lock")) and first.poll() is None:
            time.sleep(0.01)
        os.killpg(first.pid, signal.SIGSTOP)
        if first.poll() is None and not (out / "manifest.json").exists():
            code, _, errors = run_command("pack", *flags)
            assert code == 2 and "in use by another run" in errors
            os.killpg(first.pid, signal.SIGCONT)
        assert first.wait(300) == 0
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
    assert_verified(out)
    assert run_command("pack", *flags)[0] == 0


def test_rows_that_are_edited_are_measured_whatever_the_work_folder_has(tiny: TinyData, tmp_path: Path) -> None:
    work = str(tmp_path / "work")
    meta = mixed_rows(tiny, 8, 3).write()
    run_pack(tiny_config(meta, tmp_path / "before", work=work))
    answer = tiny.rows[2]["messages"][1]
    answer["content"] = "x" * len(answer["content"])  # of the same size
    meta = tiny.write()
    run_pack(tiny_config(meta, tmp_path / "after", work=work))
    run_pack(tiny_config(meta, tmp_path / "alone"))
    assert files_of(tmp_path / "after") == files_of(tmp_path / "alone")
    with pytest.raises(UserError) as caught:
        run_pack(tiny_config(meta, tmp_path / "before", work=work))
    assert "inputs.tiny" in str(caught.value), "an output of other rows is not taken for theirs"
    assert len(read_ledger(tmp_path / "before")) == 11


def test_a_shard_that_a_killed_run_left_half_is_written_again(tiny: TinyData, tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = tiny_config(mixed_rows(tiny).write(), out)
    run_pack(config)
    whole = files_of(out)
    (out / "manifest.json").unlink()
    shard = out / "shards" / "pack-000000.tar"
    os.truncate(shard, shard.stat().st_size // 2)
    run_pack(config)
    assert files_of(out) == whole


def test_rows_open_media_of_their_own_folders_only(tmp_path: Path) -> None:
    """By a whole path, by `..` and by a link."""
    data = TinyData(tmp_path / "data").text("What?", "That.")
    picture(tmp_path / "private" / "secret.png", 60, 60)
    (data.folder / "link.png").symlink_to(tmp_path / "private" / "secret.png")
    for name in (str(tmp_path / "private" / "secret.png"), "../private/secret.png", "link.png"):
        data.row([("user", "<image>What?"), ("assistant", "That.")], images=[name])
    run_pack(tiny_config(data.write(), tmp_path / "out"))
    assert [line["status"] for line in read_ledger(tmp_path / "out")] == ["packed", "skipped", "skipped", "skipped"]
    run_pack(tiny_config(data.write(media_prefixes=[str(tmp_path / "private")]), tmp_path / "allowed"))
    assert [line["status"] for line in read_ledger(tmp_path / "allowed")] == ["packed"] * 4


def test_copies_of_a_row_are_in_different_packs(tiny: TinyData, tmp_path: Path) -> None:
    for i in range(12):
        tiny.text(f"Count to {i}.", "one two three " * (4 + i))
    run_pack(tiny_config(tiny.write(ratio=3), tmp_path / "out", pack_size=256))
    places = [(line["row"], line["pack"]) for line in read_ledger(tmp_path / "out")]
    assert len(places) == 36 and len(set(places)) == 36


def test_no_row_is_on_both_sides_of_a_holdout(tiny: TinyData, tmp_path: Path) -> None:
    for i in range(40):
        tiny.text(f"Count to {i % 20}.", "one two three " * (i % 20))  # each row twice
    run_pack(tiny_config(tiny.write(), tmp_path / "out", holdout=0.4, pack_size=128))
    packed = [{line["row"] % 20 for line in read_ledger(out) if line["status"] == "packed"}
              for out in (tmp_path / "out", tmp_path / "out-holdout")]  # fmt: skip
    assert packed[0] and packed[1] and not packed[0] & packed[1]


def test_media_that_fail_while_rendering_are_counted_and_end_the_command_with_1(tiny: TinyData, tmp_path: Path) -> None:
    mixed_rows(tiny, 6, 3)
    path = tiny.folder / "7.png"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    meta, out = tiny.write(), tmp_path / "out"
    flags = ["--meta", meta, "--processor", DEMO_PROCESSOR, "--out", out, "--engine", "inline", "--pack-size", "512"]
    code, printed, _ = run_command("pack", *flags, "--max-skipped", "0.01")
    assert code == 1 and "8 packed + 1 skipped" in printed
    (line,) = (line for line in read_ledger(out) if line["status"] == "skipped")
    assert (line["row"], line["reason"]) == (7, "bad_media")
    assert assert_verified(out).counts.skipped == {"bad_media": 1}
    assert run_command("pack", *flags, "--max-skipped", "0.5")[0] == 0


def test_index_and_ledger_say_what_the_loader_gives(tiny: TinyData, tmp_path: Path) -> None:
    run_pack(tiny_config(mixed_rows(tiny).write(), tmp_path / "out", align=8))
    index, ledger = read_index(tmp_path / "out"), read_ledger(tmp_path / "out")
    items = {item["pack"]: item for item in PackedShards(str(tmp_path / "out"), rank=0, world_size=1)}
    assert list(items) != sorted(items), "shuffled"
    for line in index:
        item = items[line["pack"]]
        assert line["tokens"] == len(item["input_ids"]) and line["target_tokens"] == int((item["labels"] >= 0).sum())
        assert line["padding_tokens"] == int((item["seq_lens_padded"] - item["seq_lens"]).sum())
        assert line["squares"] == int((item["seq_lens"] ** 2).sum())
        own = sorted((row["position"], row["tokens"]) for row in ledger if row["pack"] == line["pack"])
        assert [tokens for _, tokens in own] == item["seq_lens"].tolist()[: len(own)]
    counts = read_manifest(tmp_path / "out").counts
    assert counts.tokens == sum(line["tokens"] for line in index)
    assert counts.packed == len(ledger)


def test_what_fills_a_batch_up_is_not_trained_on(tiny: TinyData, tmp_path: Path) -> None:
    run_pack(tiny_config(mixed_rows(tiny).write(), tmp_path / "out"))
    lines = {line["pack"]: line for line in read_index(tmp_path / "out")}
    packs = PackedShards(str(tmp_path / "out"), rank=0, world_size=1, shuffle=False)
    batches = list(packs.loader(batch_size=2))
    assert any(lines[2 * at]["tokens"] != lines[2 * at + 1]["tokens"] for at in range(len(batches) - 1))
    for at, batch in enumerate(batches):
        own = [lines[number] for number in (2 * at, 2 * at + 1) if number in lines]
        assert int((batch["labels"] != -100).sum()) == sum(line["target_tokens"] for line in own)


def test_a_changed_letter_of_a_manifest_is_an_error(tiny: TinyData, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_pack(tiny_config(tiny.text("What?", "That.").write(), out))
    manifest = (out / "manifest.json").read_text()
    (out / "manifest.json").write_text(manifest.replace('"rows": 1', '"rows": 2'))
    with pytest.raises(OutputError):
        PackedShards(str(out))
    assert run_command("verify", out)[0] == 1
    (out / "manifest.json").write_text(manifest)
    assert run_command("verify", out)[0] == 0


def test_restored_pixels_are_normalized_channel_by_channel(tiny: TinyData, tmp_path: Path) -> None:
    """By the numbers of the processor's own config: (byte / 255 - mean) / deviation."""
    out, processor = tmp_path / "out", shutil.copytree(DEMO_PROCESSOR, tmp_path / "processor")
    file = processor / "preprocessor_config.json"
    mean, deviation = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"image_mean": mean, "image_std": deviation}))
    run_pack(tiny_config(mixed_rows(tiny, 2, 3).write(), out, processor=str(processor), pixels="u8"))
    means, deviations = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, deviation))
    for stored, restored in zip(PackedShards(out, pixels="uint8"), PackedShards(out, pixels="fp32"), strict=True):
        pixels = stored["pixel_values"]
        expected = ((pixels.view(len(pixels), 3, 1, -1) / 255 - means) / deviations).expand(-1, -1, 2, -1)
        assert len(pixels) and torch.allclose(restored["pixel_values"].view_as(expected), expected, atol=1e-6)
