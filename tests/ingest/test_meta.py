"""The meta JSON: what is read, what is refused and in which words, and how often each row is taken."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.errors import assert_skipped, raises

from neatpack.pipeline.config import UserError
from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.ingest.meta import (
    MAX_RATIO,
    Columns,
    Dataset,
    Tags,
    copies_of_rows,
    read_meta,
    rows_in_order,
)
from neatpack.pipeline.records import Example


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the data files a.jsonl and sub/b.json."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "sub" / "b.json").touch()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "cat.png").touch()
    return tmp_path


def write(folder: Path, meta: Any) -> Path:
    path = folder / "meta.json"
    path.write_text(meta if isinstance(meta, str) else json.dumps(meta), encoding="utf-8")
    return path


def test_defaults(folder: Path) -> None:
    (dataset,) = read_meta(write(folder, {"a": {"file_name": "a.jsonl"}}))
    assert dataset == Dataset(
        name="a",
        files=(str(folder / "a.jsonl"),),
        columns=Columns(messages="messages", images="images", videos="videos", audios="audios"),
        tags=Tags(
            role_tag="role", content_tag="content", user_tag="user", assistant_tag="assistant", system_tag="system"
        ),
        media_dir=str(folder),
        bounds=(str(folder), str(folder)),  # of the meta JSON, of the data file
        sample_ratio=1.0,
        format="auto",
        id_column="id",
        ignore_keys=(),
    )


def test_a_byte_order_mark_is_no_part_of_it(folder: Path) -> None:
    """Windows' editors write one, and data files may have one."""
    (dataset,) = read_meta(write(folder, '\ufeff{"a": {"file_name": "a.jsonl"}}'))
    assert dataset.name == "a"


def test_every_key(folder: Path) -> None:
    tags = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt", "system_tag": "s"}
    columns = {"messages": "conversations", "images": "image", "videos": "video", "audios": "audio"}
    entry = {
        "file_name": "sub/b.json",
        "columns": columns,
        "tags": tags,
        "media_dir": "sub/media",
        "sample_ratio": 2,
        "format": "llava",
        "id_column": "uid",
        "ignore_keys": ["emotion"],
    }
    (folder / "sub" / "media").mkdir()
    (dataset,) = read_meta(write(folder, {"b": entry}))
    assert dataset == Dataset(
        name="b",
        files=(str(folder / "sub" / "b.json"),),
        columns=Columns(**columns),
        tags=Tags(**tags),
        media_dir=str(folder / "sub" / "media"),
        given_dirs=(str(folder / "sub" / "media"),),
        search=(str(folder),),
        bounds=(str(folder / "sub" / "media"),),
        sample_ratio=2.0,
        format="llava",
        id_column="uid",
        ignore_keys=("emotion",),
    )


def test_some_names_keep_the_defaults_of_the_others(folder: Path) -> None:
    entry = {"file_name": "a.jsonl", "columns": {"messages": "turns"}, "tags": {"user_tag": "human"}}
    (dataset,) = read_meta(write(folder, {"a": entry}))
    assert dataset.columns == Columns(messages="turns")
    assert dataset.tags == Tags(user_tag="human")


