"""What test_damage.py proves by internals."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import list_problems
from support.damage import Lines, edit_table, exchange, has, put
from support.errors import raises
from support.outputs import sign

from jobs.fuzz import fuzz
from jobs.fuzzing.output import CODED, OUTPUT, loaded, write_indexes
from neatpack import OutputError, PackedShards, ShardError
from neatpack.format.index import index_problems
from neatpack.format.manifest import Manifest
from neatpack.format.output import OutputReader


def edit_array(out: Path, pack: int, name: str, change: Callable[[np.ndarray], Any]) -> None:
    """Of a pack in its shard; the index and the manifest get the checksums that fit."""

    def forge(lines: Lines) -> None:
        line = lines[pack]
        (place,) = (place for place in line["members"] if place["name"] == f"{name}.npy")
        path = out / "shards" / line["shard"]
        content = bytearray(path.read_bytes())
        end = place["offset"] + place["size"]
        dtype = np.int64 if name.endswith("thw") else np.int32
        start = place["offset"] + 128
        array = np.frombuffer(content[start:end], dtype).copy()
        change(array)
        content[start:end] = array.tobytes()
        path.write_bytes(content)
        line["crc32"] = zlib.crc32(content[line["offset"] : line["offset"] + line["bytes"]])

    table = pq.read_table(out / "index.parquet")
    lines = table.to_pylist()
    forge(lines)
    write_indexes(out, pa.Table.from_pylist(lines, schema=table.schema))


def member(number: int, **cells: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[3]["members"][number].update(cells)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (put(shard="../../../outside.tar"), {"column": "shard", "pack": 3, "shard": "../../../outside.tar"}),
        (put(shard="/outside.tar"), {"column": "shard", "pack": 3, "shard": "/outside.tar"}),
        (put(shard="pack-000001.tar"), {"column": "shard", "pack": 3, "shard": "pack-000001.tar"}),
        (put(offset=1 << 40), {"column": "offset", "pack": 3, "shard": "pack-000000.tar"}),
        (put(offset=-512), {"column": "offset", "pack": 3, "shard": "pack-000000.tar"}),
        (put(bytes=1 << 60), {"column": "bytes", "pack": 3, "shard": "pack-000000.tar"}),
        (put(bytes=-1), {"column": "bytes", "pack": 3, "shard": "pack-000000.tar"}),
        (exchange("offset"), {"column": "offset", "pack": 3, "shard": "pack-000000.tar"}),
        (exchange("members"), {"pack": 3, "shard": "pack-000000.tar"}),
        (member(2, offset=0), {"column": "members.offset", "pack": 3, "shard": "pack-000000.tar"}),
        (member(2, size=1 << 62), {"column": "members.size", "pack": 3, "shard": "pack-000000.tar"}),
        (member(2, size=-1), {"column": "members.size", "pack": 3, "shard": "pack-000000.tar"}),
        (member(0, name="../x"), {"column": "members.name", "pack": 3, "shard": "pack-000000.tar"}),
        (member(0, name=None), {"column": "members.name", "pack": None}),
        (lambda lines: lines[3]["members"].pop(), {"column": "members", "pack": 3, "shard": "pack-000000.tar"}),
        (put(pack=2), {"column": "pack", "pack": 2, "shard": "pack-000000.tar"}),
        (put(pack=7), {"column": "pack", "pack": 7, "shard": "pack-000000.tar"}),
        (lambda lines: lines[-1].update(pack=lines[-1]["pack"] + 1), {"column": "pack"}),
        (lambda lines: lines.reverse(), {"column": "shard"}),
        (lambda lines: lines.insert(3, lines[3]), {"column": "shard", "shard": "pack-000000.tar"}),
        (lambda lines: lines.pop(), {"column": "shard", "shard": "none"}),
        (put(tokens=1 << 30), {"column": "tokens", "pack": 3, "shard": "pack-000000.tar"}),
        (put(num_images=-1), {"column": "num_images", "pack": 3, "shard": "pack-000000.tar"}),
        (put(visual_tokens=1 << 30), {"column": "visual_tokens", "pack": 3, "shard": "pack-000000.tar"}),
        (put(tokens=None), {"column": "tokens", "pack": None}),
    ],
)
def test_an_index_that_was_edited(out: Path, change: Callable[[Lines], Any], fields: dict[str, Any]) -> None:
    """Of a line whose every place follows from the manifest and the sizes before, none can be another."""
    (out.parent / "outside.tar").write_bytes((out / "shards/pack-000000.tar").read_bytes())
    edit_table(out, "index.parquet", change)
    first = next(index_problems(pq.read_table(out / "index.parquet"), Manifest.read(out)))
    assert {name: getattr(first, name) for name in fields} == fields, first
    assert ("index.parquet", None, "index-invalid") in list_problems(out)


def test_an_index_without_a_column(out: Path) -> None:
    pq.write_table(pq.read_table(out / "index.parquet").drop_columns(["crc32"]), out / "index.parquet")
    sign(out)
    assert list_problems(out)[0].place == "index.parquet"
    (out / "index.parquet").write_bytes(b"PAR1, but not more")
    sign(out)
    assert list_problems(out)[0].place == "index.parquet"


@pytest.mark.parametrize(
    ("name", "change", "array"),
    [
        ("seq_lens_padded", lambda array: array.fill((1 << 31) - 1), "seq_lens"),
        ("seq_lens_padded", lambda array: array.fill(-1), "seq_lens"),
        ("seq_lens", lambda array: array.fill(-1), "seq_lens"),
        ("image_grid_thw", lambda array: array.fill(1 << 40), "pixel_values"),
        ("image_grid_thw", lambda array: array.fill(-1), "pixel_values"),
    ],
)
def test_arrays_that_were_edited(out: Path, name: str, change: Callable[[np.ndarray], Any], array: str) -> None:
    """Their checksums fit, and still nobody reserves memory by them."""
    edit_array(out, 3, name, change)
    packs = PackedShards(out, pixels="uint8")
    with raises(ShardError, "shard-damaged", shard="pack-000000.tar", pack=3, array=array) as caught:
        packs.pack(3)
    assert (caught.error.shard, caught.error.pack) == ("pack-000000.tar", 3)
    assert packs.pack(2)["pack"] == 2
    assert ("pack-000000.tar", 3) in [problem[:2] for problem in list_problems(out)]


# Places


@pytest.mark.parametrize("name", ["shards/pack-000000.tar", "index.arrow", "image_table.npy", "shards"])
def test_links_out_of_the_output_are_not_followed(out: Path, tmp_path: Path, name: str) -> None:
    (out / name).rename(tmp_path / "elsewhere")
    (out / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError) as caught:
        loaded(out)
    assert has(caught.value, escapes=True)
    assert any(problem.code.startswith("file-") for problem in list_problems(out)), list_problems(out)
    (out / name).unlink()
    (out / "kept").mkdir()
    (tmp_path / "elsewhere").rename(out / "kept/there")
    (out / name).symlink_to(out / "kept/there")
    assert len(loaded(out)) > 30, "inside, links are as good as files"
    (tmp_path / "link").symlink_to(out)
    assert len(loaded(tmp_path / "link")) > 30


def test_a_pipe_is_not_waited_for(out: Path) -> None:
    (out / "shards/pack-000001.tar").unlink()
    os.mkfifo(out / "shards/pack-000001.tar")
    with raises(ShardError, "shard-damaged", shard="pack-000001.tar", got=None):
        loaded(out)
    assert ("pack-000001.tar", None, "file-missing") in list_problems(out)


# All of it, drawn


def test_fuzz(tmp_path: Path) -> None:
    """A pass over all kinds of damage; `python jobs/fuzz.py` has more."""
    sound = OUTPUT.make(tmp_path)
    counts, failures = fuzz(OUTPUT, sound, tmp_path, 0, iter(range(len(OUTPUT.mutators))))
    assert not failures, failures[0]
    assert {name for name, _, _ in counts} >= {"shard: flip", "manifest: flip", "forged index", "forged pack"}
    assert counts["shard: truncate", "loader", "found"] == counts["ledger: flip", "verify", "found"] == 1


def test_fuzz_of_pictures_that_are_decoded_at_load(tmp_path: Path) -> None:
    sound, forged = CODED.make(tmp_path), CODED.only("forged pack")
    counts, failures = fuzz(forged, sound, tmp_path, 0, iter(range(6)))
    assert not failures, failures[0]
    assert sum(counts.values()) == 12, "each by the loader and by verify"


def test_the_fuzzer_tells_what_a_reader_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = OUTPUT.make(tmp_path)
    monkeypatch.setattr(OutputReader, "__init__", unchecked(OutputReader.__init__))
    _, failures = fuzz(OUTPUT.only("shard: flip"), sound, tmp_path, 0, iter(range(4)))
    assert "WRONG PACKS" in failures[0], failures


def unchecked(init: Callable[..., None]) -> Callable[..., None]:
    def without_checks(self: OutputReader, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options | {"check": "none"})

    return without_checks
