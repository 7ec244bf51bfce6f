"""What tests of the cache of remote shards share."""

import torch
from support.outputs import read_manifest

from neatpack import PackedShards

PATIENCE = 300  # seconds until a process that says nothing is taken for stuck


def cached(store, folder, *, out="out", gb=1.0, **options):
    return PackedShards(store.uri(out), cache=folder, cache_gb=gb, check="none", **options)


def shards_of(bucket):
    return read_manifest(bucket / "out").shards


def kept(folder):
    return {path.name for path in folder.iterdir()} - {".lock"}


def names(shards):
    return {f"{shard.sha256}.tar" for shard in shards}


def assert_same(items, others):
    for ours, theirs in zip(items, others, strict=True):
        assert ours.keys() == theirs.keys() and ours["pack"] == theirs["pack"]
        assert all(torch.equal(ours[key], theirs[key]) for key in ours if isinstance(ours[key], torch.Tensor))
