"""Packs of a finished output by number: read from local shards, from remote ones by range or through a cache.

Read, not mapped: a mapped file that somebody cuts, or a file system that fails, ends the process by a signal, without a
word; a read says what happened. What is read is the item's own, so whoever writes to it changes no later epoch. It
costs one copy: about 3 ms for a pack of 16 MB.
"""

import hashlib
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from torch.utils.data import get_worker_info

from ..pipeline.layout import MediaArray, layout_of, misfit
from ..pipeline.manifest import (
    FILE as MANIFEST,
    PLACES,
    REMEDY,
    Manifest,
    OutputError,
    ShardEntry,
    ShardError,
    missing_manifest,
    shard_name,
)
from ..pipeline.records import TOKEN_TYPES
from ..pipeline.runtime.objects import Opened, Remote
from ..pipeline.runtime.storage import inside, open_regular, parse_json, place, read_into, sizes_in
from ..pipeline.shard.codec import read_arrays, text_problem
from ..pipeline.shard.restoring import PixelDecoder
from .cache import ShardCache
from .opened import FileVersion, in_advance, opened_local, opened_remote
from .pixels import read_tables
from .places import PackPlaces

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

CHECKS = ("none", "sizes", "packs", "full")
SIZED_AT_ONCE = 4096  # local shards: 20 ms, and 0.8 s for 156,250; what is read is compared in any case
LISTED = 16  # of more remote shards than this, the sizes are taken from a listing
SHARDS_AHEAD = 2  # whole shards that a reader with a cache downloads ahead of need
DECODE_THREADS = 4  # of a process, unless it is told
CHUNK = 16 << 20  # a shard is downloaded by ranges of this size,
CHUNKS_AT_ONCE = 4  # several at once: a single connection to an object store does not fill the network
SAME_BYTES, WELL_FORMED, SAME_PIXELS = 1, 2, 4  # what is known of a pack in this process


