"""Statistics of an output: what data sets have adds up to the index, and media have the sizes that they had."""

import pyarrow.parquet as pq
import pytest
from support.commands import assert_verified
from support.data import TinyData
from support.packed import tiny_config

from neatpack import run_pack

pytestmark = pytest.mark.net


def test_sums_of_data_sets_are_those_of_the_index(tiny: TinyData, tmp_path):
    for number in range(3):
        tiny.text(f"Count to {number}.", "one two three")
    tiny.image(40, 60).image(300, 200)
    run_pack(tiny_config(tiny.write(ratio=2.0), tmp_path / "out"))
    (line,) = pq.read_table(tmp_path / "out/stats/datasets.parquet").to_pylist()
    index = pq.read_table(tmp_path / "out/index.parquet").to_pydict()
    num_fakes = sum(count > 0 for count in index["fake_tokens"])
    assert line["num_images"] == 4 == sum(index["num_images"]) - num_fakes
    assert line["target_tokens"] == sum(index["target_tokens"]) > 0
    assert (line["num_videos"], line["num_audios"]) == (0, 0)


def test_sizes_of_media(tiny: TinyData, tmp_path):
    tiny.image(40, 60).image(300, 200).image(40, 60).text("a", "b")
    run_pack(tiny_config(tiny.write(ratio=2.0), tmp_path / "out"))
    small, large = pq.read_table(tmp_path / "out/stats/media.parquet").to_pylist()
    of = {"dataset": "tiny", "kind": "image"}
    assert small == of | {"height": 40, "width": 60, "resized_height": 56, "resized_width": 84, "num_media": 4}
    assert large == of | {"height": 300, "width": 200, "resized_height": 252, "resized_width": 168, "num_media": 2}
    assert_verified(tmp_path / "out")


def test_sizes_of_no_media(tiny: TinyData, tmp_path):
    run_pack(tiny_config(tiny.text("a", "b").write(), tmp_path / "out"))
    assert len(pq.read_table(tmp_path / "out/stats/media.parquet")) == 0
