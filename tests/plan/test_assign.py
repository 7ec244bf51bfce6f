"""From the token store to a plan: every line is packed once or skipped with a reason."""

import mmap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers import corpus_of, plan_of
from support.errors import raises

from neatpack.pipeline.codecs import stored_shares
from neatpack.pipeline.config import PackConfig, UserError
from neatpack.pipeline.ingest.lines import Part
from neatpack.pipeline.measure.store import MeasuredPart, write_measured
from neatpack.pipeline.plan.assign import (
    SCHEMA,
    TEXT,
    Plan,
    TakenPart,
    aligned,
    in_pack_order,
    make_plan,
    pack_bytes,
    replaced,
    shard_starts,
    shares_of,
)
from neatpack.pipeline.records import Measured, Skip

FAMILY: Any = SimpleNamespace(fake_image_ids=np.array([7, 8, 9]))  # three tokens that a pack without media keeps free


def rows(*tokens: int | Skip, visual: int = 0) -> dict[int, Measured | Skip]:
    """Rows 0, 1, … of so many tokens, `visual` of each visual."""
    return {
        row: count if isinstance(count, Skip) else Measured(
            ids=np.zeros(count + 1, np.int32), targets=np.zeros((0, 2), np.int32), media=(), tokens=count,
            visual_tokens=visual, media_bytes=0,
        )
        for row, count in enumerate(tokens)
    }  # fmt: skip


@pytest.fixture
def planned(tmp_path: Path) -> Any:
    """The plan of one corpus whose rows are measured like this; `copies`: one of each unless said otherwise."""

    def plan(measured: dict[int, Measured | Skip], copies: list[int] | None = None, **config: Any) -> Plan:
        path = tmp_path / "000000.arrow"
        write_measured(path, list(measured), [""] * len(measured), list(measured.values()))
        settings: dict[str, Any] = {"pack_size": 16, "group_size": 1, "fake_image": False} | config
        corpus = corpus_of("tiny", copies or [1] * len(measured))
        part = Part(file="absent", start=0, end=0, first_row=0, num_rows=corpus.num_rows, first_line=1)
        taken = TakenPart.of(0, MeasuredPart(corpus=0, part=part, path=path), [corpus])
        return make_plan([taken], shares_of([corpus]), FAMILY, PackConfig(**settings))

    return plan


def places(plan: Plan) -> list[tuple[int, int, int, int]]:
    """(row, repeat, pack, position) of each line."""
    return [(line["row"], line["repeat"], line["pack"], line["position"]) for line in plan.table.to_pylist()]


def reasons(plan: Plan) -> list[tuple[int, str, str]]:
    return [(line["row"], line["reason"], line["detail"]) for line in plan.table.to_pylist() if line["reason"]]


def test_rows_that_fit_share_a_pack(planned: Any) -> None:
    assert places(planned(rows(6, 4, 3))) == [(0, 0, 0, 0), (1, 0, 0, 1), (2, 0, 0, 2)]


def test_rows_that_do_not_fit_get_packs_of_their_own(planned: Any) -> None:
    plan = planned(rows(9, 9))
    assert plan.num_packs == 2
    assert sorted(line["pack"] for line in plan.table.to_pylist()) == [0, 1]
    assert plan.per_pack("tokens").tolist() == [9, 9]
    assert plan.starts.tolist() == [0, 1, 2]


def test_a_row_is_taken_as_often_as_its_corpus_says(planned: Any) -> None:
    """Row 1 is sampled out, so it was not even measured."""
    measured = rows(3, 3, 3)
    del measured[1]
    assert places(planned(measured, copies=[2, 0, 1])) == [(0, 0, 0, 0), (0, 1, 0, 1), (2, 0, 0, 2)]


def test_skipped_rows_come_last_with_their_reason(planned: Any) -> None:
    plan = planned(rows(Skip(reason="bad_row", detail="line 1: broken JSON"), 5, Skip(reason="no_target", detail="")))
    assert places(plan) == [(1, 0, 0, 0), (0, 0, -1, -1), (2, 0, -1, -1)]
    assert reasons(plan) == [(0, "bad_row", "line 1: broken JSON"), (2, "no_target", "")]
    assert plan.skip_counts() == {"bad_row": 1, "no_target": 1}
    assert len(plan.packed) == 1


def test_a_pack_without_media_keeps_room_for_the_fake_image(planned: Any) -> None:
    """16 tokens less 3 hold 13."""
    plan = planned(rows(13, 14), fake_image=True)
    assert places(plan)[0] == (0, 0, 0, 0)
    assert reasons(plan) == [(1, "overlong", "14 tokens, a pack holds 13")]
    assert reasons(planned(rows(14, visual=1), fake_image=True)) == []


def test_alignment_counts_against_the_capacity(planned: Any) -> None:
    """9 and 5 tokens are 14; padded to multiples of 8 they are 16 and 8."""
    assert planned(rows(9, 5)).num_packs == 1
    assert planned(rows(9, 5), align=8).num_packs == 2
    assert aligned(np.array([5, 8]), 4).tolist() == [8, 8]


def test_an_overlong_row_is_refused_by_name(planned: Any) -> None:
    with raises(UserError, "overlong", dataset="tiny", row=1, tokens=17, room=16):
        planned(rows(3, 17), overlong="error")


def test_too_many_visual_tokens(planned: Any) -> None:
    plan = planned(rows(6, visual=5), max_visual_tokens=4)
    assert reasons(plan) == [(0, "too_many_visual_tokens", "5 visual tokens, a pack may hold 4")]


def test_packs_beyond_the_most_are_skipped(planned: Any) -> None:
    plan = planned(rows(9, 9, 9), max_packs=1)
    assert plan.num_packs == 1
    assert plan.skip_counts() == {"max_packs": 2}


