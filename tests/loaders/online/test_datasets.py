"""make_meta_dataset: the same rows as packing takes, divided among ranks, and none lost in silence."""

import gzip
import inspect
import json
import logging
import pickle
import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from places import DEMO_PROCESSOR
from support.data import picture
from support.errors import logged, numbers_in, raises
from support.online_rows import Row, answers, jsonl, meta, nasty, row
from support.outputs import read_ledger
from support.packed import tiny_config
from torch.utils.data import DataLoader

from neatpack import UserError, run_pack
from neatpack.loaders import online
from neatpack.loaders.online import datasets
from neatpack.loaders.online.datasets import (
    _collect_sample_stats,
    _convert_sharegpt_to_conversation,
    _ExamplesWithStats,
    _load_json_or_jsonl,
    _load_jsonl_for_rank,
    make_meta_dataset,
)

pytestmark = pytest.mark.net


# ---------------------------------------------------------------- the reference's signatures


def test_signatures_are_the_documented_ones() -> None:
    def parameters(function: Any) -> list[Any]:
        """Those after the documented ones are keyword-only."""
        own = inspect.signature(function).parameters.values()
        return [(p.name, p.default) for p in own if p.kind is not p.KEYWORD_ONLY]

    empty = inspect.Parameter.empty
    assert parameters(make_meta_dataset) == [
        ("path_or_dataset", empty),
        ("dataset_names", None),
        ("split", "train"),
        ("shard_data", False),
        ("rank", None),
        ("world_size", None),
        ("kwargs", empty),
    ]
    assert parameters(_convert_sharegpt_to_conversation) == [
        ("example", empty),
        ("columns", None),
        ("tags", None),
        ("media_dir", None),
    ]
    assert [name for name, _ in parameters(_load_jsonl_for_rank)] == ["file_path", "sample_ratio", "rank", "world_size"]
    assert parameters(datasets._log_dataset_loading_summary)[3] == ("rank", None)


def test_examples_with_stats_is_a_list_with_one_more_slot() -> None:
    examples = _ExamplesWithStats([{"a": 1}])
    examples.stats = {"n_images": 2}
    assert examples == [{"a": 1}]
    assert _ExamplesWithStats.__slots__ == ("stats",)
    assert pickle.loads(pickle.dumps(examples)).stats == {"n_images": 2}  # a DataLoader's worker gets it so


# ---------------------------------------------------------------- one row


def test_convert() -> None:
    given = {
        "conversations": [{"from": "human", "value": "<image>\nWho?"}, {"from": "gpt", "value": "Tom."}],
        "image": "cat.jpg",
        "id": 7,
    }
    columns = {"messages": "conversations", "images": "image"}
    tags = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"}
    question = [{"type": "image", "image": "/data/cat.jpg"}, {"type": "text", "text": "Who?"}]
    assert _convert_sharegpt_to_conversation(given, columns, tags, "/data") == {
        "conversation": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": [{"type": "text", "text": "Tom."}]},
        ]
    }


def test_convert_keeps_what_was_precomputed() -> None:
    hints = {"_text_tokens": 3, "_media_tokens": 0, "mm_inputs_meta": {"images_meta": []}}
    converted = _convert_sharegpt_to_conversation(row("a", **hints, other=1))
    assert converted.keys() == {"conversation", *hints}
    assert {key: converted[key] for key in hints} == hints
    wrong = {"_text_tokens": "many", "_media_tokens": None, "mm_inputs_meta": [1]}
    assert _convert_sharegpt_to_conversation(row("a", **wrong)).keys() == {"conversation"}


def test_convert_says_what_is_wrong() -> None:
    with raises(ValueError, "row-invalid", reason="bad_placeholders"):
        _convert_sharegpt_to_conversation(row("a", "<image>q"))
    with raises(ValueError, "row-invalid", reason="bad_row"):
        _convert_sharegpt_to_conversation({})
    with raises(ValueError, "meta-unknown-key", key="columns.image"):
        _convert_sharegpt_to_conversation(row("a"), columns={"image": "x"})


