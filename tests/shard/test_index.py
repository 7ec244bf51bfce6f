"""index.arrow: written piece by piece, read at once, and bounded by the manifest."""

import numpy as np
import pyarrow as pa
import pytest
from helpers import many_packs
from support.errors import raises

from jobs.scale.loader import make_output
from neatpack import PackedShards
from neatpack.errors import ItemError, OutputError
from neatpack.format.index import PackIndex, write_loader_index
from neatpack.format.manifest import Manifest
from neatpack.pipeline.shard.tables import read_table


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return many_packs(tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """2,500 packs in shards of 700; nothing is in them."""
    folder = tmp_path_factory.mktemp("large")
    make_output(folder, 2500, 700)
    return folder


def index_of(folder) -> PackIndex:
    return PackIndex((folder / "index.arrow").read_bytes(), Manifest.read(folder), "out")


@pytest.mark.parametrize("length", [1, 7, 1000])
def test_index_in_pieces_gives_the_same_bytes(out, tmp_path, monkeypatch, length):
    manifest = Manifest.read(out)
    index = read_table(out, manifest, "index.parquet")
    pieces = [index.slice(first, length) for first in range(0, len(index), length)]
    assert write_loader_index(tmp_path, pieces) == {"index.arrow": manifest.files["index.arrow"]}
    assert (tmp_path / "index.arrow").read_bytes() == (out / "index.arrow").read_bytes()
    monkeypatch.setattr("neatpack.format.index.PER_BATCH", 4)
    write_loader_index(tmp_path, pieces)
    file = pa.ipc.open_file((tmp_path / "index.arrow").read_bytes())
    assert file.num_record_batches == -(-len(index) // 4)
    cut, whole = PackIndex((tmp_path / "index.arrow").read_bytes(), manifest, "out"), index_of(out)
    assert [cut.locate(pack) for pack in range(len(index))] == [whole.locate(pack) for pack in range(len(index))]


def test_places_are_those_of_index_parquet(out):
    index = index_of(out)
    for line in read_table(out, Manifest.read(out), "index.parquet").to_pylist():
        place = index.locate(line["pack"])
        assert (place.offset, place.bytes, place.crc32) == (line["offset"], line["bytes"], line["crc32"])
        assert line["shard"] == f"pack-{place.shard:06d}.tar" and place.tokens == line["tokens"]
        assert place.counts == (line["num_images"], line["num_videos"], line["num_audios"])


def test_packs_are_numbered_over_all_shards(large):
    index = index_of(large)
    assert [index.locate(pack).shard for pack in (0, 699, 700, 2099, 2100, 2499)] == [0, 0, 1, 2, 3, 3]
    assert [index.locate(pack).offset for pack in (0, 700, 2100)] == [0, 0, 0]
    assert index.locate(1024).offset == index.locate(1023).offset + index.locate(1023).bytes
    for pack in (-1, 2500):
        with raises(ItemError, "document-unknown", out="out", pack=pack, packs=2500):
            index.locate(pack)


def test_index_of_another_output_is_rejected(out, large):
    with raises(OutputError, "output-damaged", file="index.arrow", out="out"):
        PackIndex((out / "index.arrow").read_bytes(), Manifest.read(large), "out")


def test_the_order_of_made_up_packs(large):
    packs = PackedShards(large, seed=3)
    assert sorted(packs.order().tolist()) == list(range(2500))
    visual_tokens, tokens = packs.reader.loads()
    assert visual_tokens.dtype == tokens.dtype == np.int32 and len(tokens) == 2500
