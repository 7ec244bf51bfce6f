"""`neatpack verify`: exit code 1, and what is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Run
from support.commands import Found, parse_problems
from support.errors import numbers_in, prints_code
from support.outputs import sign

import neatpack

pytestmark = pytest.mark.net


def test_verify_a_good_output(run: Run, out: Path) -> None:
    code, printed, errors = run("verify", out)
    assert (code, errors) == (0, "")
    assert printed.startswith(f"{out}: ") and numbers_in(printed.removeprefix(str(out)))[:2] == [19, 16]
    assert printed.endswith("2 bad_row, 1 missing_media\n")
    assert numbers_in(printed.splitlines()[-1].replace("%", "")) == [84.2, 15.8, 2, 1]


def flip(path: Path, where: int) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


SHARD, LEDGER = "shards/pack-000000.tar", "ledger/00000.parquet"
DAMAGES: dict[str, tuple[Callable[[Path], Any], tuple[str, int | None, str]]] = {
    "a bit in a shard": (lambda out: flip(out / SHARD, 5000), ("pack-000000.tar", 0, "pack-changed")),
    "a shard is cut": (
        lambda out: (out / SHARD).write_bytes((out / SHARD).read_bytes()[:-512]),
        ("pack-000000.tar", None, "shard-changed"),
    ),
    "a shard is gone": (lambda out: (out / SHARD).unlink(), ("pack-000000.tar", None, "file-missing")),
    "the ledger is gone": (lambda out: (out / LEDGER).unlink(), (LEDGER, None, "file-missing")),
    "a bit in the ledger": (lambda out: flip(out / LEDGER, 100), (LEDGER, None, "file-changed")),
    "the pixel table is gone": (
        lambda out: (out / "image_table.npy").unlink(),
        ("image_table.npy", None, "file-missing"),
    ),
    "a bit in the index": (lambda out: flip(out / "index.parquet", 100), ("index.parquet", None, "file-changed")),
    "the manifest has another digest": (
        lambda out: sign(out, lambda m: m["shards"][0].update(sha256="0" * 64)),
        ("pack-000000.tar", None, "shard-changed"),
    ),
    "sources.json was edited": (
        lambda out: (out / "sources.json").write_text("{}"),
        ("sources.json", None, "file-changed"),
    ),
    "the manifest counts another number of packs": (
        lambda out: sign(out, lambda m: m["counts"].update(packs=99)),
        ("manifest", None, "counts-mismatch"),
    ),
    "the manifest knows more rows": (
        lambda out: sign(out, lambda m: m["identity"]["inputs"]["tiny"].update(rows=20)),
        ("ledger", None, "ledger-rows"),
    ),
    "the manifest has lost its shards": (
        lambda out: sign(out, lambda m: m["shards"].clear()),
        ("shards/pack-000000.tar", None, "file-unknown"),
    ),
    "the manifest asks for smaller packs": (
        lambda out: sign(out, lambda m: m["identity"]["config"].update(pack_size=100)),
        ("index.parquet", None, "index-invalid"),
    ),
}


@pytest.mark.parametrize(("damage", "problem"), DAMAGES.values(), ids=DAMAGES)
def test_verify_names_the_damage(run: Run, out: Path, damage: Callable[[Path], Any], problem: Found) -> None:
    damage(out)
    code, printed, errors = run("verify", out)
    assert code == 1
    assert problem in parse_problems(printed), printed
    assert errors.startswith(f"{out}: ") and numbers_in(errors.removeprefix(str(out))) == [len(printed.splitlines())]


def test_verify_does_not_hold_shards_against_a_broken_table(run: Run, out: Path) -> None:
    flip(out / "index.parquet", 100)
    flip(out / SHARD, 5000)
    code, printed, _ = run("verify", out)
    found = [("index.parquet", None, "file-changed"), ("shards", None, "not-checked")]
    assert (code, parse_problems(printed)) == (1, found)


def test_verify_what_is_not_finished(run: Run, out: Path, tmp_path: Path) -> None:
    (out / "manifest.json").unlink()
    code, printed, errors = run("verify", out)
    assert (code, printed) == (1, "")
    assert prints_code(errors, "output-missing") and f"{out}/manifest.json" in errors
    assert run("verify", tmp_path / "absent")[0] == 1


def test_verify_a_broken_manifest(run: Run, out: Path) -> None:
    (out / "manifest.json").write_text("{")
    code, _, errors = run("verify", out)
    assert code == 1
    assert prints_code(errors, "output-damaged") and f"{out}/manifest.json" in errors
    (out / "manifest.json").write_text('{"format": 99}')
    code, _, errors = run("verify", out)
    assert code == 1 and prints_code(errors, "output-format")
    assert {99, 8} <= set(numbers_in(errors)) and neatpack.__version__ in errors
