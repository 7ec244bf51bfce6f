"""Rows by byte range: the same rows, numbered alike, wherever a file is cut and whatever it was made from."""

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image
from support.errors import raises

from neatpack.pipeline.config import UserError
from neatpack.pipeline.ingest import lines as module
from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.ingest.kinds import as_lines
from neatpack.pipeline.ingest.lines import PROBLEM, Lines, Source, part_ranges, rows, scan, source_of
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.media.image import image_size
from neatpack.pipeline.media.open import open_media
from neatpack.pipeline.records import Example


def source(lines: Lines) -> Source:
    ranges = part_ranges(lines)
    return source_of(lines, ranges, scan(lines, ranges))


def read(lines: Lines) -> list[tuple[int, int, bytes]]:
    """Row, line number and text of every row, part by part."""
    return [(row.number, row.line, row.text) for part in source(lines).parts for row in rows(part)]


def values(lines: Lines) -> list[Any]:
    return [json.loads(line) for _, _, line in read(lines)]


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    return path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for property tests, which may use the same names again and again."""
    return tmp_path_factory.mktemp("scratch")


# ---------------------------------------------------------------- byte ranges

LINE = st.sampled_from(
    ["{}", '{"a": 1}', '"\u2028"', '"x\u2029y\x85z"', "", " ", "\t", "\r", "é" * 9, "[" * 20, "\ufeff1"]
)
CONTENT = st.builds(
    lambda bom, pieces, last: (bom + "".join(text + end for text, end in pieces) + last).encode(),
    st.sampled_from(["", "\ufeff"]),
    st.lists(st.tuples(LINE, st.sampled_from(["\n", "\r\n", "\n\n"])), max_size=12),
    st.one_of(st.just(""), LINE),
)


@given(content=CONTENT, part_bytes=st.integers(1, 40))
@settings(max_examples=200)
def test_any_part_size_gives_the_rows_of_a_plain_split(scratch: Path, content: bytes, part_bytes: int) -> None:
    expected = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            expected.append((len(expected), number, line.rstrip(b"\r")))
    lines = Lines(file=str(written(scratch / "any.jsonl", content)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RANGE_BYTES", part_bytes)
        found = source(lines)
        assert len(found.parts) == -(-len(content) // part_bytes)
        assert [(row, number, line.rstrip(b"\r\n")) for row, number, line in read(lines)] == expected
        assert found.num_rows == len(expected)
        for part in found.parts:
            assert [row.number for row in rows(part)] == list(range(part.first_row, part.first_row + part.num_rows))


def test_numbers_literally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "a.jsonl", '\ufeff{"a": 1}\r\n\n  \n{"a": "\u2028"}\n\n{"a": 3}')
    monkeypatch.setattr(module, "RANGE_BYTES", 8)
    assert read(as_lines(file, tmp_path)) == [
        (0, 1, b'{"a": 1}\r\n'),
        (1, 4, '{"a": "\u2028"}\n'.encode()),
        (2, 6, b'{"a": 3}'),
    ]


def test_a_line_longer_than_many_parts_belongs_to_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "a.jsonl", '"' + "x" * 100 + '"\n1\n')
    monkeypatch.setattr(module, "RANGE_BYTES", 10)
    found = source(as_lines(file, tmp_path))
    assert [part.num_rows for part in found.parts] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert [part.first_row for part in found.parts] == [0, *[1] * 10]
    assert [part.first_line for part in found.parts] == [1, *[2] * 10]


def test_parts_are_cut_by_what_measuring_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six rows with a clip are as many seconds as hundreds of text."""
    clip, text = b'{"videos": ["a.mp4"], "messages": []}', b'{"messages": []}'
    file = written(tmp_path / "a.jsonl", b"\n".join([*[text] * 50, *[clip] * 6, b"", *[text] * 50]) + b"\n")
    monkeypatch.setattr(module, "PART_SECONDS", 0.045)
    found = source(as_lines(file, tmp_path))
    assert [part.num_rows for part in found.parts] == [52, 3, 51]
    assert [part.first_row for part in found.parts] == [0, 52, 55]
    assert [part.first_line for part in found.parts] == [1, 53, 56]
    assert [part.start for part in found.parts][1:] == [part.end for part in found.parts][:-1]
    assert (found.parts[0].start, found.parts[-1].end) == (0, file.stat().st_size)
    assert {part.byte_range for part in found.parts} == {(str(file), 0)}
    assert all(part.seconds < 0.06 for part in found.parts)


