"""What test_stats.py proves by internals."""

import numpy as np
import pyarrow as pa

from neatpack.pipeline.shard.stats import SUMMED, shard_stats


def test_shards_are_in_their_order():
    names = [f"pack-{number:06d}.tar" for number in range(12)]
    columns = {name: [1] * 24 for name in ("pack", *SUMMED)} | {"shard": np.repeat(names, 2), "members": [[]] * 24}
    stats = shard_stats(pa.table(columns))
    assert stats["shard"].to_pylist() == names
    assert stats["num_packs"].to_pylist() == [2] * 12
