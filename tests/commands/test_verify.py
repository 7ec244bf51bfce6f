"""`neatpack verify`: exit code 1, and what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

import neatpack
from neatpack.pipeline.manifest import signed


def test_verify_a_good_output(run: Run, out: Path) -> None:
    code, printed, errors = run("verify", out)
    assert (code, errors) == (0, "")
    assert printed.startswith(f"{out}: verified. 19 input rows accounted for, 16 samples and ")
    assert printed.endswith("\n84.2% of the samples were packed, 15.8% skipped: 2 bad_row, 1 missing_media\n")


def edit_manifest(out: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """And sign it again: an edit without that is found before anything else is looked at."""
    manifest = json.loads((out / "manifest.json").read_text())
    manifest.pop("digest")
    change(manifest)
    (out / "manifest.json").write_bytes(signed(manifest))


def flip(path: Path, where: int) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


SHARD, LEDGER = "shards/pack-000000.tar", "ledger/00000.parquet"
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit in a shard": (lambda out: flip(out / SHARD, 5000), "pack-000000.tar: pack 0: its crc32 is "),
    "a shard is cut": (
        lambda out: (out / SHARD).write_bytes((out / SHARD).read_bytes()[:-512]),
        "pack-000000.tar: ",
    ),
    "a shard is gone": (lambda out: (out / SHARD).unlink(), "pack-000000.tar: missing"),
    "the ledger is gone": (lambda out: (out / LEDGER).unlink(), "ledger/00000.parquet: missing"),
    "a bit in the ledger": (
        lambda out: flip(out / LEDGER, 100),
        "ledger/00000.parquet: sha256 differs from the manifest's",
    ),
    "the pixel table is gone": (lambda out: (out / "image_table.npy").unlink(), "image_table.npy: missing"),
    "a bit in the index": (
        lambda out: flip(out / "index.parquet", 100),
        "index.parquet: sha256 differs from the manifest's",
    ),
    "the manifest has another digest": (
        lambda out: edit_manifest(out, lambda m: m["shards"][0].update(sha256="0" * 64)),
        "pack-000000.tar: sha256 differs from the manifest's",
    ),
    "the manifest counts another number of packs": (
        lambda out: edit_manifest(out, lambda m: m["counts"].update(packs=99)),
        "manifest: counts.packs is 99, index and ledger say 2",
    ),
    "the manifest knows more rows": (
        lambda out: edit_manifest(out, lambda m: m["identity"]["inputs"]["tiny"].update(rows=20)),
        "ledger: data set tiny has 20 rows, the ledger 19",
    ),
    "the manifest has lost its shards": (
        lambda out: edit_manifest(
            out, lambda m: [m["shards"].clear(), m["index"].update(offsets=[0], crc32=[], times=[])]
        ),
        "shards/pack-000000.tar: not in the manifest; remove it",
    ),
    "the manifest asks for smaller packs": (
        lambda out: edit_manifest(out, lambda m: m["identity"]["config"].update(pack_size=100)),
        "its tokens are not between 1 and pack_size 100",
    ),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES)
def test_verify_names_the_damage(run: Run, out: Path, damage: Callable[[Path], Any], words: str) -> None:
    damage(out)
    code, printed, errors = run("verify", out)
    assert code == 1
    assert words in printed
    assert errors == f"{out}: {len(printed.splitlines())} problem{'s' * (len(printed.splitlines()) > 1)}\n"


def test_verify_does_not_hold_shards_against_a_broken_table(run: Run, out: Path) -> None:
    flip(out / "index.parquet", 100)
    flip(out / SHARD, 5000)
    assert run("verify", out)[:2] == (
        1,
        "index.parquet: sha256 differs from the manifest's\n"
        "shards: not checked, for they are held against manifest, index and ledger\n",
    )


def test_verify_what_is_not_finished(run: Run, out: Path, tmp_path: Path) -> None:
    (out / "manifest.json").unlink()
    code, printed, errors = run("verify", out)
    assert (code, printed) == (1, "")
    assert errors == f"neatpack: {out}/manifest.json: missing, so packing has not finished; run pack again\n"
    assert run("verify", tmp_path / "absent")[0] == 1


def test_verify_a_broken_manifest(run: Run, out: Path) -> None:
    (out / "manifest.json").write_text("{")
    code, _, errors = run("verify", out)
    assert code == 1
    assert errors.startswith(f"neatpack: {out}/manifest.json: not JSON: ")
    (out / "manifest.json").write_text('{"format": 99}')
    known = f"this neatpack ({neatpack.__version__}) reads formats 5 to 7; use the neatpack that made it, or pack again"
    assert run("verify", out)[::2] == (1, f"neatpack: {out}/manifest.json: format 99, {known}\n")
