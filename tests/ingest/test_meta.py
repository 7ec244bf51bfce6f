"""The meta JSON: what is read, what is refused and in which words, and how often each row is taken."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from neatpack.pipeline.config import UserError
from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.ingest.meta import Columns, Dataset, Tags, copies_of_rows, read_meta, rows_in_order
from neatpack.pipeline.records import Example, Skip


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
    with pytest.raises(UserError, match="data set 'a': weight must be a number above 0, its share of all tokens, got "):
        read_meta(write(folder, {"a": {"file_name": "a.jsonl", "weight": weight}}))


def test_a_weight_is_not_mixed_with_ratios(folder: Path) -> None:
    entry = {"file_name": "a.jsonl"}
    with pytest.raises(UserError, match="both weight and sample_ratio; .*: remove one"):
        read_meta(write(folder, {"a": entry | {"weight": 1, "sample_ratio": 1}}))
    path = write(folder, {"a": entry | {"weight": 1}, "b": entry, "c": entry})
    with pytest.raises(UserError, match="there is a weight for a and none for b, c; .*: give every data set one"):
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
    with pytest.raises(UserError, match="its name is not Unicode text: half of a surrogate pair; rename it"):
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
    with pytest.raises(UserError, match="'bad'"):
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


# What is wrong with the file as a whole -> words of the message.
WRONG_FILES = {
    "not JSON": ("{", "not JSON"),
    "rows": ('{"text": "a"}\n{"text": "b"}\n', "not JSON: Extra data: line 2 column 1 (char 14); expected an object"),
    "YAML": ("a:\n  file_name: a.jsonl\n", 'expected an object of data sets, as {"mine": {"file_name": "rows.jsonl"}}'),
    "very deep": ("[" * 100_000, "nested too deep; expected an object of data sets"),
    "a list": ([{"file_name": "a.jsonl"}], "expected an object of data sets"),
    "empty": ({}, "expected an object of data sets"),
    "null": (None, "expected an object of data sets"),
    "twice": ('{"a": {"file_name": "a.jsonl"}, "a": {"file_name": "sub/b.json"}}', "'a' is there twice"),
    "key twice": ('{"a": {"file_name": "a.jsonl", "file_name": "sub/b.json"}}', "'file_name' is there twice"),
}


@pytest.mark.parametrize(("content", "words"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_wrong_files(folder: Path, content: Any, words: str) -> None:
    path = write(folder, content)
    with pytest.raises(UserError) as caught:
        read_meta(path)
    assert f"--meta {path}" in str(caught.value)
    assert words in str(caught.value)


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.json: no such file"):
        read_meta(folder / "absent.json")
    with pytest.raises(UserError, match=f"--meta {folder}: cannot be read: Is a directory; expected an object of data"):
        read_meta(folder)
    (folder / "latin.json").write_bytes('{"é": 1}'.encode("latin-1"))
    with pytest.raises(UserError, match=r"latin\.json: not JSON"):
        read_meta(folder / "latin.json")


def test_an_unknown_selection_names_what_there_is(folder: Path) -> None:
    path = write(folder, {"a": {"file_name": "a.jsonl"}, "b": {"file_name": "a.jsonl"}})
    with pytest.raises(UserError) as caught:
        read_meta(path, ("a", "c"))
    assert str(caught.value) == f"--datasets c: not in {path}, which has a, b"


GOOD = {"file_name": "a.jsonl"}
# What is wrong with a data set -> the key and the remedy that the message names.
WRONG_ENTRIES = {
    "allow_outside": (GOOD | {"allow_outside": True}, "allow_outside is not supported. Name the folders"),
    "media_prefixes as a text": (GOOD | {"media_prefixes": "/"}, "media_prefixes must be a list of folders and URIs"),
    "media_prefixes of http": (
        GOOD | {"media_prefixes": ["https://host/x"]},
        "media_prefixes: https://host/x is no folder or store. Allow downloads with --allow-http",
    ),
    "not an object": (
        "a.jsonl",
        'expected an object, got str; write it as {"mine": {"file_name": "rows.jsonl"}}',
    ),
    "no file_name": ({}, "neither file_name nor source; give one of the two"),
    "a URI with a password": (
        {"file_name": "s3://me:secret@bucket/a.jsonl"},
        "file_name: s3://bucket/a.jsonl is given with a password",
    ),
    "a URI of no store": (
        {"file_name": "gopher://b/a.jsonl"},
        "file_name: unknown scheme gopher://; known: s3, gs",
    ),
    "empty file_name": ({"file_name": ""}, "file_name must be the path of a data file, a glob, a folder or a list"),
    "file_name is null": ({"file_name": None}, "a list of these, got None"),
    "file_name is an empty list": ({"file_name": []}, "a list of these, got []"),
    "file_name is a list of lists": ({"file_name": [["a.jsonl"]]}, "a list of these, got [['a.jsonl']]"),
    "a split of files": (GOOD | {"split": "train"}, "split belongs to a source or a folder that save_to_disk wrote"),
    "empty pattern": ({"file_name": "*.parquet"}, "/*.parquet; the pattern is taken relative to the meta file"),
    "a folder without data": ({"file_name": "pictures"}, "pictures; known: .jsonl .ndjson .json .csv .tsv (also with"),
    "a file twice": ({"file_name": ["a.jsonl", "*.jsonl"]}, "a.jsonl 2 times, so that its rows would come as often"),
    "missing file": ({"file_name": "c.jsonl"}, "c.jsonl does not exist; it is taken relative to the meta file"),
    "media_dir": (GOOD | {"media_dir": ["x"]}, "media_dir must be a directory, got ['x']"),
    "a name of no folder": (GOOD | {"media_dir": "a\0b"}, "media_dir must be a directory, got 'a\\x00b'"),
    "no media_dir": (GOOD | {"media_dir": "pics"}, "pics is no directory; it is taken relative to the meta file"),
    "media_dir of a scheme": (
        GOOD | {"media_dir": "gopher://x/y"},
        "media_dir: unknown scheme gopher://; known: s3, gs",
    ),
    "unknown format": (GOOD | {"format": "chatml"}, "unknown format 'chatml'; known: auto, vsft, messages, sharegpt"),
    "format is a list": (GOOD | {"format": ["llava"]}, "format must be a name, got ['llava']"),
    "a column of another format": (
        GOOD | {"columns": {"prompt": "q"}},
        "columns.prompt means nothing to the format 'messages', which has messages, images, videos, audios, system, "
        'tools; give "format": "alpaca" or "format": "prompt_response", or remove it',
    ),
    "id_column": (GOOD | {"id_column": 7}, "id_column must be the name of a column, got 7"),
    "group_column": (GOOD | {"group_column": ""}, "group_column must be the name of a column, got ''"),
    "ignore_keys": (GOOD | {"ignore_keys": "x"}, "ignore_keys must be a list of keys of turns or parts, got 'x'"),
    "an endless ratio": (
        GOOD | {"sample_ratio": 1e9},
        "sample_ratio is 1000000000.0; it is how often each row is taken",
    ),
    "negative ratio": (GOOD | {"sample_ratio": -0.1}, "sample_ratio must be a number of at least 0, got -0.1"),
    "ratio is a text": (GOOD | {"sample_ratio": "0.5"}, "sample_ratio must be a number of at least 0, got '0.5'"),
    "ratio is true": (GOOD | {"sample_ratio": True}, "sample_ratio must be a number of at least 0, got True"),
    "ratio is null": (GOOD | {"sample_ratio": None}, "sample_ratio must be a number of at least 0, got None"),
    "ratio is NaN": (GOOD | {"sample_ratio": float("nan")}, "sample_ratio must be a number of at least 0, got nan"),
    "ratio is infinite": (GOOD | {"sample_ratio": float("inf")}, "sample_ratio must be a number"),
    "columns": (GOOD | {"columns": ["messages"]}, "columns must be an object, got list"),
    "column is a number": (GOOD | {"columns": {"images": 1}}, "columns.images must be a name, got 1"),
    "column is empty": (GOOD | {"columns": {"images": ""}}, "columns.images must be a name, got ''"),
    "tags": (GOOD | {"tags": "chatml"}, "tags must be an object, got str"),
    "tag is null": (GOOD | {"tags": {"user_tag": None}}, "tags.user_tag must be a name, got None"),
    "one tag for two roles": (
        GOOD | {"tags": {"user_tag": "assistant"}},
        "tags.user_tag and tags.assistant_tag are both 'assistant'; give each role its own",
    ),
    "a role's tag is another's default": (
        GOOD | {"tags": {"assistant_tag": "system"}},
        "tags.assistant_tag and tags.system_tag are both 'system'",
    ),
}


@pytest.mark.parametrize(("entry", "words"), WRONG_ENTRIES.values(), ids=WRONG_ENTRIES)
def test_wrong_entries_name_data_set_key_and_remedy(folder: Path, entry: Any, words: str) -> None:
    path = write(folder, {"fine": GOOD, "mine": entry})
    with pytest.raises(UserError) as caught:
        read_meta(path)
    assert str(caught.value).startswith(f"{path}: data set 'mine': ")
    assert words in str(caught.value)


# Keys of other tools, or slips of the pen -> words of the warning.
UNKNOWN = {
    "a key": ({"formatting": "sharegpt"}, "unknown key 'formatting'; known: file_name, format, columns, tags"),
    "a slip": ({"colums": {}}, "unknown key 'colums'; known: file_name, format, columns, tags"),
    "a column": ({"columns": {"image": "x"}}, "unknown key 'image' in columns; known: messages, images"),
    "a tag": ({"tags": {"observation_tag": "o"}}, "unknown key 'observation_tag' in tags; known: role_tag"),
}


@pytest.mark.parametrize(("more", "words"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_keys_are_refused_unless_they_are_allowed(
    folder: Path, more: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(folder, {"fine": GOOD, "mine": GOOD | more})
    fine, mine = read_meta(path, allow_unknown=True)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"{path}: data set 'mine': {words}")
    assert (mine.columns, mine.tags) == (fine.columns, fine.tags), "what is not known is not used"
    with pytest.raises(UserError) as caught:
        read_meta(path)
    assert str(caught.value).startswith(f"{path}: data set 'mine': {words}")
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
    assert found("..\\out.png").startswith("missing_media: column 'images': '..\\\\out.png' is outside of media_dir")


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
    assert found("cat.png") == (
        f"bad_row: column 'images': 'cat.png' is both {folder}/pictures/cat.png and {here}/cat.png; "
        "give media_dir, or whole paths"
    )


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
        if isinstance(example, Skip):
            assert (example.reason, example.detail) == (
                "missing_media",
                f"column 'images': {shown(row['images'][0])} is outside of media_dir. Allow its folder with "
                "media_prefixes in the meta JSON or --media-prefix",
            )


def test_without_media_dir_media_are_in_the_folders_of_the_meta_file_and_the_data_files(folder: Path) -> None:
    data = folder.parent / "rows"
    data.mkdir()
    (data / "a.jsonl").touch()
    (dataset,) = read_meta(write(folder, {"a": {"file_name": str(data / "a.jsonl"), "format": "messages"}}))
    for name in ("dog.png", f"{folder}/dog.png", f"{data}/dog.png", f"../{data.name}/dog.png"):
        assert isinstance(convert(row_with(name), dataset), Example), name
    for name in (f"{folder.parent}/dog.png", "../dog.png", f"{folder}-2/dog.png", f"{data}/../dog.png", "/dog.png"):
        skip = convert(row_with(name), dataset)
        assert isinstance(skip, Skip) and skip.reason == "missing_media" and "is outside of media_dir" in skip.detail


def test_frames_of_a_video_stay_inside_too(folder: Path) -> None:
    (dataset,) = read_meta(write(folder, {"a": GOOD | {"format": "messages", "media_dir": "pictures"}}))
    turns = [{"role": "user", "content": "<video>What?"}, {"role": "assistant", "content": "That."}]
    skip = convert({"messages": turns, "videos": [["cat.png", "../beside.png"]]}, dataset)
    assert isinstance(skip, Skip) and "'../beside.png' is outside of media_dir" in skip.detail


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


WRONG_SOURCES = {
    "both": (GOOD | {"source": "rdr"}, "both source and file_name; a source knows its rows by itself"),
    "columns": ({"source": "rdr", "columns": {}}, "both source and columns"),
    "format": ({"source": "rdr", "format": "llava"}, "both source and format"),
    "unknown": ({"source": "cord"}, "unknown source 'cord'; known: rdr, cord_v2, medpix, cv17, unimm_chat, hub"),
    "a list": ({"source": ["rdr"]}, "unknown source ['rdr']"),
    "null": ({"source": None}, "unknown source None"),
    "path": ({"source": "rdr", "path_or_dataset": 7}, "path_or_dataset must be a text, got 7; leave it out"),
    "split": ({"source": "rdr", "split": ""}, "split must be a text, got ''"),
    "no source": (
        GOOD | {"path_or_dataset": "a/b"},
        "path_or_dataset belongs to a source, and none is given; known: rdr",
    ),
    "neither": ({"sample_ratio": 1}, "neither file_name nor source; give one of the two. Sources: rdr, cord_v2"),
    "a hub without its id": ({"source": "hub"}, "source 'hub' without path_or_dataset; give the data set's id"),
    "a hub and a file": (GOOD | {"source": "hub", "path_or_dataset": "a/b"}, "both source and file_name"),
}


@pytest.mark.parametrize(("entry", "words"), WRONG_SOURCES.values(), ids=WRONG_SOURCES)
def test_wrong_sources(folder: Path, entry: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        read_meta(write(folder, {"mine": entry}))
    assert words in str(caught.value)


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
