"""The loader's files of the index: written piece by piece, and read batch by batch."""

import numpy as np
import pyarrow as pa
import pytest
from helpers import many_packs
from support.errors import raises

from jobs.scale.loader import make_output
from neatpack import PackedShards
from neatpack.errors import ItemError, OutputError
from neatpack.format.index import parse_batch, runs, write_places
from neatpack.loaders.places import PackPlaces
from neatpack.loaders.reader import ShardReader
from neatpack.pipeline.shard.tables import read_table


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return many_packs(tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """2,500 packs, in three batches and shards of 700; nothing is in them."""
    folder = tmp_path_factory.mktemp("large")
    make_output(folder, 2500, 700)
    return folder


@pytest.mark.parametrize("length", [1, 7, 1000])
def test_an_index_in_pieces_gives_the_same_bytes(out, tmp_path, monkeypatch, length):
    """Cut where the pieces end or elsewhere, which is not to be seen."""
    reader = ShardReader(out)
    index = read_table(out, reader.manifest, "index.parquet")
    pieces = [index.slice(first, length) for first in range(0, len(index), length)]
    assert write_places(tmp_path, pieces, len(reader.members))[0] == reader.manifest.index
    for name in ("index.arrow", "loads.arrow"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()
    monkeypatch.setattr("neatpack.format.index.PACKS_PER_BATCH", 4)
    monkeypatch.setattr("neatpack.format.index.LOADS_PER_BATCH", 4)
    small, _ = write_places(tmp_path, pieces, len(reader.members))
    assert len(small.crc32) == -(-len(index) // 4)
    for name in ("index.arrow", "loads.arrow"):
        whole, cut = (pa.ipc.open_file((folder / name).read_bytes()).read_all() for folder in (out, tmp_path))
        assert cut.equals(whole) and len(whole) == len(index)


def test_places_are_those_of_index_parquet(out):
    reader = ShardReader(out)
    for line in read_table(out, reader.manifest, "index.parquet").to_pylist():
        place = reader._places.of(line["pack"])
        assert (place.offset, place.bytes, place.crc32) == (line["offset"], line["bytes"], line["crc32"])
        assert line["shard"] == f"pack-{place.shard:06d}.tar" and place.tokens == line["tokens"]
        assert place.counts == [line["num_images"], line["num_videos"], line["num_audios"]]
        members = zip(reader.members, place.starts, place.sizes, strict=True)
        assert line["members"] == [
            {"name": name, "offset": place.offset + start, "size": size} for name, start, size in members
        ]


def test_only_the_batches_that_are_needed_are_read(large):
    """Each once; and what is wrong with others is not found."""
    reader = ShardReader(large)
    asked = []

    def read(name, offset, size):
        asked.append((name, offset))
        return reader._files.read_part(name, offset, size)

    places = PackPlaces(reader.manifest, "large", read, reader._files.read_checked)
    offsets = reader.manifest.index.offsets
    assert asked == [] and len(offsets) == 4
    assert [places.of(pack).shard for pack in (0, 699, 700, 1023)] == [0, 0, 1, 1]
    assert asked == [("index.arrow", offsets[0])]
    assert places.of(1024).offset == places.of(1023).offset + places.of(1023).bytes
    assert [place.shard for place in (places.of(2048), places.of(2499))] == [2, 3]
    assert asked == [("index.arrow", offset) for offset in offsets[:3]]
    with raises(ItemError, "document-unknown", out="large", pack=2500, packs=2500):
        places.of(2500)


def test_a_batch_in_another_place_is_refused(large):
    """Shards that begin or end in other batches are checked as far as the batch goes."""
    reader = ShardReader(large)
    contents = [
        bytes(reader._files.read_part("index.arrow", first, 200_000)) for first in reader.manifest.index.offsets[:3]
    ]
    for number, content in enumerate(contents):
        assert len(parse_batch(content, number, reader.manifest, "out").shard) == (1024, 1024, 452)[number]
        with pytest.raises(OutputError) as caught:
            parse_batch(content, (number + 1) % 3, reader.manifest, "out")
        assert (caught.value.fields["out"], caught.value.fields["file"]) == ("out", "index.arrow")


def test_the_order_of_made_up_packs(large):
    packs = PackedShards(large, seed=3)
    assert sorted(packs.order().tolist()) == list(range(2500))
    visual_tokens, tokens = packs.reader.loads()
    assert visual_tokens.dtype == tokens.dtype == np.int32 and len(tokens) == 2500


def test_runs():
    assert runs(np.array([1.0, 1.0, 2.5, 2.5, 1.0])) == [(0, 1.0), (2, 2.5), (4, 1.0)]
    assert runs(np.array([2.5, 1.0]), 2.5) == [(1, 1.0)]
    assert runs(np.array([])) == []
