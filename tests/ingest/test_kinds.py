"""Kinds of data file: the same rows in the same order from each, media by their bytes, broken files refused."""

import csv
import datetime
import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from support.errors import raises

from neatpack.pipeline.config import UserError
from neatpack.pipeline.ingest import arrow as arrow_module
from neatpack.pipeline.ingest.files import data_files
from neatpack.pipeline.ingest.holdout import held_out
from neatpack.pipeline.ingest.kinds import as_lines
from neatpack.pipeline.ingest.lines import Lines, part_ranges, rows, scan, source_of
from neatpack.pipeline.ingest.media import media_reference
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.media.open import open_media
from neatpack.pipeline.records import MediaRef
from neatpack.storage.location import Location


def values(lines: Lines) -> list[Any]:
    """Every row, parsed."""
    ranges = part_ranges(lines)
    return [json.loads(row.text) for part in source_of(lines, ranges, scan(lines, ranges)).parts for row in rows(part)]


def bytes_at(entry: Any) -> bytes:
    ref = media_reference(entry, "image", "images")
    assert isinstance(ref, MediaRef)
    with open_media(ref) as file:
        return file.read()


# ---------------------------------------------------------------- one list of rows, every kind of file


def stream(table: pa.Table, path: Path, batch: int = 2) -> Path:
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


def arrow(table: pa.Table, path: Path, batch: int = 2) -> Path:
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


def tar(members: dict[str, bytes], path: Path) -> Path:
    with tarfile.open(path, "w") as out:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def table_text(given: list[dict[str, str]], delimiter: str) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(given[0])
    writer.writerows(row.values() for row in given)
    return text.getvalue().encode()


def json_lines(given: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in given).encode()


def zst(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


def raw(encode: Callable[[list[Any]], bytes]) -> Callable[[list[Any], Path], Path]:
    def write(given: list[Any], path: Path) -> Path:
        path.write_bytes(encode(given))
        return path

    return write


def saved(given: list[Any], path: Path) -> Path:
    datasets.Dataset.from_list(given).save_to_disk(path, num_shards=min(2, len(given)))
    return path


WRITERS: dict[str, Callable[[list[Any], Path], Path]] = {
    "a.jsonl": raw(json_lines),
    "a.json": raw(lambda given: json.dumps(given, indent=1).encode()),
    "lines.json": raw(json_lines),
    "a.jsonl.gz": raw(lambda given: gzip.compress(json_lines(given))),
    "a.jsonl.zst": raw(lambda given: zst(json_lines(given))),
    "a.json.gz": raw(lambda given: gzip.compress(json.dumps(given).encode())),
    "a.json.zst": raw(lambda given: zst(json.dumps(given).encode())),
    "lines.json.gz": raw(lambda given: gzip.compress(json_lines(given))),
    "a.csv": raw(lambda given: table_text(given, ",")),
    "a.tsv": raw(lambda given: table_text(given, "\t")),
    "a.csv.gz": raw(lambda given: gzip.compress(table_text(given, ","))),
    "a.parquet": lambda given, path: (pq.write_table(pa.Table.from_pylist(given), path, row_group_size=2), path)[1],
    "a.arrow": lambda given, path: arrow(pa.Table.from_pylist(given), path),
    "stream.arrow": lambda given, path: stream(pa.Table.from_pylist(given), path),
    "a.feather": lambda given, path: (pa.feather.write_feather(pa.Table.from_pylist(given), path), path)[1],
    "saved": saved,
    "a.tar": lambda given, path: tar(
        {f"{number:03d}.json": json.dumps(row).encode() for number, row in enumerate(given)}, path
    ),
}

CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6)
FLAT = st.lists(st.tuples(CELL, CELL), min_size=1, max_size=5).map(
    lambda cells: [{"one": one, "two": two} for one, two in cells]
)