# ---------------------------------------------------------------- files


def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    rows = [row("one"), row("two\u2028lines"), row("three")]  # U+2028 is no line break
    plain = jsonl(tmp_path / "a.jsonl", rows[0], "", rows[1], "  ", rows[2])
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.json", "a.jsonl.gz", "a.parquet"):
        assert _load_json_or_jsonl(str(tmp_path / name)) == rows, name
        assert _load_jsonl_for_rank(str(tmp_path / name), 1.0, 1, 2) == (rows[1:2], 3), name


def test_a_row_taken_twice_is_two_objects(tmp_path: Path) -> None:
    first, second = _load_jsonl_for_rank(str(jsonl(tmp_path / "a.jsonl", row("a"))), 2, 0, 1)[0]
    assert first == second
    assert first is not second


def test_broken_lines_of_other_ranks_are_not_parsed(tmp_path: Path) -> None:
    file = str(jsonl(tmp_path / "a.jsonl", row("0"), "{broken", row("2"), "[", row("4")))
    assert _load_jsonl_for_rank(file, 1.0, 0, 2) == ([row("0"), row("2"), row("4")], 5)
    with raises(UserError, "row-invalid", files=[file]):
        _load_jsonl_for_rank(file, 1.0, 1, 2)


@pytest.mark.parametrize(
    ("ratio", "taken"),
    [
        (0, ""),
        (1e-9, "0"),  # any ratio above 0 takes a row
        (0.5, "03"),  # Random(42).sample(range(4), 2)
        (1, "0123"),
        (2.5, "0123012303"),
    ],
)
def test_sample_ratio(tmp_path: Path, ratio: float, taken: str) -> None:
    jsonl(tmp_path / "a.jsonl", *(row(letter) for letter in "0123"))
    path = meta(tmp_path, a={"file_name": "a.jsonl", "sample_ratio": ratio})
    assert "".join(answers(make_meta_dataset(path))) == taken
    for world_size in (1, 2, 3, 20):  # 20: more ranks than rows
        shares = [make_meta_dataset(path, None, "train", True, rank, world_size) for rank in range(world_size)]
        each = len(taken) // world_size
        assert ["".join(answers(share)) for share in shares] == [taken[r::world_size][:each] for r in range(world_size)]
        assert {share.stats["n_rows"] for share in shares} == {4}


def test_rows_are_drawn_as_documented(tmp_path: Path) -> None:
    """Random(42).sample over all row numbers, in the order of the draw, and then [rank::world_size]."""
    file = str(jsonl(tmp_path / "a.jsonl", *(row(str(i)) for i in range(10))))
    drawn = random.Random(42).sample(range(10), 5)
    assert drawn == [1, 0, 4, 9, 6]
    for rank in (0, 1):
        found, total = _load_jsonl_for_rank(file, 0.5, rank, 2)
        assert ([int(each["messages"][1]["content"]) for each in found], total) == (drawn[rank::2], 10)
    path = meta(tmp_path, a={"file_name": "a.jsonl", "sample_ratio": 0.5})
    assert answers(make_meta_dataset(path)) == [str(number) for number in drawn]
    run_pack(tiny_config(Path(path), tmp_path / "out"))
    assert sorted(drawn) == [line["row"] for line in read_ledger(tmp_path / "out") if line["status"] == "packed"]


# ---------------------------------------------------------------- what code of the reference may replace


@pytest.fixture
def one(tmp_path: Path) -> str:
    jsonl(tmp_path / "a.jsonl", row("a"), row("b"))
    return meta(tmp_path, a={"file_name": "a.jsonl"})


