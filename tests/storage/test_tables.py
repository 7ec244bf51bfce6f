"""Tables on disk: what is read is what was written last."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from neatpack.storage.tables import open_arrow, read_arrow, write_arrow, write_parquet


def test_arrow_files_have_one_batch(tmp_path: Path) -> None:
    """Random access by row needs it: a table of two chunks is written as one."""
    table = pa.concat_tables([pa.table({"row": [1, 2]}), pa.table({"row": [3]})])
    write_arrow(tmp_path / "a.arrow", table)
    back = read_arrow(tmp_path / "a.arrow")
    assert back.to_pylist() == [{"row": 1}, {"row": 2}, {"row": 3}]
    assert back["row"].num_chunks == 1


def test_an_empty_table(tmp_path: Path) -> None:
    write_arrow(tmp_path / "a.arrow", pa.table({"row": pa.array([], pa.int64())}))
    assert read_arrow(tmp_path / "a.arrow").num_rows == 0


def test_a_file_is_opened_once_and_anew_when_it_was_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write_arrow(path, pa.table({"row": [1]}))
    first = open_arrow(path)
    assert open_arrow(path) is first
    write_arrow(path, pa.table({"row": [2]}))
    assert open_arrow(path)["row"].to_pylist() == [2]


def test_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", pa.table({"row": [1, 2]}))
    assert pq.read_table(tmp_path / "a.parquet")["row"].to_pylist() == [1, 2]
