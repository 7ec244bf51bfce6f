"""`neatpack export hub-card`: the card is true, tells nothing of the machine, and makes `load_dataset(OUT)` work."""

import getpass
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from places import ROOT
from support.commands import main
from support.data import TinyData, mixed_rows
from support.errors import prints_code
from support.outputs import files_of, read_manifest, read_packs
from support.packed import tiny_config

from neatpack import run_pack

pytestmark = pytest.mark.net


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    data = mixed_rows(TinyData(folder / "data"), num_text=40, num_images=36)
    run_pack(tiny_config(data.write(ratio=1.5), folder / "packed", pack_size=384))
    before = files_of(folder / "packed")
    assert main(["export", "hub-card", str(folder / "packed")]) == 0
    after = files_of(folder / "packed")
    assert after.keys() - before.keys() == {"README.md"}
    assert {name: after[name] for name in before} == before
    return folder / "packed"


def card(out: Path) -> str:
    return (out / "README.md").read_text(encoding="utf-8")


READ = """
import datasets, numpy
for streaming in (False, True):
    for pack in datasets.load_dataset("packed", split="train", streaming=streaming):
        ids = numpy.asarray(pack["input_ids.npy"], dtype="<i4")
        pixels = numpy.asarray(pack["pixel_values.npy"])
        print(streaming, pack["__key__"], pack["json"]["num_tokens"], ids.sum(), pixels.sum())
"""


GUESS = """
import datasets
print(list(next(iter(datasets.load_dataset("without/packed", split="train", streaming=True)))))
"""


