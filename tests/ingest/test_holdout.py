"""Which rows are held out: by what a row says, whatever is around it and wherever it lies."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from neatpack.pipeline.ingest.holdout import held_out, row_hash
from neatpack.pipeline.ingest.imported import lines_of
from neatpack.pipeline.ingest.lines import part_ranges, scan, source_of
from neatpack.pipeline.ingest.meta import Columns, Dataset, Tags

PLAIN = Dataset(name="plain", files=("rows.jsonl",))
TAGGED = Dataset(
    name="tagged",
    files=("other.jsonl",),
    columns=Columns(messages="conversations", images="image"),
    tags=Tags(role_tag="from", content_tag="value", user_tag="human", assistant_tag="gpt"),
)


def said(question: str, **columns: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "Yes."}]
    return {"messages": turns, **columns}


def hash_of(row: Any, dataset: Dataset = PLAIN) -> int:
    return row_hash(json.dumps(row).encode(), dataset)


def held(dataset: Dataset, folder: Path, share: float) -> list[bool]:
    """Of each row of a data set."""
    lines = lines_of(dataset, folder / "imported")
    ranges = part_ranges(lines)
    source = source_of(lines, ranges, scan(lines, ranges))
    return [bool(each) for part in source.parts for each in held_out(dataset, part, share)]


def chosen(questions: list[str], folder: Path, share: float = 0.5) -> set[str]:
    """Those of a file of questions that are held out."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(said(question)) + "\n" for question in questions))
    found = held(Dataset(name="a", files=(str(file),)), folder, share)
    return {question for question, is_held in zip(questions, found, strict=True) if is_held}


def test_the_choice_is_for_ever() -> None:
    """Rows that one version holds out must be held out by the next, too: never change what is hashed."""
    hashed = (
        '[[["user", "<image>\\u00e9?"], ["assistant", "Yes."]], ["cat.png"], [], []]'  # turns, images, videos, audios
    )
    assert hash_of(said("<image>é?", images=["cat.png"])) == int(hashlib.sha256(hashed.encode()).hexdigest()[:16], 16)
    assert hash_of(said("<image>é?", images=["cat.png"])) == 14212657592511034588


@given(
    questions=st.lists(st.text(max_size=6), unique=True, max_size=30),
    more=st.lists(st.text(min_size=7, max_size=9)),
    order=st.randoms(use_true_random=False),
)
def test_other_rows_do_not_matter(
    questions: list[str], more: list[str], order: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Added, moved and removed ones."""
    folder = tmp_path_factory.mktemp("rows")
    first = chosen(questions, folder)
    moved = [*questions, *more]
    order.shuffle(moved)
    assert chosen(moved, folder) & set(questions) == first
    kept = moved[: len(moved) // 2]
    assert chosen(kept, folder) & set(questions) == first & set(kept)


def test_the_share_is_as_asked_and_a_larger_one_holds_out_the_same_and_more(tmp_path: Path) -> None:
    questions = [f"question {number}" for number in range(20_000)]
    shares = (0.0, 0.01, 0.1, 0.5)
    sets = [chosen(questions, tmp_path, share) for share in shares]
    # Of a fair draw, the standard deviations are 0, 14, 42 and 71.
    for share, found, leeway in zip(shares, sets, (0, 56, 168, 284), strict=True):
        assert abs(len(found) - 20_000 * share) <= leeway
    assert sets[0] < sets[1] < sets[2] < sets[3]


def test_a_copy_goes_where_the_row_goes() -> None:
    row = said("<image>Who?", images=["cat.png"])
    turns = [{"from": "human", "value": "<image>Who?", "id": 3}, {"value": "Yes.", "from": "gpt"}]
    copies: list[tuple[Any, Dataset]] = [
        (dict(reversed(row.items())), PLAIN),
        (row | {"id": 7, "_text_tokens": 12}, PLAIN),
        (row | {"images": "cat.png", "videos": None, "audios": []}, PLAIN),
        (row | {"messages": [turn | {"content": turn["content"], "name": None} for turn in row["messages"]]}, PLAIN),
        ({"conversation": row["messages"], "images": ["cat.png"]}, PLAIN),
        ({"conversations": turns, "image": ["cat.png"]}, TAGGED),
    ]
    assert {hash_of(*copy) for copy in copies} == {hash_of(row)}
    line = b' {"messages": [{"role":"user","content":"\\u00e9"},{"role":"assistant","content":"Yes."}] }\r\n'
    assert row_hash(line, PLAIN) == hash_of(said("é"))


def test_what_says_something_else_is_another_row() -> None:
    rows = [
        said("<image>Who?", images=["cat.png"]),
        said("<image>Who?", images=["dog.png"]),
        said("<image>Who?", videos=["cat.png"]),
        said("<image>Who? ", images=["cat.png"]),
        said("<image>Who?"),
        {"messages": said("<image>Who?")["messages"][::-1], "images": ["cat.png"]},
    ]
    assert len({hash_of(row) for row in rows}) == len(rows)


@pytest.mark.parametrize(
    "line",
    [
        b"{broken",
        b"[1, 2]",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b"9" * 5000,
        b'{"messages": 7}',
        b'{"a": "\\ud83d"}',
    ],
)
def test_bad_rows_are_rows_too(line: bytes) -> None:
    """They are skipped where they come out, and that place must be one."""
    assert row_hash(line, PLAIN) == row_hash(b" " + line + b"\r\n", PLAIN) != row_hash(b"{other", PLAIN)


def parquet(path: Path, pictures: list[bytes]) -> Dataset:
    rows = [said(f"<image>Number {len(bytes_)}?", images=[{"bytes": bytes_}]) for bytes_ in pictures]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return Dataset(name="embedded", files=(str(path),))


def test_embedded_media_count_by_their_bytes_not_by_their_place(tmp_path: Path) -> None:
    """In a rewriting they are places in one file, which every row before moves, and whose path is that of the run."""
    pictures = [bytes([number]) * number for number in range(1, 41)]
    found = held(parquet(tmp_path / "a.parquet", pictures), tmp_path / "a", 0.5)
    assert 0 < sum(found) < 40
    assert held(parquet(tmp_path / "b.parquet", pictures[::-1]), tmp_path / "b", 0.5) == found[::-1]
    assert held(parquet(tmp_path / "c.parquet", pictures[7:]), tmp_path / "c", 0.5) == found[7:]
    others = [bytes([number + 100]) * number for number in range(1, 41)]
    assert held(parquet(tmp_path / "d.parquet", others), tmp_path / "d", 0.5) != found
    assert (tmp_path / "a/imported").exists()


def test_the_kind_of_file_does_not_matter(tmp_path: Path) -> None:
    """Arrow fills the keys that only other parts have with null."""
    parts: list[Any] = [{"type": "image", "image": "cat.png"}, {"type": "text", "text": "Who?"}]
    rows = [said("") for _ in range(40)]
    for number, row in enumerate(rows):
        row["messages"][0]["content"] = [*parts, {"type": "text", "text": f"{number}"}]
        row["messages"][1]["content"] = [{"type": "text", "text": "Tom."}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.json").write_text(json.dumps(rows, indent=1))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    found = [
        held(Dataset(name=name, files=(str(tmp_path / name),)), tmp_path, 0.5)
        for name in ("a.jsonl", "b.json", "c.parquet")
    ]
    assert found[0] == found[1] == found[2] and 0 < sum(found[0]) < 40