def test_weights_are_shares_of_what_is_selected(folder: Path) -> None:
    entries = {name: {"file_name": "a.jsonl", "weight": weight} for name, weight in (("a", 3), ("b", 1), ("c", 4.0))}
    path = write(folder, entries)
    assert [dataset.weight for dataset in read_meta(path)] == [0.375, 0.125, 0.5]
    assert [dataset.weight for dataset in read_meta(path, ("b", "a"))] == [0.25, 0.75]
    assert [dataset.sample_ratio for dataset in read_meta(path)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("weight", [0, -1, True, "0.3", float("nan"), float("inf"), [1]])
def test_a_weight_is_a_number_above_0(folder: Path, weight: Any) -> None:
    with raises(UserError, "meta-invalid", dataset="a", key="weight"):
        read_meta(write(folder, {"a": {"file_name": "a.jsonl", "weight": weight}}))


def test_a_weight_is_not_mixed_with_ratios(folder: Path) -> None:
    entry = {"file_name": "a.jsonl"}
    with raises(UserError, "meta-invalid", dataset="a", key="weight", other="sample_ratio"):
        read_meta(write(folder, {"a": entry | {"weight": 1, "sample_ratio": 1}}))
    path = write(folder, {"a": entry | {"weight": 1}, "b": entry, "c": entry})
    with raises(UserError, "meta-invalid", key="weight", missing=["b", "c"]):
        read_meta(path)
    assert read_meta(path, ("b", "c"))[0].weight is None, "those that are not selected do not matter"


@pytest.mark.parametrize("key", ["columns", "tags", "media_dir", "format", "id_column", "ignore_keys"])
def test_null_is_the_default(folder: Path, key: str) -> None:
    (dataset,) = read_meta(write(folder, {"a": {"file_name": "a.jsonl", key: None}}))
    assert dataset == read_meta(write(folder, {"a": {"file_name": "a.jsonl"}}))[0]


def test_columns_and_tags_go_before_those_of_the_format(folder: Path) -> None:
    entry = {"file_name": "a.jsonl", "format": "llava", "columns": {"images": "pic"}, "tags": {"user_tag": "me"}}
    (dataset,) = read_meta(write(folder, {"a": entry}))
    assert dataset.columns == Columns(messages="conversations", images="pic", videos="video", audios="audio")
    assert dataset.tags == Tags(role_tag="from", content_tag="value", user_tag="me", assistant_tag="gpt")


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({}, "auto"),
        ({"format": None}, "auto"),
        ({"columns": {"images": "pic"}}, "messages"),
        ({"tags": {"user_tag": "me"}}, "messages"),
        ({"format": "openai"}, "messages"),
        ({"format": "document"}, "document"),
    ],
)
def test_the_format(folder: Path, keys: dict[str, Any], name: str) -> None:
    (dataset,) = read_meta(write(folder, {"a": {"file_name": "a.jsonl", **keys}}))
    assert dataset.format == dataset.described()["format"] == name


def test_a_name_that_no_file_can_hold(folder: Path) -> None:
    with raises(UserError, "meta-invalid", dataset="\ud800", key="\ud800"):
        read_meta(write(folder, {"\ud800": {"file_name": "a.jsonl"}}))


def test_a_bucket_of_media_stays_as_it_is(folder: Path) -> None:
    (folder / "my pics").mkdir()
    (local,) = read_meta(write(folder, {"a": {"file_name": "a.jsonl", "media_dir": f"file://{folder}/my%20pics"}}))
    assert (local.media_dir, local.bounds) == (str(folder / "my pics"), (str(folder / "my pics"),))
    (dataset,) = read_meta(write(folder, {"a": {"file_name": "a.jsonl", "media_dir": "s3://bucket/pics"}}))
    assert (dataset.media_dir, dataset.bounds) == ("s3://bucket/pics", ("s3://bucket/pics",))


