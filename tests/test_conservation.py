"""Whatever rows a data set has, in whichever format: every row is in the ledger, once per repetition, and no other."""

import dataclasses
import json

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from support.commands import assert_verified
from support.conversations_drawn import LIKELY
from support.packed import tiny_config

from neatpack import run_pack

pytestmark = pytest.mark.net
ANY = st.one_of(
    st.none(), st.integers(), st.text(max_size=5), st.just("{broken"), st.just({}), st.just({"text": 7, "images": "x"}),
    st.dictionaries(st.sampled_from(["messages", "texts", "text", "image", "conversations"]), st.text(max_size=3)),
)  # fmt: skip


@pytest.mark.parametrize("name", LIKELY)
@settings(max_examples=6)
@given(data=st.data(), ratio=st.sampled_from([0.4, 1.0, 1.7]))
def test_rows_in_are_rows_out(name, data, ratio, tmp_path_factory):
    rows = data.draw(st.lists(st.one_of(LIKELY[name], LIKELY[name], ANY), max_size=12))
    folder = tmp_path_factory.mktemp("rows")
    lines = [row if row == "{broken" else json.dumps(row) for row in rows]
    (folder / "rows.jsonl").write_text("".join(line + "\n" for line in lines))
    meta = {"any": {"file_name": "rows.jsonl", "format": name, "sample_ratio": ratio}}
    (folder / "meta.json").write_text(json.dumps(meta))
    counts = run_pack(tiny_config(folder / "meta.json", folder / "out", pack_size=64)).manifest.counts
    assert assert_verified(folder / "out").counts == dataclasses.asdict(counts)
    ledger = pq.read_table(folder / "out" / "ledger").to_pylist()
    assert {line["row"] for line in ledger} == set(range(len(rows)))
    places = [(line["row"], line["repeat"]) for line in ledger]
    assert len(set(places)) == len(places) == counts.samples == counts.packed + sum(counts.skipped.values())
    ids = {number: row.get("id", "") if isinstance(row, dict) else "" for number, row in enumerate(rows)}
    assert all(line["id"] == ids[line["row"]] for line in ledger if line["reason"] != "sampled_out")