def examples(out: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", card(out), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def printed(packed: Path) -> list[str]:
    """By READ, the examples of the card, and GUESS. From outside: no test of ours is imported, and nothing is asked of
    the hub; in one process, because `datasets` takes seconds to import."""
    folder = packed.parent
    shutil.copytree(packed, folder / "without" / "packed", ignore=shutil.ignore_patterns("README.md"))
    scripts = [READ, "\n".join(examples(packed)), GUESS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(
        [sys.executable, "-c", f"for script in {scripts!r}:\n    exec(script, {{}})\n    print('---')"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split("---\n")


def test_load_dataset_takes_the_folder(packed, printed):
    """Whole and streamed, every pack with the numbers that it has."""
    expected = [
        f"{pack.number:09d} {len(pack.arrays['input_ids'])} {pack.arrays['input_ids'].sum()} "
        f"{pack.arrays['pixel_values'].sum(dtype=np.int64)}"
        for pack in read_packs(packed)
    ]
    lines = printed[0].splitlines()
    assert len(expected) > 20
    for streaming in ("False", "True"):
        assert [line.removeprefix(f"{streaming} ") for line in lines if line.startswith(streaming)] == expected


def test_without_a_card_load_dataset_does_not(printed):
    """What the card is for: `datasets` guesses by what most files are, and takes the manifest for data."""
    assert printed[2].startswith("['format', 'neatpack', 'fingerprint', ")


def test_the_examples_of_the_card_run(packed, printed):
    assert len(examples(packed)) == 3
    said = printed[1].splitlines()
    first = next(iter(read_packs(packed)))
    length, number = len(first.arrays["input_ids"]), len(first.documents)
    assert said == [f"000000000 {length} {number}", f"000000000 ({length},) {number}"]


def test_the_header_is_the_hubs(packed):
    _, header, _ = card(packed).split("---\n", 2)
    assert yaml.safe_load(header) == {
        "license": "unknown",
        "tags": ["neatpack", "sequence-packing", "webdataset"],
        "size_categories": ["n<1K"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "shards/*.tar"}]}],
    }


def test_the_figures_are_those_of_the_output(packed):
    manifest, text = read_manifest(packed), card(packed)
    counts = manifest.counts
    skipped = counts.samples - counts.packed
    assert f"| packs | {counts.packs} of at most 384 tokens, " in text
    assert f"| samples | {counts.samples} of 76 rows: {counts.packed} packed, {skipped} skipped (" in text
    assert "| media | " in text and " images, 0 videos, 0 sounds |" in text
    assert "| model family | qwen2\\_vl |" in text
    assert f"| processor | processor (fingerprint {manifest.identity.processor}) |" in text
    assert f"| made by | neatpack {manifest.neatpack}, transformers " in text
    assert f"| tiny | 76 | {counts.packed} | " in text and " | 100.0% | each row 1.5 times |" in text


def test_it_tells_nothing_of_the_machine(packed):
    text = card(packed)
    for word in (str(packed.parent), str(ROOT), socket.gethostname(), f"/{getpass.getuser()}", os.path.expanduser("~")):
        assert word not in text, word
    assert not re.search(r"(?<![\w<])/(home|tmp|data|mnt|root|usr|var)\b", text)


def test_verify_and_a_second_run_do_not_mind_it(packed):
    assert main(["verify", str(packed)]) == 0
    config = tiny_config(packed.parent / "data" / "meta.json", packed, pack_size=384)
    before = card(packed)
    assert run_pack(config).already_done
    assert card(packed) == before


def test_it_is_written_over_only_if_nobody_edited_it(packed, capsys):
    before = card(packed)
    assert main(["export", "hub-card", str(packed)]) == 0
    assert card(packed) == before
    edited = before.replace("license: unknown", "license: cc-by-4.0")
    (packed / "README.md").write_text(edited)
    assert main(["export", "hub-card", str(packed)]) == 2
    told = capsys.readouterr().err
    assert prints_code(told, "file-exists") and f"{packed}/README.md" in told
    assert card(packed) == edited
    assert main(["export", "hub-card", str(packed), "--overwrite"]) == 0
    assert card(packed) == before


def test_a_card_stays_where_its_output_is_overwritten(tmp_path):
    """It may be a person's work; its figures are those of before, until it is written again."""
    meta = mixed_rows(TinyData(tmp_path / "data"), num_text=8, num_images=2).write()
    run_pack(tiny_config(meta, tmp_path / "out"))
    assert main(["export", "hub-card", str(tmp_path / "out")]) == 0
    before = card(tmp_path / "out")
    run_pack(tiny_config(meta, tmp_path / "out", pack_size=256, overwrite=True))
    assert card(tmp_path / "out") == before
    assert main(["export", "hub-card", str(tmp_path / "out")]) == 0
    assert " of at most 256 tokens, " in card(tmp_path / "out")


def test_the_last_line_is_the_digest_of_the_others(packed):
    text, mark = card(packed).rsplit("\n<!-- neatpack export hub-card: ", 1)
    assert mark == hashlib.sha256(text.encode()).hexdigest() + " -->\n"


def test_a_holdout_is_the_split_validation(tmp_path):
    data = mixed_rows(TinyData(tmp_path / "data"), num_text=40, num_images=4)
    run_pack(tiny_config(data.write(), tmp_path / "packed", holdout=0.2))
    assert main(["export", "hub-card", str(tmp_path / "packed-holdout")]) == 0
    assert "  - split: validation\n" in card(tmp_path / "packed-holdout")
    assert 'split="validation"' in card(tmp_path / "packed-holdout")


def test_names_cannot_break_the_table(tmp_path):
    data = mixed_rows(TinyData(tmp_path / "data"), num_text=3, num_images=1)
    meta = data.write()
    meta.write_text(meta.read_text().replace('"tiny"', '"a | b <script>"'))
    run_pack(tiny_config(meta, tmp_path / "out"))
    (tmp_path / "out" / "sources.json").unlink()  # an output may be given away without it
    assert main(["export", "hub-card", str(tmp_path / "out")]) == 0
    assert "| a \\| b \\<script> | 4 |" in card(tmp_path / "out")
    assert "# Packs for the family qwen2_vl\n" in card(tmp_path / "out")


def test_damaged_and_unfinished_outputs_are_refused(packed, tmp_path, capsys):
    copy = tmp_path / "copy"
    (copy / "stats").mkdir(parents=True)
    for name in ("manifest.json", "index.parquet"):
        (copy / name).write_bytes((packed / name).read_bytes())
    (copy / "stats" / "datasets.parquet").write_bytes(b"PAR1")
    assert main(["export", "hub-card", str(copy)]) == 2
    told = capsys.readouterr().err
    assert prints_code(told, "output-damaged") and "stats/datasets.parquet" in told
    (copy / "manifest.json").unlink()
    assert main(["export", "hub-card", str(copy)]) == 2
    assert prints_code(capsys.readouterr().err, "output-missing")
    assert not (copy / "README.md").exists()


def test_overwrite_is_for_cards(packed, capsys):
    assert main(["export", "energon", str(packed), "--overwrite"]) == 2
    told = capsys.readouterr().err
    assert prints_code(told, "option-conflict") and "--overwrite" in told
