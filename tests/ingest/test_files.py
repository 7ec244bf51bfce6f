"""file_name of a meta JSON: one file or many, in an order that is always the same, none twice."""

import json
import logging
from pathlib import Path
from typing import Any

import datasets
import pytest
from helpers import assert_verified, tiny_config
from s3_server import S3
from support.errors import raises

from neatpack import PackedShards
from neatpack.errors import OutputError
from neatpack.format.manifest import Manifest
from neatpack.loaders.online.datasets import make_meta_dataset
from neatpack.pipeline.config import UserError
from neatpack.pipeline.ingest.imported import lines_of, num_files
from neatpack.pipeline.ingest.lines import Source, joined, part_ranges, rows, scan, source_of
from neatpack.pipeline.ingest.meta import Dataset, read_meta
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger
from neatpack.storage import clients
from neatpack.storage.location import Location


def said(word: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": "Yes."}]}


def put(path: Path, *words: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(said(word)) + "\n" for word in words))
    return path


def dataset_of(folder: Path, file_name: Any, **more: Any) -> Dataset:
    (folder / "meta.json").write_text(json.dumps({"all": {"file_name": file_name, **more}}))
    (dataset,) = read_meta(folder / "meta.json")
    return dataset


def source_in(dataset: Dataset, folder: Path) -> Source:
    sources = []
    for number in range(num_files(dataset)):
        lines = lines_of(dataset, folder / "imported", number)
        ranges = part_ranges(lines)
        sources.append(source_of(lines, ranges, scan(lines, ranges)))
    return joined(sources)