class ShardReader:
    """Reads OUT, a local directory or a URI (s3://bucket/out). Cheap to pickle: files are opened where they are used.

    check: "none"; "sizes" compares the size of every shard with the manifest, at once; "packs" does so, too (of more
        than 4,096 local shards it only looks whether they are there, and compares the size of each where it is read),
        and compares the crc32 of every pack when it is read: of a local one when it is first read by a process, and
        again if its file was touched since; "full" compares all sizes and the sha256 of every shard, at once, too.
    cache, cache_gb: a folder on this node's disk for whole shards of a remote output, and its size in GB (10^9 bytes).
    decode_threads: of a process, restore the media of a pack beside each other, where these are not stored as they are;
        0: whoever asks for the pack does it. Default: 4, but none in a loader's worker, for there are several of those.

    Manifest, index and pixel tables are checked always. What is not as it was written is an OutputError; of a shard or
    a pack, a ShardError that names it.
    """

    def __init__(
        self,
        out: str | Path,
        *,
        check: str = "packs",
        cache: str | Path | None = None,
        cache_gb: float | None = None,
        decode_threads: int | None = None,
    ) -> None:
        if decode_threads is not None and decode_threads < 0:
            raise ValueError(f"decode_threads is {decode_threads}; it must be at least 0")
        self._decode_threads = decode_threads
        if check not in CHECKS:
            raise ValueError(f"check is {check!r}; it must be one of {', '.join(CHECKS)}")
        if (cache is None) != (cache_gb is None):
            raise ValueError(f"cache={cache!r}, cache_gb={cache_gb!r}: give both, or neither")
        self._place = place(out)
        self.out = str(self._place)  # as messages have it
        self.is_local = isinstance(self._place, Path)
        self.manifest = self._read_manifest()
        try:
            self.layout: dict[str, MediaArray] = layout_of(self.manifest.family)  # what the media arrays are
            self._pixels = PixelDecoder(self.manifest)
        except ValueError as error:
            raise OutputError(f"{self.out}/{MANIFEST}: {error}; pack again") from None
        self._places = PackPlaces(self.manifest, self.out, self._read_part, self._read_checked)
        if self.is_local and self.manifest.index is not None:
            self._read_part(PLACES, 0, 0)  # whether it is there; what is in it is looked at where it is needed
        self.cache: ShardCache | None = None
        self._warned: set[int | None] = set()
        if cache is not None and cache_gb is not None and not self.is_local:
            self.cache = self._open_cache(cache, cache_gb)
        self._compares = check in ("packs", "full")
        self._known = bytearray(self.num_packs)  # by pack: SAME_BYTES, WELL_FORMED
        # A FileVersion for every local shard, as it was when last looked at; zeros: not yet.
        self._versions = np.zeros((len(self.manifest.shards) if self.is_local else 0, 4), np.uint64)
        if check != "none":
            self._check_shards(check)

    @property
    def num_packs(self) -> int:
        return self.manifest.shards.num_packs

    @property
    def packs(self) -> np.ndarray:
        """Their numbers: from 0 on, without a gap."""
        return np.arange(self.num_packs)

    @property
    def members(self) -> tuple[str, ...]:
        """Of every pack, in the order of the tar."""
        return self._places.members

    @property
    def times(self) -> list[tuple[int, float]]:
        """A pack, and how often it and those after it come in an epoch."""
        return self._places.times

    def loads(self) -> tuple[np.ndarray, np.ndarray]:
        """Visual tokens and tokens of every pack, int32; read anew each time."""
        return self._places.loads()

    @property
    def group_size(self) -> int:
        return int(self.manifest.identity.config["group_size"])

    def pixel_tables(self) -> dict[str, np.ndarray]:
        """float32 [channels, 256]: what each stored byte stands for, in images and in videos."""
        return read_tables(self.manifest, self._read_checked, self.out)

    def content(self, pack: int) -> memoryview:
        """The bytes of a pack, the caller's own: one read of the shard, or one ranged read of a remote one."""
        return self._content(pack, self._opened(self._places.of(pack).shard))

    def contents(self, packs: Iterable[int], prefetch: int) -> Iterator[tuple[int, memoryview]]:
        """Packs with their bytes, in this order. Remote ones are read ahead: `prefetch` packs, or whole shards."""
        if self.is_local or not prefetch:
            yield from ((pack, self.content(pack)) for pack in packs)
        elif self.cache is None:
            yield from in_advance(lambda pack: (pack, self.content(pack)), packs, prefetch)
        else:
            # Open as soon as it is there, a shard stays until its packs are read, even if it is evicted meanwhile.
            runs = ((shard, list(run)) for shard, run in groupby(packs, lambda pack: self._places.of(pack).shard))
            for run, file in in_advance(lambda run: (run[1], self._opened(run[0])), runs, SHARDS_AHEAD):
                content = partial(self._content, file=file)
                read = in_advance(content, run, prefetch) if file is None else map(content, run)
                yield from zip(run, read, strict=True)

    def _content(self, pack: int, file: BinaryIO | None) -> memoryview:
        """`file`: the shard; None: it is remote."""
        found = self._places.of(pack)
        if file is not None and self.is_local:
            self._notice_changes(found.shard, file)
        content = np.empty(found.bytes, np.uint8).data
        if file is None:
            try:
                read = self._remote(f"shards/{shard_name(found.shard)}").read_at(found.bytes, found.offset)
            except FileNotFoundError:
                raise self._wrong_size(self.manifest.shards[found.shard], None) from None
            got = len(read)
            content[:got] = read  # bytes are read-only, and torch wants to be able to write
        else:
            try:
                got = read_into(file, content, found.offset)
            except OSError as error:
                raise self._broken(pack, f"cannot be read: {error}") from error
        if got != found.bytes:
            raise self._broken(pack, f"the file ends {found.bytes - got} bytes before it does")
        if self._compares and not self._known[pack] & SAME_BYTES:
            if (crc32 := zlib.crc32(content)) != found.crc32:
                raise self._broken(pack, f"its crc32 is {crc32:08x}, by the index {found.crc32:08x}")
            if file is not None:  # what comes over a network is another copy each time
                self._known[pack] |= SAME_BYTES
        return content

    def _version(self, shard: int) -> FileVersion:
        if not self._versions[shard].any():
            self._versions[shard] = FileVersion.of(Path(self.out, "shards", shard_name(shard)).stat())
        return FileVersion(*self._versions[shard].tolist())

    def _notice_changes(self, shard: int, file: BinaryIO) -> None:
        """Of a shard that is no longer the file that it was, packs are compared again."""
        version, shards = FileVersion.of(os.fstat(file.fileno())), self.manifest.shards
        if version.bytes != shards.bytes[shard]:
            raise self._wrong_size(shards[shard], version.bytes)
        if version == self._version(shard):
            return
        name = shard_name(shard)
        if not self._compares:
            raise ShardError(
                f"{self.out}/shards/{name}: replaced or written to since this loader has looked at it; start it "
                'again, or let it compare packs (check="packs")', name,
            )  # fmt: skip
        first, end = shards.firsts[shard : shard + 2]
        self._known[first:end] = bytes(end - first)
        self._versions[shard] = version

    def _opened(self, shard: int) -> BinaryIO | None:
        """A shard as a local file; None: it is remote, and there is no cache, or the cache cannot take it."""
        if self.is_local:
            name = shard_name(shard)
            try:
                return opened_local(self.out, f"shards/{name}", self._version(shard))
            except FileNotFoundError:
                raise self._wrong_size(self.manifest.shards[shard], None) from None
            except (OSError, ValueError) as error:
                raise ShardError(f"{self.out}/shards/{name}: cannot be read: {error}", name) from error
        if self.cache is None:
            return None
        entry = self.manifest.shards[shard]
        try:
            return self.cache.opened(entry, self.out, partial(self._download, entry))
        except OSError as error:  # a full disk must not end a training; what else is wrong, the ranged read will say
            if error.errno not in self._warned:
                self._warned.add(error.errno)
                where = self.cache.folder
                logger.warning("%s: %s; reading by range what the cache cannot take (warned of once)", where, error)
            return None

    def _download(self, shard: ShardEntry) -> Iterator[bytes]:
        file = self._remote(f"shards/{shard.name}")
        if file.size != shard.bytes:
            raise self._wrong_size(shard, file.size)
        return in_advance(lambda start: file.read_at(CHUNK, start), range(0, shard.bytes, CHUNK), CHUNKS_AT_ONCE)

    def _open_cache(self, folder: str | Path, gb: float) -> ShardCache:
        sizes = self.manifest.shards.bytes
        largest = max(sizes, default=0)
        if largest > gb * 1e9:
            name = shard_name(sizes.index(largest))
            raise ValueError(
                f"cache_gb={gb}: the largest shard of {self.out}, {name}, has {largest / 1e9:.3f} GB; "
                "give room for several shards per loader worker, or no cache"
            )
        return ShardCache(folder, int(gb * 1e9))

    def members_of(self, pack: int, content: memoryview) -> dict[str, memoryview]:
        """The members of a pack, as views of its bytes."""
        found = self._places.of(pack)
        places = zip(self.members, found.starts, found.sizes, strict=True)
        return {name: content[start : start + size] for name, start, size in places}

    def arrays(self, pack: int, content: memoryview) -> dict[str, np.ndarray]:
        """The arrays of a pack, as views of its bytes where these are stored as they are."""
        compare = self._compares and not self._known[pack] & SAME_PIXELS
        try:
            arrays = self._pixels.restored(
                read_arrays(self.members_of(pack, content)), compare=compare, threads=self._threads_here()
            )
        except ValueError as error:
            raise self._broken(pack, str(error), self._pixels.remedy(error, self.out)) from None
        if compare:
            self._known[pack] |= SAME_PIXELS
        if not self._known[pack] & WELL_FORMED:
            if problem := self._misfit(pack, arrays):
                raise self._broken(pack, problem)
            self._known[pack] |= WELL_FORMED
        return arrays

    def _misfit(self, pack: int, arrays: dict[str, np.ndarray]) -> str:
        """What makes arrays unfit for a pack of this output, whoever wrote them and their checksums."""
        family, tokens = self.manifest.family, self._places.of(pack).tokens
        if problem := text_problem(arrays, family["position_axes"], family["position_dtype"]):
            return problem
        if len(arrays["input_ids"]) != tokens:
            return f"{len(arrays['input_ids'])} tokens, by the index {tokens}"
        counts = zip(TOKEN_TYPES, self._places.of(pack).counts, strict=True)
        return misfit(arrays, self.layout, {kind: [count] for kind, count in counts})

    def header(self, pack: int, content: memoryview) -> dict[str, Any]:
        """The JSON of a pack."""
        try:
            header = parse_json(bytes(self.members_of(pack, content)["json"]))
        except ValueError as error:
            raise self._broken(pack, f"json: {error}") from None
        if not isinstance(header, dict):
            raise self._broken(pack, "json: no object")
        return header

    def counts(self, pack: int) -> dict[str, int]:
        """num_images, num_videos and num_audios of a pack, from the index: parsing its JSON would take longer."""
        counts = zip(TOKEN_TYPES, self._places.of(pack).counts, strict=True)
        return {f"num_{kind}s": count for kind, count in counts}

    def _threads_here(self) -> int:
        if self._decode_threads is not None:
            return self._decode_threads
        return 0 if get_worker_info() is not None else min(DECODE_THREADS, os.cpu_count() or 1)

    def _broken(self, pack: int, words: str, remedy: str = REMEDY) -> ShardError:
        name = shard_name(self._places.of(pack).shard)
        if self.cache is not None and remedy == REMEDY:
            remedy = f"empty the cache {self.cache.folder}, or {REMEDY}"
        return ShardError(f"{self.out}/shards/{name}, pack {pack}: {words}; {remedy}", name, pack)

    def _read_manifest(self) -> Manifest:
        try:
            content = self._read_file(MANIFEST)
        except FileNotFoundError:
            raise missing_manifest(self.out) from None
        return Manifest.parse(content, self.out)

    def _read_checked(self, name: str) -> bytes:
        """A file that the manifest has the digest of."""
        try:
            content = self._read_file(name)
        except FileNotFoundError:
            raise OutputError(f"{self.out}/{name} is missing; {REMEDY}") from None
        if hashlib.sha256(content).hexdigest() != self.manifest.files[name]:
            raise OutputError(f"{self.out}/{name}: sha256 differs from the manifest's; {REMEDY}")
        return content

    def _read_part(self, name: str, offset: int, size: int) -> bytes | memoryview:
        """Bytes of a file from a place on; fewer, if it ends before."""
        if not self.is_local:
            return self._remote(name).read_at(size, offset)
        content = np.empty(size, np.uint8).data
        try:
            version = FileVersion.of(Path(self.out, name).stat())
            return content[: read_into(opened_local(self.out, name, version), content, offset)]
        except FileNotFoundError:
            raise OutputError(f"{self.out}/{name} is missing; {REMEDY}") from None
        except (OSError, ValueError) as error:
            raise OutputError(f"{self.out}/{name}: cannot be read: {error}; {REMEDY}") from error

    def _read_file(self, name: str) -> bytes:
        """Raises FileNotFoundError if it is not there."""
        try:
            return inside(self._place, name).read_bytes()
        except NotADirectoryError:
            raise FileNotFoundError(name) from None
        except ValueError as error:
            raise OutputError(str(error)) from None
        except IsADirectoryError:
            raise OutputError(f"{self.out}/{name}: a directory, expected a file; {REMEDY}") from None

    def _remote(self, name: str) -> Opened:
        assert isinstance(self._place, Remote), "a local output is read otherwise"
        return opened_remote(self._place / name)

    def _check_shards(self, check: str) -> None:
        shards, full = self.manifest.shards, check == "full"
        if self.is_local and check == "packs" and len(shards) > SIZED_AT_ONCE:
            self._check_names()
            return
        sizes = self._local_sizes() if self.is_local else self._remote_sizes()
        for number, (expected, size) in enumerate(zip(shards.bytes, sizes, strict=True)):
            if size != expected:
                raise self._wrong_size(shards[number], size)
            if full and self._sha256(number) != shards[number].sha256:
                name = shard_name(number)
                raise ShardError(f"{self.out}/shards/{name}: sha256 differs from the manifest's; {REMEDY}", name)

    def _sha256(self, shard: int) -> str:
        entry, digest = self.manifest.shards[shard], hashlib.sha256()
        if self.is_local:
            with open_regular(inside(Path(self.out), f"shards/{entry.name}"))[0] as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        for chunk in self._download(entry):
            digest.update(chunk)
        return digest.hexdigest()

    def _wrong_size(self, shard: ShardEntry, size: int | None) -> ShardError:
        found = "is missing" if size is None else f"has {size} bytes, the manifest {shard.bytes}"
        return ShardError(f"{self.out}/shards/{shard.name} {found}; {REMEDY}", shard.name)

    def _check_names(self) -> None:
        """That every shard is there, by the listing of the folder alone."""
        found = self._listed(lambda entry: None)
        for number in range(len(self.manifest.shards)):
            if shard_name(number) not in found:
                raise self._wrong_size(self.manifest.shards[number], None)

    def _listed(self, what: Callable[[os.DirEntry[str]], Result]) -> dict[str, Result]:
        """Of every file among the shards, by its name."""
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(Path(self.out, "shards")) as entries:
            return {entry.name: what(entry) for entry in entries if entry.is_file()}
        return {}

    def _local_sizes(self) -> Iterator[int | None]:
        """Of every shard; None: it is missing. They are remembered as they are now."""
        found = self._listed(lambda entry: FileVersion.of(entry.stat()))
        for number in range(len(self.manifest.shards)):
            version = found.get(shard_name(number))
            if version is not None:
                self._versions[number] = version
            yield None if version is None else version.bytes

    def _remote_sizes(self) -> Iterator[int | None]:
        """A listing tells a thousand sizes at a time. Of few shards each is asked for: that opens it, once for all."""
        if len(self.manifest.shards) > LISTED:
            found = sizes_in(self._place / "shards")
            yield from (found.get(shard_name(number)) for number in range(len(self.manifest.shards)))
            return
        for number in range(len(self.manifest.shards)):
            try:
                yield self._remote(f"shards/{shard_name(number)}").size
            except FileNotFoundError:
                yield None
