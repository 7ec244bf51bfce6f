"""Packs of a finished output by number: local shards are mapped, remote ones read by range."""

import hashlib
import io
import json
import mmap
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyarrow import fs

from ..pipeline.layout import MediaArray, layout_of
from ..pipeline.manifest import FILE as MANIFEST, Manifest, OutputError, missing_manifest
from ..pipeline.shard.codec import read_array


class ShardReader:
    """Reads OUT, a local directory or a URI (s3://bucket/out). Cheap to pickle: files are opened where they are used.

    check: "none"; "sizes" compares the size of every shard with the manifest; "full" its sha256.
    """

    def __init__(self, out: str | Path, *, check: str = "sizes") -> None:
        if check not in ("none", "sizes", "full"):
            raise ValueError(f"check is {check!r}; it must be none, sizes or full")
        self.out = str(out)
        self.is_local = "://" not in self.out
        self.manifest = self._read_manifest()
        content = self._read_file("index.parquet")
        if hashlib.sha256(content).hexdigest() != self.manifest.files["index.parquet"]:
            raise OutputError(f"{self.out}/index.parquet: sha256 differs from the manifest's; run `neatpack verify`")
        index = pq.read_table(io.BytesIO(content))
        self.packs = index["pack"].to_numpy()
        self.visual_tokens, self.tokens = (
            index[name].to_numpy().astype(np.int64) for name in ("visual_tokens", "tokens")
        )
        self._shard = index["shard"].to_pylist()
        self._offset, self._bytes = index["offset"].to_numpy(), index["bytes"].to_numpy()
        # Every pack has the same members in the same order, so their places are two matrices.
        self.members: list[str] = [place["name"] for place in index["members"][0].as_py()] if len(index) else []
        places = index["members"].combine_chunks().flatten()
        shape = (len(index), len(self.members))
        self._starts, self._sizes = (places.field(name).to_numpy().reshape(shape) for name in ("offset", "size"))
        if check != "none":
            self._check_shards(full=check == "full")

    @property
    def group_size(self) -> int:
        return int(self.manifest.identity.config["group_size"])

    @property
    def layout(self) -> dict[str, MediaArray]:
        """What the media arrays are."""
        return layout_of(self.manifest.family)

    def pixel_tables(self) -> dict[str, np.ndarray]:
        """float32 [channels, 256]: what each stored byte stands for, in images and in videos."""
        tables = self.manifest.pixels.tables
        return {kind: np.load(io.BytesIO(self._read_file(name)), allow_pickle=False) for kind, name in tables.items()}

    def content(self, pack: int) -> memoryview:
        """The bytes of a pack: a view of the mapped shard, or one ranged read."""
        row = self._row(pack)
        start, size = int(self._offset[row]), int(self._bytes[row])
        name = f"shards/{self._shard[row]}"
        if self.is_local:
            return memoryview(_mapped(f"{self.out}/{name}"))[start : start + size]
        filesystem, path = _filesystem(self.out, os.getpid())
        with filesystem.open_input_file(f"{path}/{name}") as file:
            # pyarrow's buffer is read-only, and torch wants to be able to write
            return memoryview(bytearray(file.read_at(size, start)))

    def members_of(self, pack: int, content: memoryview) -> dict[str, memoryview]:
        """The members of a pack, as views of its bytes."""
        row = self._row(pack)
        starts, sizes = (self._starts[row] - self._offset[row]).tolist(), self._sizes[row].tolist()
        places = zip(self.members, starts, sizes, strict=True)
        return {name: content[start : start + size] for name, start, size in places}

    def arrays(self, pack: int, content: memoryview) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of a pack, as views of its bytes, and its JSON."""
        members = self.members_of(pack, content)
        header = json.loads(bytes(members.pop("json")))
        return {name.removesuffix(".npy"): read_array(member) for name, member in members.items()}, header

    def _row(self, pack: int) -> int:
        row = int(np.searchsorted(self.packs, pack))
        if row == len(self.packs) or self.packs[row] != pack:
            raise IndexError(f"pack {pack} is not in {self.out}, which has {len(self.packs)} packs")
        return row

    def _read_manifest(self) -> Manifest:
        try:
            content = self._read_file(MANIFEST)
        except FileNotFoundError:
            raise missing_manifest(self.out) from None
        return Manifest.parse(content, self.out)

    def _read_file(self, name: str) -> bytes:
        if self.is_local:
            return Path(self.out, name).read_bytes()
        filesystem, path = _filesystem(self.out, os.getpid())
        with filesystem.open_input_stream(f"{path}/{name}") as file:
            content: bytes = file.read()
        return content

    def _check_shards(self, *, full: bool) -> None:
        for shard in self.manifest.shards:
            name = f"shards/{shard.name}"
            size = self._file_size(name)
            if size != shard.bytes:
                found = "is missing" if size is None else f"has {size} bytes, the manifest {shard.bytes}"
                raise OutputError(f"{self.out}/{name} {found}; run `neatpack verify`, and pack again what is broken")
            if full and hashlib.sha256(self._read_file(name)).hexdigest() != shard.sha256:
                raise OutputError(f"{self.out}/{name}: sha256 differs from the manifest's; pack again")

    def _file_size(self, name: str) -> int | None:
        if self.is_local:
            path = Path(self.out, name)
            return path.stat().st_size if path.is_file() else None
        filesystem, base = _filesystem(self.out, os.getpid())
        info = filesystem.get_file_info(f"{base}/{name}")
        return info.size if info.is_file else None


@lru_cache(maxsize=4096)
def _mapped(path: str) -> mmap.mmap:
    """A shard in memory, shared with every process that reads it. Copy-on-write: nobody can damage the file."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


@lru_cache(maxsize=8)
def _filesystem(uri: str, _process: int) -> tuple[fs.FileSystem, str]:
    """One per process: clients of object stores have threads, which a forked worker does not inherit."""
    filesystem, path = fs.FileSystem.from_uri(uri)
    return filesystem, path
