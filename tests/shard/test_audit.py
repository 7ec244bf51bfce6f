"""A ledger is audited by pieces: nobody holds it, and whatever is wrong with it is still named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from helpers import TinyData, mixed_rows, tiny_config

from jobs.fuzzing.output import sign
from neatpack.format.manifest import Manifest
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.runtime.engine import Engine
from neatpack.pipeline.shard import audit, ledger, tables as tables_module, verify
from neatpack.pipeline.shard.audit import document_hashes, sums_of
from neatpack.pipeline.shard.problems import Problem
from neatpack.pipeline.shard.tables import Block, ledger_names, row_blocks
from neatpack.pipeline.shard.verify import verify_output
from neatpack.storage import tables as runtime_tables

GROUP = 4  # lines of a row group here


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output of partitions, with rows that are repeated, sampled out and broken, and small row groups."""
    folder = tmp_path_factory.mktemp("audit")
    rows = mixed_rows(TinyData(folder / "data"), 30, 12).row([], note="nothing is said").rows
    names = []
    for number in range(6):
        names.append(f"{number}.jsonl")
        lines = rows[number * len(rows) // 6 : (number + 1) * len(rows) // 6]
        (folder / "data" / names[-1]).write_text("".join(json.dumps(line) + "\n" for line in lines))
    meta = {
        "twice": {"file_name": names, "media_dir": ".", "sample_ratio": 1.5},
        "some": {"file_name": names[:3], "sample_ratio": 0.5},
    }
    (folder / "data" / "meta.json").write_text(json.dumps(meta))
    config = tiny_config(
        folder / "data/meta.json", folder / "out", pack_size=256, partition_samples=25, group_size=2, max_skipped=1.0
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ledger, "ROW_GROUP", GROUP)
        run_pack(config)
    return folder / "out"


@pytest.fixture
def out(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tables_module, "BLOCK", 10)
    shutil.copytree(made, tmp_path / "out", ignore=shutil.ignore_patterns("work"))
    return tmp_path / "out"


def verified(out: Path) -> list[Problem]:
    return verify_output(out, Manifest.read(out), Engine({}))


def files(out: Path) -> list[str]:
    return ledger_names(Manifest.read(out))["twice"]


def test_a_good_ledger_is_read_in_pieces(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the driver not at all, and by shards only where they are not what it says."""
    assert len(files(out)) > 3 and len(Manifest.read(out).shards) > 3
    pieces: list[int] = []
    tables: list[str] = []
    read_group, read_table = pq.ParquetFile.read_row_group, runtime_tables.read_parquet

    def read_row_group(file: pq.ParquetFile, *args: Any, **options: Any) -> pa.Table:
        found = read_group(file, *args, **options)
        pieces.append(len(found))
        return found

    def read_parquet(path: Path, **options: Any) -> pa.Table:
        tables.append(path.parent.name)
        return read_table(path, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
    monkeypatch.setattr(verify, "read_parquet", read_parquet)
    blocks: list[int] = []
    audit_rows = audit.audit_rows

    def counted_rows(*args: Any) -> audit.Rows:
        blocks.append((found := audit_rows(*args)).lines)
        return found

    monkeypatch.setattr(verify, "audit_rows", counted_rows)
    monkeypatch.setattr(verify, "_ledger_of_packs", lambda *args: pytest.fail("the sums told that all is well"))
    assert verified(out) == []
    assert "ledger" not in tables
    num_lines = Manifest.read(out).counts.samples
    assert num_lines > 70 and max(pieces) == GROUP
    assert sum(blocks) == num_lines and max(blocks) < 20, "some rows come twice"


def _edited(change: Callable[[pa.Table], pa.Table], at: int = 0) -> Callable[[Path], None]:
    def edit(out: Path) -> None:
        path = out / files(out)[at]
        pq.write_table(change(pq.read_table(path)), path, row_group_size=GROUP)

    return edit


def _put(column: str, value: Callable[[int], Any], status: str = "packed") -> Callable[[pa.Table], pa.Table]:
    """Another value in the first line of a status."""

    def change(lines: pa.Table) -> pa.Table:
        values = lines[column].to_pylist()
        at = lines["status"].to_pylist().index(status)
        values[at] = value(values[at])
        return lines.set_column(lines.column_names.index(column), column, pa.array(values, lines[column].type))

    return change


def _swapped(lines: pa.Table) -> pa.Table:
    """Two documents of the same data set change places; whatever is counted stays the same."""
    packed = np.flatnonzero(np.array(lines["status"].to_pylist()) == "packed")
    one, other = packed[0], packed[-1]
    for column in ("pack", "position"):
        values = lines[column].to_pylist()
        values[one], values[other] = values[other], values[one]
        lines = lines.set_column(lines.column_names.index(column), column, pa.array(values, lines[column].type))
    return lines


def _without_a_row(out: Path) -> None:
    """No file has a line of row 3."""
    for name in files(out):
        lines = pq.read_table(out / name)
        pq.write_table(lines.filter(pc.not_equal(lines["row"], 3)), out / name, row_group_size=GROUP)


def _moved_to_another_file(out: Path) -> None:
    """A line is in two files."""
    first, second = (out / name for name in files(out)[:2])
    pq.write_table(pa.concat_tables([pq.read_table(second), pq.read_table(first).slice(1, 1)]), second)


WRONGS: dict[str, tuple[Callable[[Path], None], str, dict[str, Any]]] = {
    "a row is missing": (_without_a_row, "ledger-rows", {"dataset": "twice", "expected": 43}),
    "a row is there twice": (_edited(lambda t: pa.concat_tables([t, t.slice(3, 1)])), "ledger-rows", {"duplicates": 1}),
    "a row is there twice, in two files": (_moved_to_another_file, "ledger-rows", {"duplicates": 1}),
    "a row that is none": (_edited(_put("row", lambda row: 999)), "ledger-rows", {"dataset": "twice", "expected": 43}),
    "a row before the first": (
        _edited(_put("row", lambda row: -1)),
        "ledger-rows",
        {"dataset": "twice", "expected": 43},
    ),
    "another repetition": (_edited(_put("repeat", lambda repeat: 7)), "pack-ledger", {}),
    "another pack": (_edited(_put("pack", lambda pack: pack + 1)), "pack-ledger", {}),
    "no such pack": (_edited(_put("pack", lambda pack: 1 << 20)), "pack-ledger", {}),
    "another position": (_edited(_put("position", lambda at: at + 99)), "pack-ledger", {"shard": "pack-000000.tar"}),
    "other tokens": (_edited(_put("tokens", lambda tokens: tokens + 1)), "pack-ledger", {}),
    "other visual tokens": (_edited(_put("visual_tokens", lambda n: n + 4)), "pack-ledger", {}),
    "two rows in each other's place": (_edited(_swapped), "pack-ledger", {}),
    "of another data set": (_edited(_put("dataset", lambda name: "some")), "ledger-invalid", {}),
    "an unknown status": (_edited(_put("status", lambda status: "lost")), "ledger-invalid", {}),
    "an unknown reason": (
        _edited(_put("reason", lambda reason: "tired", "skipped"), at=-2),
        "ledger-invalid",
        {},
    ),
    "skipped, with a pack": (
        _edited(_put("pack", lambda pack: 0, "skipped"), at=-2),
        "ledger-invalid",
        {},
    ),
    "an empty cell": (_edited(_put("tokens", lambda tokens: None)), "ledger-invalid", {}),
    "another column": (_edited(lambda t: t.drop_columns(["id"])), "ledger-invalid", {}),
}


@pytest.mark.parametrize(("break_it", "code", "fields"), WRONGS.values(), ids=WRONGS)
def test_what_is_wrong_is_named(out: Path, break_it: Callable[[Path], None], code: str, fields: dict[str, Any]) -> None:
    break_it(out)
    sign(out)
    found = verified(out)
    assert any(problem.code == code and fields.items() <= problem.fields.items() for problem in found), found


def test_the_last_position_is_another(out: Path) -> None:
    """The order is the same, the numbers are not."""
    names = [name for name in Manifest.read(out).files if name.startswith("ledger/")]
    places = [
        (line["pack"], line["position"], name, at)
        for name in names
        for at, line in enumerate(pq.read_table(out / name).to_pylist())
    ]
    pack, _, name, at = max(places)
    lines = pq.read_table(out / name)
    position = lines["position"].to_pylist()
    position[at] += 1
    lines = lines.set_column(lines.column_names.index("position"), "position", pa.array(position, pa.int32()))
    pq.write_table(lines, out / name)
    sign(out)
    assert [(problem.code, problem.fields["pack"]) for problem in verified(out)] == [("pack-ledger", pack)]


def test_two_rows_at_one_position(out: Path) -> None:
    """Of different packs of one shard, so that each row is there once."""
    path = out / files(out)[0]
    lines = pq.read_table(path)
    packs = lines["pack"].to_numpy()
    pack = next(int(pack) for pack in packs if pack >= 0 and (packs == pack).sum() > 1)
    position = pc.if_else(pc.equal(lines["pack"], pack), pa.scalar(0, pa.int32()), lines["position"])
    pq.write_table(lines.set_column(lines.column_names.index("position"), "position", position), path)
    sign(out)
    assert [(problem.code, problem.fields["pack"]) for problem in verified(out)] == [("pack-ledger", pack)]


def test_sums_do_not_depend_on_the_order() -> None:
    lines = np.random.default_rng(0).integers(0, 1 << 40, (50, 7))
    assert sums_of(lines.tolist()) == sums_of(lines[::-1].tolist()) != sums_of(lines[1:].tolist())
    assert sums_of([]) == (0, 0)
    one, other = sums_of(lines[:20].tolist()), sums_of(lines[20:].tolist())
    assert tuple((a + b) % 2**64 for a, b in zip(one, other, strict=True)) == sums_of(lines.tolist())


def test_hashes_tell_columns_and_numbers_apart() -> None:
    """Small numbers, as most are: no two lines have a hash in common, in either half."""
    grid = np.stack(np.meshgrid(*[np.arange(-1, 4)] * 7, indexing="ij"), axis=-1).reshape(-1, 7)
    hashes = document_hashes(*grid.T)
    assert len(np.unique(hashes[:, 0])) == len(np.unique(hashes[:, 1])) == len(grid) == 5**7


def test_blocks_have_all_rows() -> None:
    assert row_blocks(0, 0) == [Block(0, 0, True)]
    assert row_blocks(5, 7) == [Block(0, 5, True)]
    blocks = row_blocks(10_000_000, 25_000_000)
    assert blocks[0].first == 0 and blocks[-1].end == 10_000_000 and len(blocks) == 6
    assert all(one.end == other.first for one, other in zip(blocks, blocks[1:], strict=False))
    assert [block.is_last for block in blocks] == [False] * 5 + [True]