def words_in(dataset: Dataset, folder: Path) -> list[tuple[int, int, str]]:
    """Row, line and word of every row."""
    found = [row for part in source_in(dataset, folder).parts for row in rows(part)]
    return [(row.number, row.line, json.loads(row.text)["messages"][0]["content"]) for row in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data files data/b.jsonl, data/a.json (an array) and data/deep/c.jsonl, among others."""
    put(tmp_path / "data" / "b.jsonl", "b0", "b1")
    (tmp_path / "data" / "a.json").write_text(json.dumps([said("a0")]))
    put(tmp_path / "data" / "deep" / "c.jsonl", "c0")
    put(tmp_path / "data" / ".hidden.jsonl", "hidden")
    (tmp_path / "data" / "README.md").write_text("read me")
    (tmp_path / "data" / "cat.png").touch()
    return tmp_path


NAMES: dict[str, tuple[Any, list[str]]] = {
    "a path": ("data/b.jsonl", ["b.jsonl"]),
    "a list keeps its order": (["data/deep/c.jsonl", "data/a.json"], ["c.jsonl", "a.json"]),
    "a pattern is sorted": ("data/*.json*", ["a.json", "b.jsonl"]),
    "two stars": ("data/**/*.jsonl", ["b.jsonl", "c.jsonl"]),
    "a folder": ("data", ["a.json", "b.jsonl", "c.jsonl"]),
    "a list of a pattern and a folder": (["data/b.*", "data/deep"], ["b.jsonl", "c.jsonl"]),
}


@pytest.mark.parametrize(("file_name", "expected"), NAMES.values(), ids=NAMES)
def test_names(folder: Path, file_name: Any, expected: list[str]) -> None:
    assert [Path(file).name for file in dataset_of(folder, file_name).files] == expected


def test_rows_are_numbered_through_and_lines_by_file(folder: Path) -> None:
    assert words_in(dataset_of(folder, "data"), folder) == [(0, 1, "a0"), (1, 1, "b0"), (2, 2, "b1"), (3, 1, "c0")]


def test_a_name_that_looks_like_a_pattern_is_a_file_where_there_is_one(tmp_path: Path) -> None:
    put(tmp_path / "a[1].jsonl", "one")
    put(tmp_path / "a1.jsonl", "another")
    assert [Path(file).name for file in dataset_of(tmp_path, "a[1].jsonl").files] == ["a[1].jsonl"]


def test_the_meta_json_is_no_data_file_of_its_folder(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", "one")
    assert [Path(file).name for file in dataset_of(tmp_path, ".").files] == ["a.jsonl"]


@pytest.mark.parametrize("file_name", ["*.json", "**/*.json"])
def test_nor_is_it_like_a_pattern(tmp_path: Path, file_name: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps([said("one")]))
    assert [Path(file).name for file in dataset_of(tmp_path, file_name).files] == ["a.json"]


def test_a_link_to_a_folder_above_gives_nothing_again(folder: Path) -> None:
    expected = dataset_of(folder, "data").files
    (folder / "data" / "deep" / "up").symlink_to("..")
    (folder / "data" / "deep" / "here").symlink_to(".")
    assert dataset_of(folder, "data").files == expected


# Names of files, and how many of them are warned of.
SPLITS = {
    "none": (["train.jsonl", "latest.jsonl", "contest/a.jsonl", "device.jsonl"], 0),
    "in a name": (["train-00000-of-00001.jsonl", "test-00000-of-00001.jsonl"], 1),
    "of a folder": (["a.jsonl", "val/a.jsonl", "Validation_2/a.jsonl"], 2),
    "all": (["test_a.jsonl", "dev.jsonl"], 0),
}


@pytest.mark.parametrize("file_name", ["test", "test/**/*.jsonl"])
@pytest.mark.parametrize(("names", "number"), SPLITS.values(), ids=SPLITS)
def test_splits_in_a_folder_are_told(
    tmp_path: Path, names: list[str], number: int, file_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Who packs a folder of the hub would train on its test split, too. What the folder is called says nothing."""
    for name in names:
        put(tmp_path / "test" / name, "a")
    assert len(dataset_of(tmp_path, file_name).files) == len(names)
    named = [f"{number} of {len(names)} " in message and f"{tmp_path}/test/" in message for message in caplog.messages]
    assert named == [True] * bool(number)


@pytest.mark.parametrize(
    ("splits", "level"), [(["train", "test_sft"], "INFO"), (["train", "train_2", "test"], "WARNING"), (["train"], "")]
)
def test_splits_that_are_not_taken_are_told(
    tmp_path: Path, splits: list[str], level: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = datasets.Dataset.from_list([said("a")])
    datasets.DatasetDict(dict.fromkeys(splits, rows)).save_to_disk(str(tmp_path / "saved"))
    with caplog.at_level(logging.INFO, "neatpack"):
        dataset_of(tmp_path, "saved")
        told = [(record.levelname, record.message) for record in caplog.records]
        dataset_of(tmp_path, "saved", split="train")  # who says so knows
    assert len(caplog.records) == len(told) == bool(level)
    for logged, message in told:
        assert logged == level and f"{tmp_path}/saved" in message and ", ".join(splits[1:]) in message


def test_a_file_by_two_names_is_refused(folder: Path) -> None:
    """Its rows would come twice, and a link is the same file."""
    (folder / "link.jsonl").symlink_to(folder / "data" / "b.jsonl")
    with raises(UserError, "meta-duplicate", file=str(folder / "data" / "b.jsonl"), count=2):
        dataset_of(folder, ["data", "link.jsonl"])


def test_the_digest_of_one_file_is_its_own_and_of_several_that_of_all(folder: Path) -> None:
    def digest(file_name: Any) -> str:
        return source_in(dataset_of(folder, file_name), folder).digest

    one = digest("data/b.jsonl")
    assert one == digest(["data/b.jsonl"])
    both = digest(["data/b.jsonl", "data/deep/c.jsonl"])
    assert len({one, both, digest(["data/deep/c.jsonl", "data/b.jsonl"])}) == 3
    put(folder / "data" / "deep" / "c.jsonl", "other")
    assert digest(["data/b.jsonl", "data/deep/c.jsonl"]) != both


def test_packing_many_files(folder: Path) -> None:
    """Each row is in the ledger once, in the order of the files; what is wrong with one names its file."""
    with open(folder / "data" / "deep" / "c.jsonl", "a") as file:
        file.write("{broken\n")
    dataset_of(folder, "data")
    run_pack(tiny_config(folder / "meta.json", folder / "out"))
    lines = read_ledger(folder / "out", assert_verified(folder / "out")).to_pylist()
    assert [(line["row"], line["reason"]) for line in lines] == [*((row, "") for row in range(4)), (4, "bad_row")]
    assert "line 2" in lines[4]["detail"] and "c.jsonl" in lines[4]["detail"]
    online = make_meta_dataset(str(folder / "meta.json"))
    assert [example["conversation"][0]["content"][0]["text"] for example in online] == ["a0", "b0", "b1", "c0"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEATPACK_CACHE", str(tmp_path / "online"))


# ---------------------------------------------------------------- save_to_disk


def test_a_saved_data_set_in_shards(tmp_path: Path) -> None:
    words = [f"word {number}" for number in range(7)]
    given = datasets.Dataset.from_list([said(word) for word in words])
    given.save_to_disk(tmp_path / "saved", num_shards=3)
    dataset = dataset_of(tmp_path, "saved")
    assert len(dataset.files) == 3
    assert [word for *_, word in words_in(dataset, tmp_path)] == words
    # In a folder, what `datasets` writes about the data is no data.
    put(tmp_path / "more" / "z.jsonl", "last")
    (tmp_path / "saved").rename(tmp_path / "more" / "saved")
    assert [word for *_, word in words_in(dataset_of(tmp_path, "more"), tmp_path)] == [*words, "last"]


def test_splits_of_a_saved_data_set(tmp_path: Path) -> None:
    splits = {name: datasets.Dataset.from_list([said(f"{name} 0")]) for name in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    assert [word for *_, word in words_in(dataset_of(tmp_path, "saved"), tmp_path)] == ["train 0"]
    assert [word for *_, word in words_in(dataset_of(tmp_path, "saved", split="test"), tmp_path)] == ["test 0"]
    with raises(UserError, "dataset-unknown", split="dev", known=["train", "test"]):
        dataset_of(tmp_path, "saved", split="dev")


def test_a_saved_data_set_with_a_file_missing(tmp_path: Path) -> None:
    datasets.Dataset.from_list([said("a"), said("b")]).save_to_disk(tmp_path / "saved", num_shards=2)
    (tmp_path / "saved" / "data-00001-of-00002.arrow").unlink()
    with raises(UserError, "data-missing", file=str(tmp_path / "saved" / "data-00001-of-00002.arrow")):
        dataset_of(tmp_path, "saved")


@pytest.mark.parametrize("file_name", ["data", "data/**/*.*"])
def test_an_output_among_the_data_is_no_data(tmp_path: Path, file_name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Or the second run would take the first one's tables, shards and rewritten rows for rows."""
    put(tmp_path / "data" / "b.jsonl", "b0")
    (tmp_path / "data" / "a.json").write_text(json.dumps([said("a0")]))  # is rewritten, under OUT/work/imported
    (tmp_path / "meta.json").write_text(json.dumps({"all": {"file_name": file_name}}))
    out = tmp_path / "data" / "packed"
    config = tiny_config(tmp_path / "meta.json", out)
    expected = read_meta(tmp_path / "meta.json")[0].files
    run_pack(config)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert run_pack(config).already_done
    assert read_meta(tmp_path / "meta.json")[0].files == expected
    assert any(message.startswith(f"{out}: ") for message in caplog.messages), "it says what it leaves out"
    for path in (out / "manifest.json", out / "work" / "run.json"):  # as a run is killed before it knows its input
        path.unlink()
    assert read_meta(tmp_path / "meta.json")[0].files == expected


@pytest.fixture
def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Location:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    clients.connect.cache_clear()
    return Location.parse(s3.uri(""))


def test_an_output_among_the_data_in_a_bucket_is_no_data(
    tmp_path: Path, bucket: Location, caplog: pytest.LogCaptureFixture
) -> None:
    digest = "0123456789abcdef0123"
    for name in (
        "a.jsonl",
        "deep/b.jsonl",
        "deep/imported/2024/c.jsonl",  # a folder of data that is called so
        "deep/shards/d.jsonl",
        "done/manifest.json",
        "done/shards/pack-000000.tar",
        "done/stats/e.jsonl",
        f"deep/begun/work/imported/{digest}/rows.jsonl",
        f"work/measured/{digest}/f.jsonl",
    ):
        (bucket / "among" / name).write_bytes(b"{}\n")
    expected = [f"s3://bucket/among/{name}" for name in ("a.jsonl", "deep/b.jsonl", "deep/imported/2024/c.jsonl",
                                                         "deep/shards/d.jsonl")]  # fmt: skip
    for file_name in ("among/**/*.jsonl", "among/"):
        caplog.clear()
        assert list(dataset_of(tmp_path, (bucket / file_name).uri).files) == expected
        told = sorted(message.partition(": ")[0] for message in caplog.messages)
        assert told == [f"s3://bucket/among/{name}" for name in ("deep/begun", "done", "work")]
    caplog.clear()
    assert dataset_of(tmp_path, (bucket / "among" / "*.jsonl").uri).files == ("s3://bucket/among/a.jsonl",)
    # Who writes down the folder of an output means it.
    assert len(dataset_of(tmp_path, (bucket / "among" / "done" / "**" / "*.jsonl").uri).files) == 1
    assert not caplog.messages


@pytest.mark.parametrize("name", ["a.jsonl", "*.jsonl"])
def test_a_bucket_that_is_not_there(tmp_path: Path, bucket: Location, name: str) -> None:
    with raises(UserError, "data-missing") as caught:
        dataset_of(tmp_path, f"s3://absent-bucket/{name}")
    assert "'absent-bucket'" in str(caught.error)
    with raises(UserError, "data-missing") as caught:
        dataset_of(tmp_path, (bucket / "absent" / name).uri)
    assert (bucket / "absent" / name).uri in str(caught.error)
    with raises(UserError, "meta-unreadable", file="s3://absent-bucket/meta.json") as caught:
        read_meta(Location.parse("s3://absent-bucket/meta.json"))
    assert "'absent-bucket'" in str(caught.error)
    with pytest.raises(OutputError, match="'absent-bucket'"):
        Manifest.read(Location.parse("s3://absent-bucket/packed"))
    with pytest.raises(OutputError, match="'absent-bucket'"):
        PackedShards("s3://absent-bucket/packed")


@pytest.mark.parametrize("file_name", ["data", "data/**/*.jsonl"])
def test_a_link_that_leads_nowhere(folder: Path, file_name: str) -> None:
    (folder / "data" / "d.jsonl").symlink_to("/nowhere/d.jsonl")
    (folder / "data" / "deep" / "README.txt").symlink_to("/nowhere")  # no data
    with raises(UserError, "data-missing", file=f"{folder}/data/d.jsonl", target="/nowhere/d.jsonl"):
        dataset_of(folder, file_name)


def test_one_file_of_several_without_rows_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path / "a.jsonl", "a")
    (tmp_path / "b.jsonl").write_text("\n")
    (tmp_path / "meta.json").write_text(json.dumps({"all": {"file_name": ["a.jsonl", "b.jsonl"]}}))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out"))
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("all: ") and f"{tmp_path}/b.jsonl" in warning


def test_files_in_a_folder_whose_compression_is_not_read(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = dataset_of(folder, "data").files
    for name in ("c.jsonl.lz4", "deep/d.parquet.gz", "deep/e.txt.zip", "f.tar.idx", "g.jsonl.txt"):
        (folder / "data" / name).touch()
    assert dataset_of(folder, "data").files == expected
    assert [message.partition(": ")[0] for message in caplog.messages] == [
        f"{folder}/data/c.jsonl.lz4",
        f"{folder}/data/deep/d.parquet.gz",
    ]


def test_folders_of_data_are_not_taken_for_ours(tmp_path: Path) -> None:
    put(tmp_path / "data" / "imported" / "0123456789abcdef0123" / "a.jsonl", "a")
    put(tmp_path / "data" / "imported" / "2024" / "b.jsonl", "b")
    put(tmp_path / "data" / "shards" / "c.jsonl", "c")
    (tmp_path / "meta.json").write_text(json.dumps({"all": {"file_name": "data"}}))
    assert [Path(file).name for file in read_meta(tmp_path / "meta.json")[0].files] == ["a.jsonl", "b.jsonl", "c.jsonl"]