def test_replaced_helpers_have_an_effect(one: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the names that are exported is the function that make_meta_dataset calls."""
    told: list[Any] = []
    monkeypatch.setattr(datasets, "_log_dataset_loading_summary", lambda *args: told.append(args))
    monkeypatch.setattr(datasets, "_collect_sample_stats", lambda examples: dict.fromkeys(datasets.STATS, 7))
    assert make_meta_dataset(one).stats["n_images"] == 7
    ((timings, wall_time, total_samples, rank),) = told
    assert (timings["a"]["n_samples"], total_samples, rank) == (2, 2, None)
    assert timings["a"]["io"] + timings["a"]["convert"] <= timings["a"]["total"] + 1e-6 <= wall_time + 1e-6

    def convert_one(example: Row, columns: Any = None, tags: Any = None, media_dir: Any = None) -> Row:
        assert (columns["messages"], tags["user_tag"], media_dir) == ("messages", "user", "")
        return {"conversation": [{"role": "assistant", "content": [{"type": "text", "text": "replaced"}]}]}

    with monkeypatch.context() as inside:
        inside.setattr(datasets, "_convert_sharegpt_to_conversation", convert_one)
        assert answers(make_meta_dataset(one)) == ["replaced"] * 2
    with monkeypatch.context() as inside:
        inside.setattr(datasets, "_load_json_or_jsonl", lambda file, **more: [row("loaded")])
        assert answers(make_meta_dataset(one)) == ["loaded"]
    monkeypatch.setattr(datasets, "_load_jsonl_for_rank", lambda *args, **more: ([row("of this rank")], 2))
    assert answers(make_meta_dataset(one, shard_data=True, rank=1, world_size=2)) == ["of this rank"]


def test_the_summary_of_the_documented_dict(caplog: pytest.LogCaptureFixture) -> None:
    timings = {
        "coco": {
            "io": 1.0,
            "convert": 0.5,
            "total": 1.5,
            "n_samples": 1200,
            "n_images": 900,
            "n_videos": 0,
            "n_text_only": 300,
        },
        "text": {"io": 0.1, "convert": 0.1, "total": 0.2, "n_samples": 5},
    }
    with caplog.at_level(logging.INFO, logger="neatpack.loaders.online.datasets"):
        datasets._log_dataset_loading_summary(timings, 2.0, 1205, rank=0)
        datasets._log_dataset_loading_summary({}, 0.0, 0)
    first, empty = caplog.messages
    title, _, _, coco, text, _, total = first.split("\n")
    assert numbers_in(title)[:2] == [2, 0]
    assert coco.split() == ["coco", "0", "1,200", "0", "900", "0", "0", "0", "1.5"]
    assert text.split() == ["text", "0", "5", "0", "0", "0", "0", "0", "0.2"]
    assert total.split() == ["total", "0", "1,205", "0", "900", "0", "0", "0", "2.0"]
    assert numbers_in(empty)[0] == 0


# ---------------------------------------------------------------- where media are


def images(examples: list[Row]) -> list[str]:
    return [example["conversation"][0]["content"][0]["image"] for example in examples]


def test_media_are_as_given_unless_there_is_a_media_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`file_name` starts at the meta file, wherever we are; a picture starts where we are."""
    (tmp_path / "data" / "pictures").mkdir(parents=True)
    (tmp_path / "here" / "films").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    jsonl(tmp_path / "data" / "a.jsonl", row("a", "<image>q", images=["sub/x.jpg"]))

    def found(**entry: Any) -> list[str]:
        return images(make_meta_dataset(meta(tmp_path / "data", a={"file_name": "a.jsonl", **entry})))

    assert found() == ["sub/x.jpg"]
    assert found(media_dir=str(tmp_path)) == [f"{tmp_path}/sub/x.jpg"]
    assert found(media_dir="pictures") == [f"{tmp_path}/data/pictures/sub/x.jpg"]
    assert found(media_dir="films") == [f"{tmp_path}/here/films/sub/x.jpg"]
    (tmp_path / "here" / "pictures").mkdir()
    assert found(media_dir="pictures") == [f"{tmp_path}/data/pictures/sub/x.jpg"]
    assert [record.args for record in caplog.records if record.levelno == logging.WARNING] == [
        ("a", f"{tmp_path}/data/pictures", f"{tmp_path}/here/pictures")
    ]


def test_unknown_keys_are_refused_unless_they_are_allowed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    jsonl(tmp_path / "a.jsonl", row("a"))
    path = meta(tmp_path, a={"file_name": "a.jsonl", "formatting": "sharegpt", "tags": {"observation_tag": "o"}})
    assert answers(make_meta_dataset(path, allow_unknown_keys=True)) == ["a"]
    assert "'formatting'" in caplog.text and "'observation_tag'" in caplog.text
    with raises(UserError, "meta-unknown-key", key="formatting"):
        make_meta_dataset(path)


def test_what_a_data_set_says_of_its_rows_is_heard_online(tmp_path: Path) -> None:
    """Also of rows of turns, which the function of that name converts."""
    jsonl(tmp_path / "a.jsonl", row("a", "Write <image>"), {**row("b"), "rejected_response": "c"})
    path = meta(tmp_path, a={"file_name": "a.jsonl", "placeholders": "text", "ignore_columns": ["rejected_response"]})
    assert answers(make_meta_dataset(path)) == ["a", "b"]
    assert answers(make_meta_dataset(meta(tmp_path, a={"file_name": "a.jsonl"}))) == []


def test_from_a_meta_json_to_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user of the reference does it, one import changed: meta, tokenizing wrapper, DataLoader, collate."""
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "x.png", 60, 84)
    seen = [{"type": "image", "image": "x.png", "resized_height": 112, "resized_width": 56},
            {"type": "text", "text": "What?"}]  # fmt: skip
    parts = {"messages": [{"role": "user", "content": seen}, {"role": "assistant", "content": "That."}]}
    prompt = {"messages": [{"role": "user", "content": "Only asked."}]}
    jsonl(tmp_path / "a.jsonl", row("a", "<image>q", images=["x.png"]), row("b"), parts, prompt)
    samples = online.PreTokenizedDatasetWrapper(
        make_meta_dataset(meta(tmp_path, a={"file_name": "a.jsonl"})), str(DEMO_PROCESSOR), max_retries=0
    )
    loader = DataLoader(samples, batch_size=4, collate_fn=partial(online.pad_collate_fn, processor=samples.processor))
    (batch,) = loader
    assert batch["image_grid_thw"].tolist()[:1] == [[1, 4, 6]]
    assert [1, 8, 4] in batch["image_grid_thw"].tolist()
    assert (batch["labels"] != -100).any(dim=1).tolist() == [True, True, True, False]


def test_stats(tmp_path: Path) -> None:
    examples = make_meta_dataset(nasty(tmp_path), dataset_names=["a"])
    # Twice each row, and once more Random(42).sample(range(7), 3): text, clip, sound.
    assert len(examples) == 13
    assert examples.stats == {
        "n_images": 2,
        "n_videos": 3,
        "n_text_only": 3 + 2,
        "n_text_tokens": 3 * 1 + 2 * 9 + 2 * 0 + 3 * 1 + 3 * 2,
        "n_media_tokens": 500 * 5,
        "n_missing_text_tokens": 11,
        "n_missing_mm_inputs_meta": 5,
        "n_rows": 7,
        "n_samples": 13,
        "n_skipped": 4,
        "skipped_by_reason": {"bad_row": 2, "bad_placeholders": 2},
    }


def test_stats_of_recorded_sizes() -> None:
    picture = {"role": "user", "content": [{"type": "image", "image": "x"}, {"type": "text", "text": "abc"}]}
    sized = {"conversation": [picture], "mm_inputs_meta": {"images_meta": [[640, 480]]}}
    counted = {"conversation": [picture], "_text_tokens": 5, "_media_tokens": 70}
    assert _collect_sample_stats([sized, counted]) == {
        "n_images": 2,
        "n_videos": 0,
        "n_text_only": 0,
        "n_text_tokens": 1 + 5,
        "n_media_tokens": 391 + 70,
        "n_missing_text_tokens": 1,
        "n_missing_mm_inputs_meta": 1,
    }
    assert set(_collect_sample_stats([]).values()) == {0}


def test_what_is_skipped_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="neatpack.loaders.online.datasets"):
        make_meta_dataset(nasty(tmp_path), "a")
    warning, summary = caplog.messages
    first, *details = warning.split("\n")
    assert first.startswith("a: ") and "2 bad_row, 2 bad_placeholders" in first and numbers_in(first)[:2] == [4, 17]
    assert details[0].startswith("  row 2: bad_row: ") and numbers_in(details[0])[:2] == [2, 3]
    assert details[1].startswith("  row 3: bad_placeholders: ") and numbers_in(details[1]) == [3, 1, 0]
    assert numbers_in(details[3]) == [1]
    title, head, _, line, _, total = summary.split("\n")
    assert numbers_in(title) == [1]
    assert head.split()[:6] == ["data", "set", "rows", "samples", "skipped", "images"]
    assert line.split()[:7] == ["a", "7", "13", "4", "2", "3", "30"]
    assert total.split()[:7] == ["total", *line.split()[1:7]]


def test_one_rank_speaks_for_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    jsonl(tmp_path / "a.jsonl", row("a"), row("b"))
    path = meta(tmp_path, a={"file_name": "a.jsonl"})
    with caplog.at_level(logging.DEBUG, logger="neatpack.loaders.online.datasets"):
        for rank in (0, 1):
            make_meta_dataset(path, shard_data=True, rank=rank, world_size=2)
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG"]


def test_lenient_placeholders(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", row("a", "<image>q"))
    path = meta(tmp_path, a={"file_name": "a.jsonl"})
    assert make_meta_dataset(path) == []
    (example,) = make_meta_dataset(path, placeholders="lenient", trust_remote_code=True)
    assert example["conversation"][0]["content"] == [{"type": "text", "text": "<image>q"}]
    with raises(UserError, "loader-argument", argument="placeholders", got="loose"):
        make_meta_dataset(path, placeholders="loose")


def test_an_empty_data_set(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.json").write_text("[]")
    path = meta(tmp_path, a={"file_name": "a.jsonl", "sample_ratio": 2.5}, b={"file_name": "b.json"})
    examples = make_meta_dataset(path, shard_data=True, rank=1, world_size=2)
    assert examples == []
    assert (examples.stats["n_samples"], examples.stats["skipped_by_reason"]) == (0, {})


def test_names(tmp_path: Path) -> None:
    for name in "ab":
        jsonl(tmp_path / f"{name}.jsonl", row(name))
    path = meta(tmp_path, a={"file_name": "a.jsonl"}, b={"file_name": "b.jsonl"})
    assert answers(make_meta_dataset(path)) == ["a", "b"]
    assert answers(make_meta_dataset(path, ["b", "a"])) == ["b", "a"]
    assert answers(make_meta_dataset(path, "b")) == ["b"]
    with raises(UserError, "dataset-unknown", dataset="c"):
        make_meta_dataset(path, ["a", "c"])
    with raises(UserError, "loader-argument", argument="dataset_names"):
        make_meta_dataset(path, [])


def test_rank_and_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    jsonl(tmp_path / "a.jsonl", *(row(letter) for letter in "0123"))
    path = meta(tmp_path, a={"file_name": "a.jsonl"})
    assert answers(make_meta_dataset(path, rank=1, world_size=2)) == [*"0123"]  # not sharded unless asked
    assert answers(make_meta_dataset(path, shard_data=True)) == [*"0123"]
    assert len(logged(caplog, "loaders.online.datasets")) == 1
    with raises(ValueError, "loader-argument", argument="rank", rank=2, world_size=2):
        make_meta_dataset(path, shard_data=True, rank=2, world_size=2)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    assert answers(make_meta_dataset(path, shard_data=True)) == ["1"]
    assert answers(make_meta_dataset(path, shard_data=True, rank=0)) == ["0"]
    assert answers(make_meta_dataset(path, shard_data=True, world_size=2)) == ["1", "3"]


def test_weights_are_for_packing(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    with raises(UserError, "option-conflict", dataset="a", key="weight"):
        make_meta_dataset(meta(tmp_path, a={"file_name": "rows.jsonl", "weight": 1}))