@given(content=CONTENT, range_bytes=st.integers(1, 40), most=st.sampled_from([1e-5, 3e-4, 6e-4, 1e-3]))
@settings(max_examples=200)
def test_however_parts_are_cut_rows_and_digest_are_the_same(
    scratch: Path, content: bytes, range_bytes: int, most: float
) -> None:
    lines = Lines(file=str(written(scratch / "any.jsonl", content)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RANGE_BYTES", range_bytes)
        whole, expected = source(lines), read(lines)
        patch.setattr(module, "PART_SECONDS", most)
        found = source(lines)
        assert (found.digest, found.num_rows, read(lines)) == (whole.digest, whole.num_rows, expected)
        for part in found.parts:
            assert [row.number for row in rows(part)] == list(range(part.first_row, part.first_row + part.num_rows))


@pytest.mark.parametrize(
    ("line", "media"),
    [
        (b'{"text": "See cat.jpg for more."}', 0.0),
        (b'{"image": "cat.JPG"}', 0.18e-3),
        (b'{"images": ["a.png", "b.webp?x=1"], "video": "c.mkv"}', 18.76e-3),
        (b'{"audios": ["a.wav"]}', 5e-3),
        (b'{"image": {"path": "/data/media.bin", "offset": 0, "length": 9}}', 0.38e-3),
        (b'{"image": {"path": "a.parquet", "cell": "0.0"}}', 0.38e-3),
    ],
)
def test_media_in_a_row_are_counted_by_their_names(line: bytes, media: float) -> None:
    assert module.media_seconds(line) == pytest.approx(media)
    assert module.row_seconds(line) == pytest.approx(media + module.text_seconds(line))


def test_text_is_weighed_by_its_turns_and_its_writing() -> None:
    row, turn, byte, other = 130e-6, 8.5e-6, 0.08e-6, 0.18e-6
    assert module.text_seconds(b'{"text": "ab"}') == pytest.approx(row + turn + 14 * byte)
    assert module.text_seconds('{"text": "日本"}'.encode()) == pytest.approx(row + turn + 12 * byte + 6 * other)
    assert module.text_seconds(b'{"turns": [{"user": "a"}, {"bot": ""}]}') == pytest.approx(row + 3 * turn + 39 * byte)
    assert module.text_seconds(b'{"text": "{\\"quoted\\": 1}"}') == pytest.approx(row + turn + 27 * byte)


def test_a_picture_inside_a_row_is_no_text() -> None:
    assert module.row_seconds(b'{"image": "' + b"iVBORw0KGgo" * 10_000 + b'"}') < 3e-3
    assert module.row_seconds(b'{"text": "' + b"word after word " * 7_000 + b'"}') > 8e-3
    assert module.row_seconds(b" \r\n") == 0


def test_scanning_in_chunks_equals_scanning_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines(file=str(written(tmp_path / "a.jsonl", "".join(f"{i}\n" for i in range(50)))))
    monkeypatch.setattr(module, "RANGE_BYTES", 7)
    ranges = part_ranges(lines)
    assert scan(lines, ranges[:9]) + scan(lines, ranges[9:]) == scan(lines, ranges)


def test_the_digest_follows_the_content_not_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANGE_BYTES", 4)
    content = b"1\n2\n3\n4\n5\n"

    def digest(name: str, text: bytes) -> str:
        return source(Lines(file=str(written(tmp_path / name, text)))).digest

    assert digest("a.jsonl", content) == digest("b.jsonl", content)
    changed = [content[:i] + b"9" + content[i + 1 :] for i in range(len(content))]
    assert len({digest("c.jsonl", text) for text in (content, *changed)}) == 1 + len(content)


def test_jsonl_is_read_where_it_lies(tmp_path: Path) -> None:
    for name, content in {"a.jsonl": "1\n", "b.ndjson": "1\n", "C.JSONL": "1\n", "d.json": ' {"a": 1}\n{}\n'}.items():
        file = written(tmp_path / name, content)
        assert as_lines(file, tmp_path / "imported") == Lines(file=str(file))
    assert not (tmp_path / "imported").exists()


def test_an_empty_jsonl_has_no_rows(tmp_path: Path) -> None:
    for content in ("", "\n\n", "\ufeff", "\ufeff\n \n"):
        found = source(as_lines(written(tmp_path / "a.jsonl", content), tmp_path))
        assert found.num_rows == 0


# ---------------------------------------------------------------- JSON arrays

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


@given(array=st.lists(JSON, max_size=4), indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
@settings(max_examples=100)
def test_an_array_has_the_rows_that_json_load_has(
    scratch: Path, array: list[Any], indent: int | None, ascii_only: bool
) -> None:
    file = written(scratch / "any.json", json.dumps(array, indent=indent, ensure_ascii=ascii_only))
    found = as_lines(file, scratch / "imported")
    assert values(found) == array
    assert [line for _, line, _ in read(found)] == list(range(1, len(array) + 1))  # one row, one line


@pytest.mark.parametrize(
    "text",
    [
        '[{"a": "one\\ntwo"}, {"b": ["\u2028", "\\u2028", "😀", "\\ud83d\\ude00"]}]',
        '\ufeff  [\r\n{"a":\n{"b":\n1}}\r\n,\n\t2 ]  \n\n',
        '[{"half": "\\ud83d"}, "\\ude00"]',  # halves of a surrogate pair: legal JSON, refused row by row later
        "[]",
        "[ ]",
        "[[]]",
        "[1e400, -0, NaN]",
    ],
)
def test_arrays_literally(tmp_path: Path, text: str) -> None:
    found = as_lines(written(tmp_path / "a.json", text), tmp_path / "imported")
    assert repr(values(found)) == repr(json.loads(text.removeprefix("\ufeff")))


def test_an_array_is_rewritten_once_under_its_digest(tmp_path: Path) -> None:
    file = written(tmp_path / "a.json", "[1, 2]")
    first = as_lines(file, tmp_path / "imported")
    assert Path(first.file) == tmp_path / "imported" / first.rewritten_from / "rows.jsonl"
    assert source(first).digest == first.rewritten_from
    written(Path(first.file), "3\n")  # to be seen again, if it is kept
    assert values(as_lines(written(tmp_path / "b.json", "[1, 2]"), tmp_path / "imported")) == [3]
    assert values(as_lines(written(tmp_path / "a.json", "[1, 4]"), tmp_path / "imported")) == [1, 4]


# Text of a broken array -> the line that the error names.
BROKEN_ARRAYS = {
    "cut in an element": ('[{"a": 1},\n{"a": ', 2),
    "cut after an element": ('[{"a": 1}\n', 2),
    "cut after a comma": ('[{"a": 1},\n\n', 3),
    "only a bracket": ("[", 1),
    "no comma": ('[\n{"a": 1}\n{"a": 2}]', 3),
    "a comma at the end": ("[\n1,\n2,\n]", 4),
    "two commas": ("[1,\n,2]", 2),
    "two arrays": ("[1]\n[2]", 2),
    "text behind": ("[\n1\n]\nend", 4),
    "single quotes": ("[\n\n{'a': 1}]", 3),
    "a huge number": ("[1,\n" + "9" * 5000 + "]", 2),
    "too deep": ("[\n" + "[" * 100_000, 2),
}


@pytest.mark.parametrize(("text", "line"), BROKEN_ARRAYS.values(), ids=BROKEN_ARRAYS)
def test_broken_arrays_name_file_and_line(tmp_path: Path, text: str, line: int) -> None:
    file = written(tmp_path / "a.json", text)
    with raises(UserError, "data-unreadable", file=str(file), line=line):
        as_lines(file, tmp_path / "imported")
    assert [path for path in (tmp_path / "imported").rglob("*") if path.is_file()] == []  # nothing half-made stays


def test_an_element_with_a_key_twice_is_a_row(tmp_path: Path) -> None:
    file = written(tmp_path / "a.json", '[{"a": 1},\n{"a": 1,\n"a": 2},\n{"a": 3}]')
    first, twice, last = values(as_lines(file, tmp_path / "imported"))
    assert (first, last) == ({"a": 1}, {"a": 3})
    assert twice == {PROBLEM: "line 2: the key 'a' is there twice in one object, with two values; remove one"}


@given(st.text(alphabet='[]{},:"1a \n', max_size=12).map("[".__add__))
@settings(max_examples=300)
def test_an_array_is_refused_exactly_where_json_refuses_it(scratch: Path, text: str) -> None:
    file = written(scratch / "odd.json", text)
    try:
        expected = json.loads(text)
    except json.JSONDecodeError:
        with raises(UserError, "data-unreadable", file=str(file)) as caught:
            as_lines(file, scratch / "imported")
        assert caught.error.fields["line"] >= 1
    else:
        assert values(as_lines(file, scratch / "imported")) == expected


def test_an_array_that_is_not_utf8(tmp_path: Path) -> None:
    file = written(tmp_path / "a.json", '["é"]'.encode("latin-1"))
    with raises(UserError, "data-unreadable", file=str(file)):
        as_lines(file, tmp_path)


# ---------------------------------------------------------------- compressed

PACK = {
    "gz": gzip.compress,
    "zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
TEXT = '\ufeff{"a": 1}\r\n\n{"a": "\u2028"}'.encode()


@pytest.mark.parametrize("kind", PACK)
def test_compressed_lines(tmp_path: Path, kind: str) -> None:
    found = as_lines(written(tmp_path / f"a.b.jsonl.{kind}", PACK[kind](TEXT)), tmp_path / "imported")
    assert [(row, line) for row, line, _ in read(found)] == [(0, 1), (1, 3)]
    assert values(found) == [{"a": 1}, {"a": "\u2028"}]
    assert source(found).digest == found.rewritten_from


@pytest.mark.parametrize("kind", PACK)
def test_files_packed_in_pieces_are_read_to_the_end(tmp_path: Path, kind: str) -> None:
    pieces = b"".join(PACK[kind](b"%d\n" % number) for number in range(3))
    assert values(as_lines(written(tmp_path / f"a.jsonl.{kind}", pieces), tmp_path / "imported")) == [0, 1, 2]


@pytest.mark.parametrize("kind", PACK)
def test_compressed_nothing(tmp_path: Path, kind: str) -> None:
    assert read(as_lines(written(tmp_path / f"a.jsonl.{kind}", PACK[kind](b"")), tmp_path / "imported")) == []


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("harm", ["cut by a byte", "cut in half", "changed", "junk behind", "not packed"])
def test_broken_compressed_files_are_refused(tmp_path: Path, kind: str, harm: str) -> None:
    text = b"".join(b'{"a": %d}\n' % (i * i) for i in range(100_000))
    good = PACK[kind](text)
    middle = len(good) // 2
    content = {
        "cut by a byte": good[:-1],
        "cut in half": good[:middle],
        "changed": good[:middle] + bytes(byte ^ 0xFF for byte in good[middle : middle + 64]) + good[middle + 64 :],
        "junk behind": good + b"more",
        "not packed": text,
    }[harm]
    file = written(tmp_path / f"a.jsonl.{kind}", content)
    with raises(UserError, "data-unreadable", file=str(file)):
        as_lines(file, tmp_path / "imported")
    assert [path for path in (tmp_path / "imported").rglob("*") if path.is_file()] == []


def test_streams_of_xz_may_be_filled_up(tmp_path: Path) -> None:
    content = lzma.compress(b"1\n") + bytes(8) + lzma.compress(b"2\n") + bytes(4)
    assert values(as_lines(written(tmp_path / "a.jsonl.xz", content), tmp_path / "imported")) == [1, 2]


# ---------------------------------------------------------------- parquet


def png(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (height, width, 0)).save(buffer, "png")
    return buffer.getvalue()


def parquet(path: Path, lines: list[dict[str, Any]], schema: pa.Schema | None = None) -> Path:
    pq.write_table(pa.Table.from_pylist(lines, schema=schema), path, row_group_size=2)
    return path


MEDIUM = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
TURN = pa.struct([("role", pa.string()), ("content", pa.string())])


def turns(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]


def media_of(row: Any, tmp_path: Path) -> list[Any]:
    example = convert(row, Dataset(name="d", media_dir=str(tmp_path)))
    assert isinstance(example, Example)
    return list(example.media)


def test_parquet_with_embedded_images(tmp_path: Path) -> None:
    """The HF layout: a struct of bytes and path, or a list of them. The bytes come back through the references."""
    schema = pa.schema([("messages", pa.list_(TURN)), ("images", pa.list_(MEDIUM))])
    pictures = [[png(30, 40)], [], [png(50, 60), png(70, 80)]]
    table = [
        {
            "messages": turns("<image>" * len(images) + "Is it?"),
            "images": [{"bytes": image, "path": f"{number}.png"} for number, image in enumerate(images)],
        }
        for images in pictures
    ]
    found = values(as_lines(parquet(tmp_path / "a.parquet", table, schema), tmp_path / "imported"))
    assert [row["messages"] for row in found] == [row["messages"] for row in table]
    media = [media_of(row, tmp_path) for row in found]
    assert [[open_media(ref).read() for ref in refs] for refs in media] == pictures
    assert [[image_size(ref) for ref in refs] for refs in media] == [[(30, 40)], [], [(50, 60), (70, 80)]]
    assert [(ref.offset, ref.length) for refs in media for ref in refs] == [
        (0, len(pictures[0][0])),
        (len(pictures[0][0]), len(pictures[2][0])),
        (len(pictures[0][0]) + len(pictures[2][0]), len(pictures[2][1])),
    ]


def test_parquet_with_one_medium_per_row(tmp_path: Path) -> None:
    """A struct, null, and a struct without bytes, whose path is a file as in JSON."""
    schema = pa.schema([("messages", pa.list_(TURN)), ("images", MEDIUM)])
    table = [
        {"messages": turns("<image>"), "images": {"bytes": png(8, 9), "path": None}},
        {"messages": turns("none"), "images": None},
        {"messages": turns("<image>"), "images": {"bytes": None, "path": "there.png"}},
    ]
    found = values(as_lines(parquet(tmp_path / "a.parquet", table, schema), tmp_path / "imported"))
    (first,), none, (third,) = (media_of(row, tmp_path) for row in found)
    assert image_size(first) == (8, 9)
    assert none == []
    assert (third.path, third.offset, third.length) == (str(tmp_path / "there.png"), 0, -1)


def test_parquet_with_bare_bytes_and_other_columns(tmp_path: Path) -> None:
    table = [{"messages": turns("<image>"), "images": png(5, 7), "score": 0.5, "day": None, "tags": ["a", "\u2028"]}]
    (row,) = values(as_lines(parquet(tmp_path / "a.parquet", table), tmp_path / "imported"))
    assert image_size(media_of(row, tmp_path)[0]) == (5, 7)
    assert {key: row[key] for key in ("score", "day", "tags")} == {"score": 0.5, "day": None, "tags": ["a", "\u2028"]}


def test_parquet_with_content_in_parts(tmp_path: Path) -> None:
    """Arrow gives every part the keys of all."""
    part = pa.struct([("type", pa.string()), ("text", pa.string()), ("image", MEDIUM), ("path", pa.string())])
    schema = pa.schema([("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(part))])))])
    own = [{"type": "image", "image": {"bytes": png(5, 7)}}, {"type": "image", "path": "there.png"}]
    said = [{"role": "user", "content": [*own, {"type": "text", "text": "?"}]}]
    said.append({"role": "assistant", "content": [{"type": "text", "text": "!"}]})
    (row,) = values(as_lines(parquet(tmp_path / "a.parquet", [{"messages": said}], schema), tmp_path / "imported"))
    first, second = media_of(row, tmp_path)
    assert image_size(first) == (5, 7)
    assert second.path == str(tmp_path / "there.png")


def test_parquet_without_rows_or_media(tmp_path: Path) -> None:
    schema = pa.schema([("messages", pa.list_(TURN))])
    assert values(as_lines(parquet(tmp_path / "a.parquet", [], schema), tmp_path / "imported")) == []


@pytest.mark.parametrize("harm", ["empty", "cut", "not parquet", "broken page"])
def test_broken_parquet_is_refused(tmp_path: Path, harm: str) -> None:
    file = parquet(tmp_path / "a.parquet", [{"messages": turns("x" * 1000)}])
    good = file.read_bytes()
    harmed = {
        "empty": b"",
        "cut": good[:-10],
        "not parquet": b"{}" * 50,
        "broken page": good[:4] + b"?" * 90 + good[94:],
    }
    written(file, harmed[harm])
    with raises(UserError, "data-unreadable", file=str(file)):
        as_lines(file, tmp_path / "imported")
    assert [path for path in (tmp_path / "imported").rglob("*") if path.is_file()] == []


# ---------------------------------------------------------------- other files


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.parquet", "a.jsonl.gz"])
def test_a_git_lfs_pointer_is_named_as_such(tmp_path: Path, name: str) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:84f7\nsize 20176754\n"
    file = written(tmp_path / name, pointer)
    with raises(UserError, "data-format", file=str(file), kind="git-lfs"):
        as_lines(file, tmp_path)


@pytest.mark.parametrize("name", ["a.txt", "a", "a.gz", "a.txt.gz", "a.tsv.lz4", "a.parquet.zst", "jsonl"])
def test_unknown_kinds_of_file(tmp_path: Path, name: str) -> None:
    file = written(tmp_path / name, "{}")
    with raises(UserError, "data-format", file=str(file), kind=None) as caught:
        as_lines(file, tmp_path)
    assert all(known in str(caught.error) for known in (".jsonl", ".gz", ".parquet", ".arrow", ".tar"))


@pytest.mark.parametrize("content", ["", "\n", "<html>", '"text"'])
def test_json_that_is_neither_an_array_nor_lines(tmp_path: Path, content: str) -> None:
    file = written(tmp_path / "a.json", content)
    with raises(UserError, "data-format", file=str(file), kind=None):
        as_lines(file, tmp_path)
