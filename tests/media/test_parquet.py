"""Media in cells of parquet files: the same bytes as copied, the same output, little in memory."""

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import assert_verified, files_of, picture, tiny_config
from hypothesis import given, strategies as st
from support.errors import assert_skipped, raises_media_error

from neatpack.pipeline.config import ParquetMedia
from neatpack.pipeline.ingest.holdout import held_out
from neatpack.pipeline.ingest.kinds import as_lines
from neatpack.pipeline.ingest.lines import Part, part_ranges, rows, scan, source_of
from neatpack.pipeline.ingest.media import media_reference
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.media import parquet
from neatpack.pipeline.media.open import open_media
from neatpack.pipeline.media.parquet import Cell, cell_of
from neatpack.pipeline.records import MediaRef
from neatpack.pipeline.run import run_pack


def parts(file: Path, imported: Path, how: ParquetMedia) -> tuple[Part, ...]:
    lines = as_lines(file, imported, parquet_media=how)
    ranges = part_ranges(lines)
    return source_of(lines, ranges, scan(lines, ranges)).parts


def with_bytes(value: Any) -> Any:
    """A row as it was: places exchanged for what is there."""
    if isinstance(value, dict) and ("offset" in value or "cell" in value):
        ref = media_reference(value, "image", "images")
        assert isinstance(ref, MediaRef)
        with open_media(ref) as file:
            return file.read()
    if isinstance(value, dict):
        return {key: with_bytes(item) for key, item in value.items()}
    return [with_bytes(item) for item in value] if isinstance(value, list) else value


def found(file: Path, imported: Path, how: ParquetMedia) -> list[Any]:
    return [with_bytes(json.loads(row.text)) for part in parts(file, imported, how) for row in rows(part)]