@pytest.mark.parametrize("name", WRITERS)
@given(given=FLAT)
@settings(max_examples=25)
def test_every_kind_gives_the_same_rows_once_and_in_order(
    name: str, given: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = WRITERS[name](given, folder / name)
    files = data_files(Location.parse(folder / "meta.json"), "here", path.name, None)
    found = [row for file in files for row in values(as_lines(Path(file), folder / "imported"))]
    for row in found:
        row.pop("__key__", None)
    assert found == given


DEEP = st.lists(
    st.fixed_dictionaries(
        {
            "turns": st.lists(
                st.fixed_dictionaries({"role": st.text(max_size=3), "n": st.integers(-5, 5)}), max_size=3
            ),
            "x": st.one_of(st.none(), st.floats(-1, 1)),
            "media": st.lists(st.one_of(st.none(), st.binary(min_size=1, max_size=5)), max_size=3),
            "one": st.one_of(
                st.none(), st.fixed_dictionaries({"bytes": st.binary(min_size=1, max_size=4), "path": st.just("a")})
            ),
        }
    ),
    min_size=1,
    max_size=6,
)
SCHEMA = pa.schema(
    [
        ("turns", pa.list_(pa.struct([("role", pa.string()), ("n", pa.int64())]))),
        ("x", pa.float64()),
        ("media", pa.large_list(pa.large_binary())),
        ("one", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
    ]
)


@given(given=DEEP, batch=st.integers(1, 6), piece=st.integers(1, 3), write=st.sampled_from([arrow, stream]))
@settings(max_examples=100)
def test_nested_rows_of_arrow_with_media_in_place(
    given: list[Any], batch: int, piece: int, write: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    file = write(pa.Table.from_pylist(given, schema=SCHEMA), folder / "a.arrow", batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_module, "ROWS", piece)
        found = values(as_lines(file, folder / "imported"))
    assert len(found) == len(given)
    for row, expected in zip(found, given, strict=True):
        assert (row["turns"], row["x"]) == (expected["turns"], expected["x"])
        assert [entry and bytes_at(entry) for entry in row["media"]] == expected["media"]
        assert (row["one"] and bytes_at(row["one"])) == (expected["one"] and expected["one"]["bytes"])
        assert all(entry["path"] == str(file) for entry in row["media"] if entry)
    assert not list((folder / "imported").rglob("media.bin"))


# ---------------------------------------------------------------- Arrow

ROWS = [
    {"text": "a", "image": {"bytes": b"one", "path": "1.png"}},
    {"text": "b", "image": {"bytes": b"two2", "path": None}},
]


def test_media_in_a_saved_data_set_are_read_in_place(tmp_path: Path) -> None:
    given = datasets.Dataset.from_list(ROWS).cast_column("image", datasets.Image())
    given.save_to_disk(tmp_path / "saved")
    (file,) = data_files(Location.parse(tmp_path / "meta.json"), "here", "saved", None)
    found = values(as_lines(Path(file), tmp_path / "imported"))
    assert [row["text"] for row in found] == ["a", "b"]
    assert [row["image"].keys() for row in found] == [{"path", "offset", "length"}] * 2
    assert [bytes_at(row["image"]) for row in found] == [b"one", b"two2"]
    assert {row["image"]["path"] for row in found} == {file}


def test_a_compressed_arrow_file_has_its_media_copied(tmp_path: Path) -> None:
    rows_ = [{"image": bytes([number]) * 5000} for number in range(3)]
    pa.feather.write_feather(pa.Table.from_pylist(rows_), tmp_path / "a.feather", compression="zstd")
    found = values(as_lines(tmp_path / "a.feather", tmp_path / "imported"))
    assert [bytes_at(row["image"]) for row in found] == [row["image"] for row in rows_]
    assert {Path(row["image"]["path"]).name for row in found} == {"media.bin"}


def test_a_file_that_moved_is_rewritten_with_its_new_place(tmp_path: Path) -> None:
    """Its digest, and so the identity of an output, stays."""
    file = arrow(pa.Table.from_pylist(ROWS), tmp_path / "a.arrow")
    before = as_lines(file, tmp_path / "imported")
    after = as_lines(file.rename(tmp_path / "b.arrow"), tmp_path / "imported")
    assert before.rewritten_from == after.rewritten_from
    assert [bytes_at(row["image"]) for row in values(after)] == [b"one", b"two2"]


def test_dates_become_text(tmp_path: Path) -> None:
    table = pa.table({"day": [datetime.date(2024, 2, 29)], "at": [datetime.datetime(2024, 2, 29, 12)]})
    for file in (arrow(table, tmp_path / "a.arrow"), stream(table, tmp_path / "b.arrow")):
        assert values(as_lines(file, tmp_path / "imported")) == [{"day": "2024-02-29", "at": "2024-02-29 12:00:00"}]


@pytest.mark.parametrize("write", [arrow, stream])
def test_every_cut_of_an_arrow_file_is_refused(tmp_path: Path, write: Any) -> None:
    """Also one between two batches, which Arrow would take for the end of a stream."""
    whole = write(pa.Table.from_pylist(ROWS), tmp_path / "whole.arrow", 1).read_bytes()
    for length in range(0, len(whole), 8):
        (tmp_path / "cut.arrow").write_bytes(whole[:length])
        with raises(UserError, "data-unreadable", file=str(tmp_path / "cut.arrow")):
            as_lines(tmp_path / "cut.arrow", tmp_path / "imported")


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    """Arrow does not look at it when it writes."""
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    table = pa.table({"a": text})
    pq.write_table(table, tmp_path / "a.parquet")
    for file in (tmp_path / "a.parquet", arrow(table, tmp_path / "a.arrow"), stream(table, tmp_path / "b.arrow")):
        with raises(UserError, "data-unreadable", file=str(file)):
            as_lines(file, tmp_path / "imported")


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    file = arrow(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "a.arrow")
    with raises(UserError, "data-unreadable", file=str(file), columns=["a", "a"]):
        as_lines(file, tmp_path / "imported")


# ---------------------------------------------------------------- CSV


def test_tables_literally(tmp_path: Path) -> None:
    text = '\ufeffid,messages,note\r\n1,"[{""role"": ""user""}]",\r\n\r\n2,"a\nb",x\r\n3\r\n4,a,b,c\r\n'
    (tmp_path / "a.csv").write_bytes(text.encode())
    assert values(as_lines(tmp_path / "a.csv", tmp_path / "imported")) == [
        {"id": "1", "messages": '[{"role": "user"}]'},
        {"id": "2", "messages": "a\nb", "note": "x"},
        {"id": "3"},
        {"__problem__": "line 7: 4 cells where the first line names 3 columns"},
    ]


def test_a_table_with_the_index_of_pandas(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",prompt\n0,a\n1,b\n")
    rows = values(as_lines(tmp_path / "a.csv", tmp_path / "imported"))
    assert rows == [{"": "0", "prompt": "a"}, {"": "1", "prompt": "b"}]


def test_an_empty_table(tmp_path: Path) -> None:
    for content in (b"", b"a,b\n", b"\xef\xbb\xbf"):
        (tmp_path / "a.csv").write_bytes(content)
        assert values(as_lines(tmp_path / "a.csv", tmp_path / "imported")) == []


def test_a_long_cell(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n" + "x" * 200_000 + "\n")
    assert values(as_lines(tmp_path / "a.csv", tmp_path / "imported")) == [{"a": "x" * 200_000}]


BROKEN_TABLES: dict[str, tuple[bytes, str, dict[str, Any]]] = {
    "a quote that stays open": (b'a,b\n1,"2\n3,4\n', "data-unreadable", {"line": 3}),
    "text behind a quote": (b'a\n"1"2\n', "data-unreadable", {"line": 2}),
    "a name twice": (b"a,a\n1,2\n", "data-unreadable", {"line": 1, "columns": ["a", "a"]}),
    "a blank line first": (b"\na\n1\n", "data-unreadable", {"line": 1, "columns": []}),
    "no name": (b"a,\n1,2\n", "data-unreadable", {"line": 1, "columns": ["a", ""]}),
    "latin-1": ("a\né\n".encode("latin-1"), "data-unreadable", {}),
    "UTF-16": ("a\n1\n".encode("utf-16"), "data-format", {"kind": "utf-16"}),
    "semicolons": (b"a;b\n1;2\n", "data-unreadable", {"line": 1, "columns": ["a;b"]}),
    "tabs": (b"a\tb\n1\t2\n", "data-unreadable", {"line": 1, "columns": ["a\tb"]}),
}


@pytest.mark.parametrize(("content", "code", "fields"), BROKEN_TABLES.values(), ids=BROKEN_TABLES)
def test_broken_tables(tmp_path: Path, content: bytes, code: str, fields: dict[str, Any]) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with raises(UserError, code, file=str(tmp_path / "a.csv"), **fields):
        as_lines(tmp_path / "a.csv", tmp_path / "imported")
    assert [path for path in (tmp_path / "imported").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (json.dumps({"a": 1}, indent=1).encode(), "object"),
        (b'\xef\xbb\xbf{\r\n  "data": []\r\n}', "object"),
        ('{"a": 1}\n'.encode("utf-16"), "utf-16"),
    ],
    ids=["indented", "marked", "UTF-16"],
)
def test_texts_whose_every_line_would_be_a_broken_row(tmp_path: Path, name: str, content: bytes, kind: str) -> None:
    (tmp_path / name).write_bytes(content)
    with raises(UserError, "data-format", file=str(tmp_path / name), kind=kind):
        as_lines(tmp_path / name, tmp_path / "imported")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x1f\x8b\x08....", ".gz"),
        (b"PAR1....", ".parquet"),
        (b'[\n {"a": 1}]', "array"),
    ],
    ids=["gzip", "parquet", "array"],
)
def test_names_that_are_another_kinds(tmp_path: Path, content: bytes, kind: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with raises(UserError, "data-format", file=str(tmp_path / "a.jsonl"), kind=kind):
        as_lines(tmp_path / "a.jsonl", tmp_path / "imported")


# ---------------------------------------------------------------- holdout


def test_embedded_media_are_held_out_by_their_bytes_whatever_the_kind(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "Yes."}]
    pictures = [bytes([number]) * number for number in range(1, 41)]
    given = [{"messages": turns, "images": [{"bytes": content}]} for content in pictures]
    table = pa.Table.from_pylist(given)
    pq.write_table(table, tmp_path / "a.parquet")
    members = {}
    for number, content in enumerate(pictures):
        members |= {
            f"{number}.json": json.dumps({"messages": turns}).encode(),
            f"{number}.png": content,
        }
    files = [
        tmp_path / "a.parquet",
        arrow(table, tmp_path / "a.arrow"),
        stream(table, tmp_path / "b.arrow"),
        tar(members, tmp_path / "a.tar"),
    ]
    found = []
    for file in files:
        lines = as_lines(file, tmp_path / "imported")
        ranges = part_ranges(lines)
        (part,) = source_of(lines, ranges, scan(lines, ranges)).parts
        found.append(held_out(Dataset(name="d", files=(str(file),)), part, 0.5).tolist())
    assert found[0] == found[1] == found[2] == found[3] and 0 < sum(found[0]) < 40