def test_paths_are_relative_to_the_meta_file_and_absolute_ones_stay(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, pictures = tmp_path / "elsewhere", tmp_path / "pictures"
    elsewhere.mkdir()
    pictures.mkdir(exist_ok=True)
    monkeypatch.chdir(elsewhere)
    entries = {
        "relative": {"file_name": "../a.jsonl", "media_dir": "../pictures"},
        "absolute": {"file_name": str(folder / "a.jsonl"), "media_dir": str(pictures)},
    }
    write(folder / "sub", entries)
    relative, absolute = read_meta(Path("../sub/meta.json"))
    assert relative.files == absolute.files == (str(folder / "a.jsonl"),)
    assert relative.media_dir == absolute.media_dir == str(pictures)


def test_order_is_the_files_or_that_of_the_selection(folder: Path) -> None:
    path = write(folder, {name: {"file_name": "a.jsonl"} for name in ("z", "a", "m")})
    assert [dataset.name for dataset in read_meta(path)] == ["z", "a", "m"]
    assert [dataset.name for dataset in read_meta(path, ("m", "z"))] == ["m", "z"]


def test_a_name_selected_twice_is_taken_once(folder: Path) -> None:
    path = write(folder, {name: {"file_name": "a.jsonl"} for name in ("a", "b")})
    assert [dataset.name for dataset in read_meta(path, ("b", "a", "b"))] == ["b", "a"]


def test_what_is_not_selected_is_not_checked(folder: Path) -> None:
    path = write(folder, {"good": {"file_name": "a.jsonl"}, "bad": {"file_name": "absent.jsonl"}})
    assert [dataset.name for dataset in read_meta(path, ("good",))] == ["good"]
    with raises(UserError, "data-missing", dataset="bad"):
        read_meta(path)


DESCRIBED = {
    "name",
    "ignore_columns",
    "placeholders",
    "columns",
    "tags",
    "sample_ratio",
    "weight",
    "format",
    "group_column",
    "id_column",
    "ignore_keys",
    "media_prefixes",
}


def test_described_leaves_out_where_the_files_lie(folder: Path) -> None:
    """A fingerprint must not change when the data move."""
    (folder / "sub" / "a.jsonl").touch()
    here = read_meta(write(folder, {"a": {"file_name": "a.jsonl", "sample_ratio": 0.5}}))[0].described()
    there = read_meta(write(folder / "sub", {"a": {"file_name": "a.jsonl", "sample_ratio": 0.5}}))[0].described()
    assert here == there
    assert here.keys() == DESCRIBED


# What is wrong with the file as a whole -> the code of the error, and the key that it names.
WRONG_FILES = {
    "not JSON": ("{", "meta-unreadable", None),
    "rows": ('{"text": "a"}\n{"text": "b"}\n', "meta-unreadable", None),
    "YAML": ("a:\n  file_name: a.jsonl\n", "meta-unreadable", None),
    "very deep": ("[" * 100_000, "meta-unreadable", None),
    "a list": ([{"file_name": "a.jsonl"}], "meta-unreadable", None),
    "empty": ({}, "meta-unreadable", None),
    "null": (None, "meta-unreadable", None),
    "twice": ('{"a": {"file_name": "a.jsonl"}, "a": {"file_name": "sub/b.json"}}', "meta-duplicate", "a"),
    "key twice": ('{"a": {"file_name": "a.jsonl", "file_name": "sub/b.json"}}', "meta-duplicate", "file_name"),
}


@pytest.mark.parametrize(("content", "code", "key"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_wrong_files(folder: Path, content: Any, code: str, key: str | None) -> None:
    path = write(folder, content)
    with raises(UserError, code, file=str(path), key=key):
        read_meta(path)


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    (folder / "latin.json").write_bytes('{"é": 1}'.encode("latin-1"))
    for path in (folder / "absent.json", folder, folder / "latin.json"):
        with raises(UserError, "meta-unreadable", file=str(path)):
            read_meta(path)


def test_an_unknown_selection_names_what_there_is(folder: Path) -> None:
    path = write(folder, {"a": {"file_name": "a.jsonl"}, "b": {"file_name": "a.jsonl"}})
    with raises(UserError, "dataset-unknown", dataset="c", known=["a", "b"]):
        read_meta(path, ("a", "c"))


GOOD = {"file_name": "a.jsonl"}
# What is wrong with a data set -> the code of the error, and its fields.
WRONG_ENTRIES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "allow_outside": (GOOD | {"allow_outside": True}, "meta-unknown-key", {"key": "allow_outside"}),
    "media_prefixes as a text": (GOOD | {"media_prefixes": "/"}, "meta-invalid", {"key": "media_prefixes"}),
    "media_prefixes of http": (GOOD | {"media_prefixes": ["https://host/x"]}, "uri-invalid", {"got": "https://host/x"}),
    "not an object": ("a.jsonl", "meta-invalid", {"got": "a.jsonl"}),
    "no file_name": ({}, "meta-invalid", {"key": "file_name"}),
    "a URI with a password": ({"file_name": "s3://me:secret@bucket/a.jsonl"}, "uri-invalid", {}),
    "a URI of no store": ({"file_name": "gopher://b/a.jsonl"}, "uri-invalid", {}),
    "empty file_name": ({"file_name": ""}, "meta-invalid", {"key": "file_name", "got": ""}),
    "file_name is null": ({"file_name": None}, "meta-invalid", {"key": "file_name", "got": None}),
    "file_name is an empty list": ({"file_name": []}, "meta-invalid", {"key": "file_name", "got": []}),
    "file_name is a list of lists": (
        {"file_name": [["a.jsonl"]]},
        "meta-invalid",
        {"key": "file_name", "got": [["a.jsonl"]]},
    ),
    "a split of files": (GOOD | {"split": "train"}, "meta-invalid", {"key": "split"}),
    "empty pattern": ({"file_name": "*.parquet"}, "data-missing", {"pattern": "{folder}/*.parquet"}),
    "a folder without data": ({"file_name": "pictures"}, "data-missing", {"folder": "{folder}/pictures"}),
    "a file twice": (
        {"file_name": ["a.jsonl", "*.jsonl"]},
        "meta-duplicate",
        {"file": "{folder}/a.jsonl", "count": 2},
    ),
    "missing file": ({"file_name": "c.jsonl"}, "data-missing", {"file": "{folder}/c.jsonl"}),
    "media_dir": (GOOD | {"media_dir": ["x"]}, "meta-invalid", {"key": "media_dir", "got": ["x"]}),
    "a name of no folder": (GOOD | {"media_dir": "a\0b"}, "meta-invalid", {"key": "media_dir", "got": "a\0b"}),
    "no media_dir": (GOOD | {"media_dir": "pics"}, "meta-invalid", {"key": "media_dir", "got": "{folder}/pics"}),
    "media_dir of a scheme": (GOOD | {"media_dir": "gopher://x/y"}, "uri-invalid", {}),
    "unknown format": (GOOD | {"format": "chatml"}, "format-unknown", {"key": "format", "got": "chatml"}),
    "format is a list": (GOOD | {"format": ["llava"]}, "meta-invalid", {"key": "format", "got": ["llava"]}),
    "a column of another format": (
        GOOD | {"columns": {"prompt": "q"}},
        "format-unknown",
        {"key": "columns.prompt", "format": "messages"},
    ),
    "id_column": (GOOD | {"id_column": 7}, "meta-invalid", {"key": "id_column", "got": 7}),
    "group_column": (GOOD | {"group_column": ""}, "meta-invalid", {"key": "group_column", "got": ""}),
    "ignore_keys": (GOOD | {"ignore_keys": "x"}, "meta-invalid", {"key": "ignore_keys", "got": "x"}),
    "an endless ratio": (
        GOOD | {"sample_ratio": 1e9},
        "meta-invalid",
        {"key": "sample_ratio", "got": 1e9, "limit": MAX_RATIO},
    ),
    "negative ratio": (GOOD | {"sample_ratio": -0.1}, "meta-invalid", {"key": "sample_ratio", "got": -0.1}),
    "ratio is a text": (GOOD | {"sample_ratio": "0.5"}, "meta-invalid", {"key": "sample_ratio", "got": "0.5"}),
    "ratio is true": (GOOD | {"sample_ratio": True}, "meta-invalid", {"key": "sample_ratio", "got": True}),
    "ratio is null": (GOOD | {"sample_ratio": None}, "meta-invalid", {"key": "sample_ratio", "got": None}),
    "ratio is NaN": (GOOD | {"sample_ratio": float("nan")}, "meta-invalid", {"key": "sample_ratio"}),
    "ratio is infinite": (GOOD | {"sample_ratio": float("inf")}, "meta-invalid", {"key": "sample_ratio"}),
    "columns": (GOOD | {"columns": ["messages"]}, "meta-invalid", {"key": "columns"}),
    "column is a number": (GOOD | {"columns": {"images": 1}}, "meta-invalid", {"key": "columns.images", "got": 1}),
    "column is empty": (GOOD | {"columns": {"images": ""}}, "meta-invalid", {"key": "columns.images", "got": ""}),
    "tags": (GOOD | {"tags": "chatml"}, "meta-invalid", {"key": "tags"}),
    "tag is null": (GOOD | {"tags": {"user_tag": None}}, "meta-invalid", {"key": "tags.user_tag", "got": None}),
    "one tag for two roles": (
        GOOD | {"tags": {"user_tag": "assistant"}},
        "meta-invalid",
        {"key": "tags.user_tag", "other": "tags.assistant_tag"},
    ),
    "a role's tag is another's default": (
        GOOD | {"tags": {"assistant_tag": "system"}},
        "meta-invalid",
        {"key": "tags.assistant_tag", "other": "tags.system_tag"},
    ),
}


@pytest.mark.parametrize(("entry", "code", "fields"), WRONG_ENTRIES.values(), ids=WRONG_ENTRIES)
def test_wrong_entries_name_data_set_and_key(folder: Path, entry: Any, code: str, fields: dict[str, Any]) -> None:
    path = write(folder, {"fine": GOOD, "mine": entry})
    expected = {
        name: value.replace("{folder}", str(folder)) if isinstance(value, str) else value
        for name, value in fields.items()
    }
    with raises(UserError, code, dataset="mine", **expected) as caught:
        read_meta(path)
    assert "secret" not in str(caught.error)


# Keys of other tools, or slips of the pen -> the key that the warning names.
UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "a key": ({"formatting": "sharegpt"}, "formatting"),
    "a slip": ({"colums": {}}, "colums"),
    "a column": ({"columns": {"image": "x"}}, "image"),
    "a tag": ({"tags": {"observation_tag": "o"}}, "observation_tag"),
}


@pytest.mark.parametrize(("more", "key"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_keys_are_refused_unless_they_are_allowed(
    folder: Path, more: dict[str, Any], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(folder, {"fine": GOOD, "mine": GOOD | more})
    fine, mine = read_meta(path, allow_unknown=True)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{path}: data set 'mine': " in record.getMessage() and repr(key) in record.getMessage()
    assert (mine.columns, mine.tags) == (fine.columns, fine.tags), "what is not known is not used"
    with raises(UserError, "meta-unknown-key", dataset="mine", key=key):
        read_meta(path)
    assert read_meta(path, ("fine",))[0].name == "fine"


# ---------------------------------------------------------------- where media are looked for


def test_media_are_looked_for_in_media_dir_the_meta_files_folder_and_where_we_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = folder / "here"
    (here / "films").mkdir(parents=True)
    monkeypatch.chdir(here)
    entries = {"own": {"media_dir": "pictures"}, "from here": {"media_dir": "films"}, "none": {},
               "whole": {"media_dir": str(folder / "sub")}, "store": {"media_dir": "s3://bucket/x"}}  # fmt: skip
    path = write(folder, {name: GOOD | entry for name, entry in entries.items()})
    found = {dataset.name: (dataset.media_dirs, dataset.given_dirs) for dataset in read_meta(path)}
    meta, where = str(folder), str(here)
    assert found == {
        "own": ((f"{meta}/pictures", meta, where), (f"{meta}/pictures",)),
        "from here": ((f"{where}/films", meta, where), (f"{where}/films",)),
        "none": ((meta, where), ()),
        "whole": ((f"{meta}/sub", meta, where), (f"{meta}/sub",)),
        "store": (("s3://bucket/x",), ("s3://bucket/x",)),
    }
    (here / "pictures").mkdir()
    own = read_meta(path, ("own",))[0]
    assert own.given_dirs == (f"{meta}/pictures", f"{where}/pictures")
    assert own.media_dirs == (f"{meta}/pictures", f"{where}/pictures", meta, where)


def test_a_path_that_was_written_in_windows(folder: Path) -> None:
    (dataset,) = read_meta(write(folder, {"a": GOOD | {"format": "messages", "media_dir": "pictures"}}))
    (folder / "pictures" / "cats").mkdir()
    (folder / "pictures" / "cats" / "a.png").touch()
    (folder / "pictures" / "cats\\b.png").touch()  # a name like any other
    (folder / "out.png").touch()

    def found(name: str) -> str:
        example = convert(row_with(name), dataset)
        return example.media[0].path if isinstance(example, Example) else f"{example.reason}: {example.detail}"

    pictures = str(folder / "pictures")
    assert found(".\\cats\\a.png") == f"{pictures}/./cats/a.png"
    assert found("cats\\b.png") == f"{pictures}/cats\\b.png"
    assert found("cats\\c.png") == f"{pictures}/cats\\c.png", "missing by the name that the row gives"
    assert_skipped(
        convert(row_with("..\\out.png"), dataset), "missing_media", "'images'", "'..\\\\out.png'", "media_dir"
    )


def test_a_file_is_found_wherever_it_is_and_two_are_one_too_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = folder / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (dataset,) = read_meta(write(folder, {"a": GOOD | {"format": "messages", "media_dir": "pictures"}}))

    def found(name: str) -> str:
        example = convert(row_with(name), dataset)
        return example.media[0].path if isinstance(example, Example) else f"{example.reason}: {example.detail}"

    for name, place in (("cat.png", "pictures"), ("b.png", "."), ("c.png", "here")):
        (folder / place / name).touch()
        assert found(name) == str((folder / place / name).resolve())
    assert found("absent.png") == str(folder / "pictures" / "absent.png"), "missing from the first"
    (here / "b.png").symlink_to(folder / "b.png")
    assert found("b.png") == str(folder / "b.png"), "the same file twice is one"
    (here / "cat.png").touch()
    both = (f"{folder}/pictures/cat.png", f"{here}/cat.png")
    assert_skipped(convert(row_with("cat.png"), dataset), "bad_row", "'images'", "'cat.png'", *both, "media_dir")


@pytest.mark.parametrize(
    ("name", "is_inside"),
    [
        ("cat.png", True),
        ("deep/../cat.png", True),
        ("{folder}/pictures/cat.png", True),
        ("file://{folder}/pictures/cat.png", True),
        ("{folder}/link/cat.png", True),  # a link to the folder itself
        ("beside.png", True),  # in the meta file's folder, where relative paths may start, too
        ("../beside.png", False),
        ("deep/../../beside.png", False),
        ("{folder}/beside.png", False),
        ("{folder}/pictures-2/cat.png", False),  # begins like media_dir, and is another
        ("file://{folder}/beside.png", False),
        ("linked.png", False),  # a link to a file outside
        ("linked/dog.png", False),  # in a link to a folder outside
        ("absent/../../beside.png", False),
        ("https://example.org/cat.png", True),  # no path at all
    ],
)
def test_media_do_not_lead_out_of_media_dir_unless_they_may(name: str, is_inside: bool, folder: Path) -> None:
    outside = folder / "outside"
    for place in (folder / "pictures" / "deep", folder / "pictures-2", outside):
        place.mkdir()
    for file in (folder / "pictures" / "cat.png", folder / "pictures-2" / "cat.png", folder / "beside.png",
                 outside / "dog.png"):  # fmt: skip
        file.touch()
    (folder / "link").symlink_to(folder / "pictures")
    (folder / "pictures" / "linked.png").symlink_to(outside / "dog.png")
    (folder / "pictures" / "linked").symlink_to(outside)
    row = row_with(name.format(folder=folder))
    for entry, is_taken in (({}, is_inside), ({"media_prefixes": [str(folder)]}, True)):
        entry = GOOD | {"format": "messages", "media_dir": "pictures"} | entry
        example = convert(row, read_meta(write(folder, {"a": entry}))[0])
        assert isinstance(example, Example) == is_taken, example
        if not is_taken:
            named = ("'images'", shown(row["images"][0]), "media_dir", "media_prefixes", "--media-prefix")
            assert_skipped(example, "missing_media", *named)


def test_without_media_dir_media_are_in_the_folders_of_the_meta_file_and_the_data_files(folder: Path) -> None:
    data = folder.parent / "rows"
    data.mkdir()
    (data / "a.jsonl").touch()
    (dataset,) = read_meta(write(folder, {"a": {"file_name": str(data / "a.jsonl"), "format": "messages"}}))
    for name in ("dog.png", f"{folder}/dog.png", f"{data}/dog.png", f"../{data.name}/dog.png"):
        assert isinstance(convert(row_with(name), dataset), Example), name
    for name in (f"{folder.parent}/dog.png", "../dog.png", f"{folder}-2/dog.png", f"{data}/../dog.png", "/dog.png"):
        assert_skipped(convert(row_with(name), dataset), "missing_media", "media_dir", "media_prefixes")


def test_frames_of_a_video_stay_inside_too(folder: Path) -> None:
    (dataset,) = read_meta(write(folder, {"a": GOOD | {"format": "messages", "media_dir": "pictures"}}))
    turns = [{"role": "user", "content": "<video>What?"}, {"role": "assistant", "content": "That."}]
    skip = convert({"messages": turns, "videos": [["cat.png", "../beside.png"]]}, dataset)
    assert_skipped(skip, "missing_media", "'../beside.png'", "media_dir")


def shown(path: str) -> str:
    return repr(path if len(path) <= 100 else f"{path[:100]}…")


def row_with(image: str) -> dict[str, Any]:
    turns = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "That."}]
    return {"messages": turns, "images": [image]}


# ---------------------------------------------------------------- named sources


def test_a_source(folder: Path) -> None:
    entry = {"source": "cord_v2", "split": "test", "sample_ratio": 0.5, "media_dir": "sub"}
    (dataset,) = read_meta(write(folder, {"mine": entry}))
    assert (dataset.name, dataset.source, dataset.split, dataset.sample_ratio) == ("mine", "cord_v2", "test", 0.5)
    assert dataset.media_dir == str(folder / "sub")
    assert dataset.described().keys() == DESCRIBED | {"source", "split"}


def test_where_a_source_lies(folder: Path) -> None:
    """Relative to the meta file where that exists; else it is a hub id."""
    entries = {"here": "sub", "hub": "owner/name", "far": "/nowhere/data"}
    path = write(folder, {name: {"source": "rdr", "path_or_dataset": place} for name, place in entries.items()})
    assert [dataset.path_or_dataset for dataset in read_meta(path)] == [
        str(folder / "sub"), "owner/name", "/nowhere/data",
    ]  # fmt: skip


WRONG_SOURCES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "both": (GOOD | {"source": "rdr"}, {"key": "file_name", "other": "source"}),
    "columns": ({"source": "rdr", "columns": {}}, {"key": "columns", "other": "source"}),
    "format": ({"source": "rdr", "format": "llava"}, {"key": "format", "other": "source"}),
    "unknown": ({"source": "cord"}, {"key": "source", "got": "cord"}),
    "a list": ({"source": ["rdr"]}, {"key": "source", "got": ["rdr"]}),
    "null": ({"source": None}, {"key": "source", "got": None}),
    "path": ({"source": "rdr", "path_or_dataset": 7}, {"key": "path_or_dataset", "got": 7}),
    "split": ({"source": "rdr", "split": ""}, {"key": "split", "got": ""}),
    "no source": (GOOD | {"path_or_dataset": "a/b"}, {"key": "path_or_dataset"}),
    "neither": ({"sample_ratio": 1}, {"key": "file_name"}),
    "a hub without its id": ({"source": "hub"}, {"key": "path_or_dataset"}),
    "a hub and a file": (
        GOOD | {"source": "hub", "path_or_dataset": "a/b"},
        {"key": "file_name", "other": "source"},
    ),
}


@pytest.mark.parametrize(("entry", "fields"), WRONG_SOURCES.values(), ids=WRONG_SOURCES)
def test_wrong_sources(folder: Path, entry: Any, fields: dict[str, Any]) -> None:
    with raises(UserError, "meta-invalid", dataset="mine", **fields):
        read_meta(write(folder, {"mine": entry}))


# ---------------------------------------------------------------- sample_ratio


def test_copies_literally() -> None:
    assert copies_of_rows(4, 0).tolist() == [0, 0, 0, 0]
    assert copies_of_rows(4, 0.5).tolist() == [1, 0, 0, 1]  # Random(42).sample(range(4), 2) == [0, 3]
    assert copies_of_rows(4, 1).tolist() == [1, 1, 1, 1]
    assert copies_of_rows(4, 1.5).tolist() == [2, 1, 1, 2]
    assert copies_of_rows(4, 2).tolist() == [2, 2, 2, 2]
    assert copies_of_rows(4, 0.74).sum() == 2  # rounded down
    assert copies_of_rows(4, 1e-9).tolist() == [1, 0, 0, 0]  # any ratio above 0 takes a row
    assert copies_of_rows(4, 1 + 1e-9).tolist() == [1, 1, 1, 1]  # but not one more
    assert copies_of_rows(1, 0).tolist() == [0]
    assert copies_of_rows(1, 0.3).tolist() == [1]
    assert copies_of_rows(1, 1.5).tolist() == [1]
    for ratio in (0, 0.5, 1, 1.5):
        assert copies_of_rows(0, ratio).tolist() == []


def test_copies_are_the_documented_draw() -> None:
    expected = np.zeros(1000, dtype=int)
    expected[random.Random(42).sample(range(1000), 370)] = 1
    assert copies_of_rows(1000, 0.37).tolist() == expected.tolist()
    assert copies_of_rows(1000, 3.375).tolist() != copies_of_rows(1000, 3.374).tolist()
    expected[:] = 3
    expected[random.Random(42).sample(range(1000), 375)] += 1
    assert copies_of_rows(1000, 3.375).tolist() == expected.tolist()


@pytest.mark.parametrize(("ratio", "total"), [(1.1, 11), (2.3, 23), (4.7, 47), (9.9, 99)])
def test_a_decimal_ratio_loses_no_row_to_rounding(ratio: float, total: int) -> None:
    assert copies_of_rows(10, ratio).sum() == total  # 10 * (2.3 - 2) is 2.999…


@given(st.integers(0, 300), st.floats(0, 5))
def test_copies_always_add_up(num_rows: int, ratio: float) -> None:
    copies = copies_of_rows(num_rows, ratio)
    assert len(copies) == num_rows
    assert set(copies.tolist()) <= {int(ratio), int(ratio) + 1}
    wanted = int(num_rows * ratio)
    assert copies.sum() == (max(1, wanted) if ratio > 0 and num_rows else wanted)
    assert copies.tolist() == copies_of_rows(num_rows, ratio).tolist()


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0, 1.7, 2.5, 3.0])
def test_copies_are_those_of_the_rows_in_order(ratio: float) -> None:
    assert copies_of_rows(997, ratio).tolist() == np.bincount(rows_in_order(997, ratio), minlength=997).tolist()