BYTES = st.none() | st.binary(min_size=1, max_size=3)
STORED = st.fixed_dictionaries({"bytes": BYTES, "path": st.none() | st.just("a.png")})
TABLE = st.lists(
    st.fixed_dictionaries(
        {
            "bare": BYTES,
            "a/b": st.none() | STORED,
            "images": st.none() | st.lists(st.none() | STORED, max_size=3),
            "turns": st.lists(st.fixed_dictionaries({"parts": st.lists(BYTES, max_size=2)}), max_size=2),
        }
    ),
    max_size=6,
)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@given(table=TABLE, group=st.integers(1, 4))
def test_what_is_read_in_place_is_what_is_copied(
    table: list[Any], group: int, kind: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cells")
    stored = pa.struct({"bytes": kind, "path": pa.string()})
    turns = pa.list_(pa.struct({"parts": pa.list_(kind)}))
    schema = pa.schema({"bare": kind, "a/b": stored, "images": pa.list_(stored), "turns": turns})
    file = folder / "a.parquet"
    pq.write_table(pa.Table.from_pylist(table, schema=schema), file, row_group_size=group)
    in_place = found(file, folder / "in-place", "in-place")
    assert in_place == found(file, folder / "copy", "copy") and len(in_place) == len(table)
    assert not list((folder / "in-place").rglob("media.bin"))


def test_a_row_says_where(tmp_path: Path) -> None:
    table = [{"images": [{"bytes": b"one"}, {"bytes": b"two"}]}, {"images": []}, {"images": [{"bytes": b"three"}]}]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "a.parquet", row_group_size=2)
    (part,) = parts(tmp_path / "a.parquet", tmp_path / "imported", "in-place")
    file = str(tmp_path / "a.parquet")
    assert [json.loads(row.text)["images"] for row in rows(part)] == [
        [{"path": file, "cell": "0/0/images/bytes"}, {"path": file, "cell": "0/1/images/bytes"}],
        [],
        [{"path": file, "cell": "1/0/images/bytes"}],
    ]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A meta JSON of 24 rows with a picture each, in row groups of 5."""
    table = [
        {"messages": [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": f"{number}."}],
         "images": [{"bytes": picture(tmp_path / "p.png", 40 + number, 50, seed=number).read_bytes(), "path": "p.png"}]}
        for number in range(24)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "a.parquet", row_group_size=5)
    meta = tmp_path / "meta.json"
    meta.write_text(json.dumps({"tiny": {"file_name": "a.parquet"}}))
    return meta


def test_the_same_output_either_way(pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outputs = {}
    for how in ("copy", "in-place"):
        with caplog.at_level(logging.INFO):
            run_pack(tiny_config(pictures, tmp_path / how, parquet_media=how, holdout=0.3))
        outputs[how] = [files_of(tmp_path / name) for name in (how, f"{how}-holdout")]
        for files in outputs[how]:
            manifest = json.loads(files.pop("manifest.json"))
            assert files.pop("sources.json") and manifest["files"].pop("sources.json")  # it says where rows came from
            files["manifest"] = manifest | {"digest": ""}
    assert outputs["copy"] == outputs["in-place"] and assert_verified(tmp_path / "in-place").counts.packed > 10
    assert [path.parent.parent.parent.parent.name for path in tmp_path.rglob("media.bin")] == ["copy"]
    (copied,) = [message for message in caplog.messages if "copied" in message]
    assert f"{next(tmp_path.rglob('media.bin')).stat().st_size} bytes of media copied out of it" in copied
    run_pack(tiny_config(pictures, tmp_path / "copy", parquet_media="in-place", holdout=0.3))  # done: nothing differs


def test_rows_are_held_out_by_their_media(tmp_path: Path) -> None:
    dataset = Dataset(name="a", format="messages")
    held = []
    for content in (b"one", b"other"):
        table = [{"messages": [{"role": "user", "content": str(row)}], "images": [content]} for row in range(40)]
        pq.write_table(pa.Table.from_pylist(table), tmp_path / "a.parquet")
        held.append(held_out(dataset, parts(tmp_path / "a.parquet", tmp_path / "i", "in-place")[0], 0.5).tolist())
        assert held[-1] == held_out(dataset, parts(tmp_path / "a.parquet", tmp_path / "c", "copy")[0], 0.5).tolist()
        parquet._kept.cache_clear()  # another file of that name
    assert held[0] != held[1]


def test_row_groups_are_kept_up_to_a_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"image": [bytes(1000)] * 12}), tmp_path / "a.parquet", row_group_size=4)
    read: list[int] = []
    real = parquet._read
    monkeypatch.setattr(
        parquet, "_read", lambda file, group, column: (read.append(group), real(file, group, column))[1]
    )

    def look(*groups: int) -> list[int]:
        read.clear()
        for group in groups:
            assert parquet.cell_bytes(file, Cell(row_group=group, number=3, column=("image",))) == bytes(1000)
        return list(read)

    file = str(tmp_path / "a.parquet")
    parquet._kept.cache_clear()
    monkeypatch.setattr(parquet, "KEPT_BYTES", 9000)  # two groups of 4,020 bytes
    assert look(0, 0, 1, 0, 1) == [0, 1]
    assert look(0, 2, 0, 1) == [2, 1]  # 2 takes the place of 1, the longest unused
    monkeypatch.setattr(parquet, "KEPT_BYTES", 10)
    assert look(2, 2, 1, 1) == [2, 1]  # the last one stays
    assert parquet._kept().num_bytes < 5000


def test_cells_that_are_not_there(tmp_path: Path) -> None:
    parquet._kept.cache_clear()
    pq.write_table(pa.table({"image": [b"a", None], "text": ["x", "y"]}), tmp_path / "a.parquet")
    for inside in ("0/1/image", "0/2/image", "0/0/other", "7/0/image", "0/0/image/bytes"):
        with raises_media_error("bad_media", tmp_path / "a.parquet"):
            open_media(MediaRef(kind="image", path=str(tmp_path / "a.parquet"), inside=inside))
    with raises_media_error("missing_media", tmp_path / "gone.parquet"):
        open_media(MediaRef(kind="image", path=str(tmp_path / "gone.parquet"), inside="0/0/image"))


def test_the_text_of_a_cell() -> None:
    cell = Cell(row_group=3, number=17, column=("a/b", "c~", "bytes"))
    assert str(cell) == "3/17/a~1b/c~0/bytes" and cell_of(str(cell)) == cell
    for text in ("", "0", "0/1", "a/1/image", "-1/0/image", "0/x/image"):
        with pytest.raises(ValueError, match="0/17/image/bytes"):
            cell_of(text)
    skip = media_reference({"path": "a.parquet", "cell": "7"}, "image", "images", "")
    assert_skipped(skip, "bad_row", "'7'", "0/17/image/bytes")