def test_rows_above_the_packing_ratio_are_alone(planned: Any) -> None:
    """Half of 32: rows of 10 share no pack, a row of 20 gets one of its own, the last."""
    plan = planned(rows(20, 6, 10), pack_size=32, packing_ratio=0.5)
    assert plan.per_pack("tokens").tolist() == [16, 20]


def test_sounds_are_a_load_of_their_own(planned: Any) -> None:
    """Four sounds and four texts of 8 tokens, two to a pack: without its tokens a sound would be a text."""
    measured = rows(*[8] * 8)
    heard = {row: replace(each, audio_tokens=6) if row < 4 else each for row, each in measured.items()}  # type: ignore[type-var]
    plan = planned(heard)
    assert plan.per_pack("audio_tokens").tolist() == [6, 6, 6, 6]
    assert sorted(planned(measured).per_pack("audio_tokens").tolist()) == [0, 0, 0, 0]


def test_the_order_is_by_the_costs_that_are_given(planned: Any) -> None:
    """Packs of one row each; by default they are paired by pictures, and where those cost nothing, by length."""
    lengths = {0: 12, 1: 16, 2: 12, 3: 16}
    measured = {row: replace(rows(count)[0], visual_tokens=8 - row // 2 * 4) for row, count in lengths.items()}  # type: ignore[type-var]

    def pairs(**config: Any) -> list[list[int]]:
        pack = {line["pack"]: line["row"] for line in planned(measured, group_size=2, **config).table.to_pylist()}
        return sorted(sorted(pack[number] for number in pair) for pair in ((0, 1), (2, 3)))

    assert pairs(cost="tokens=0,square=0") == [[0, 1], [2, 3]]
    assert pairs(cost="tokens=1,visual=0,square=0") == [[0, 2], [1, 3]]


def test_no_rows_no_packs(planned: Any) -> None:
    plan = planned({})
    assert (plan.num_packs, plan.starts.tolist(), plan.skip_counts()) == (0, [0], {})
    assert shard_starts(plan, 1 << 20) == [0]


def test_a_pack_is_a_run_of_lines() -> None:
    plan = plan_of({"pack": 0, "row": 4}, {"pack": 0, "row": 2}, {"pack": 1, "row": 7}, {"pack": -1, "row": 1})
    assert [[line["row"] for line in plan.lines_in_pack(number)] for number in range(2)] == [[4, 2], [7]]


def test_shards_are_cut_by_bytes() -> None:
    """21 bytes a token, its media, and 16384 of headers: packs of 18,484, 20,384 and 18,484 bytes."""
    plan = plan_of(
        {"pack": 0, "tokens": 100}, {"pack": 1, "tokens": 100, "media_bytes": 1900}, {"pack": 2, "tokens": 100}
    )
    assert pack_bytes(plan).tolist() == [18_484, 20_384, 18_484]
    assert shard_starts(plan, 40_000) == [0, 2, 3]
    assert shard_starts(plan, 1) == [0, 1, 2, 3]  # a pack above the size is a shard of its own


def test_shards_are_cut_by_what_codecs_leave_of_media() -> None:
    """Of 1 MB of pictures 0.12 MB where they are kept as they came, of 1 MB of video 0.55; and 16,384 of headers."""
    million = 1_000_000
    plan = plan_of(
        {"pack": 0, "media_bytes": million, "picture_bytes": million},
        {"pack": 1, "media_bytes": million},
        {"pack": 2, "media_bytes": 2 * million, "picture_bytes": million},
    )
    assert pack_bytes(plan, stored_shares("")).tolist() == [136_384, 566_384, 686_384]
    assert pack_bytes(plan, stored_shares("u8")).tolist() == pack_bytes(plan).tolist() == [1_016_384] * 2 + [2_016_384]
    assert pack_bytes(plan, stored_shares("image=zstd,video=u8")).tolist() == [566_384, 1_016_384, 1_566_384]
    assert shard_starts(plan, million, stored_shares("")) == [0, 2, 3]


def test_texts_of_more_than_two_gib() -> None:
    """Two details of 1.1 GiB, as in parts of the token store: a column of Arrow's usual text cannot hold both.

    They are not put in order here, which would take 2.2 GiB and many seconds: it is the type of the columns that can,
    and every text is of it, before and after.
    """
    size = 1100 << 20
    zeros = pa.py_buffer(mmap.mmap(-1, size))  # pages that nobody has written take no memory
    offsets = pa.py_buffer(np.array([0, size], np.int32))
    long = pa.StringArray.from_buffers(1, offsets, zeros)
    details = pa.chunked_array([long, long])
    with pytest.raises(pa.ArrowInvalid, match="offset overflow"):
        details.take(pa.array([1, 0]))
    assert pa.types.is_large_string(TEXT) and not any(pa.types.is_string(field.type) for field in SCHEMA)
    values = ["a", "b"]
    columns = {field.name: pa.array(values if field.type == TEXT else [0, 1], field.type) for field in SCHEMA}
    plan = in_pack_order(pa.table(columns), np.array([1, 0]))
    assert plan.table.schema.types == SCHEMA.types
    assert plan.table["detail"].to_pylist() == values[::-1]
    assert plan.table["row"].to_pylist() == [1, 0]


def test_texts_are_replaced_at_their_places() -> None:
    texts = pa.chunked_array([["a", "b"], ["c", "d"]], TEXT)
    assert replaced(texts, np.array([1, 2]), ["B", "C"]).to_pylist() == ["a", "B", "C", "d"]
    assert replaced(texts, np.array([], np.int64), []).to_pylist() == ["a", "b", "c", "d"]
