"""Packs of a finished output by number: read from local shards, from remote ones by range or through a cache."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from zlib_ng import zlib_ng

from neatpack.errors import OutputError, ShardError, UserError, fields_of
from neatpack.format.layout import TOKEN_TYPES, MediaArray, Misfit, layout_of, misfit
from neatpack.format.manifest import FILE as MANIFEST, PLACES, REMEDY, SOURCE, shard_name
from neatpack.format.members import read_arrays, text_problem
from neatpack.format.pixels import PixelDecoder, PixelsChangedError
from neatpack.storage.files import parse_json, read_into

from .files import OutputFiles
from .opened import in_advance
from .pixels import load_renderer, read_tables
from .places import PackPlaces

CHECKS = ("none", "sizes", "packs", "full")
SHARDS_AHEAD = 2  # whole shards that a reader with a cache downloads ahead of need
SAME_BYTES, WELL_FORMED, SAME_PIXELS = 1, 2, 4  # what is known of a pack in this process


class ShardReader:
    """Reads OUT, a local directory or a URI (s3://bucket/out). Cheap to pickle: files are opened where they are used.

    check: "none"; "sizes" compares the size of every shard with the manifest, at once; "packs" does so, too (of more
        than 4,096 local shards it only looks whether they are there, and compares the size of each where it is read),
        and compares the crc32 of every pack when it is read: of a local one when it is first read by a process, and
        again if its file was touched since; "full" compares all sizes and the sha256 of every shard, at once, too.
    cache, cache_gb: a folder on this node's disk for whole shards of a remote output, and its size in GB (10^9 bytes).

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
    ) -> None:
        if check not in CHECKS:
            raise UserError(
                f"check is {check!r}; it must be one of {', '.join(CHECKS)}",
                code="loader-argument",
                argument="check",
                got=check,
            )
        self._files = OutputFiles(out, cache, cache_gb)
        self.manifest = self._files.manifest
        try:
            self.layout: dict[str, MediaArray] = layout_of(self.manifest.family)  # what the media arrays are
            self._pixels = PixelDecoder(self.manifest, load_renderer)
        except ValueError as error:
            raise OutputError(
                f"{self.out}/{MANIFEST}: {error}; pack again", code="output-damaged", out=str(self.out), file=MANIFEST
            ) from None
        self._places = PackPlaces(self.manifest, self.out, self._files.read_part, self._files.read_checked)
        if self.is_local and self.manifest.index is not None:
            self._files.read_part(PLACES, 0, 0)  # whether it is there; what is in it is looked at where it is needed
        self._compares = check in ("packs", "full")
        self._known = bytearray(self.num_packs)  # by pack: SAME_BYTES, WELL_FORMED
        if check != "none":
            self._files.check_shards(at_once=check != "packs", full=check == "full")

    @property
    def out(self) -> str:
        """As messages have it."""
        return self._files.out

    @property
    def is_local(self) -> bool:
        return self._files.is_local

    @property
    def has_cache(self) -> bool:
        return self._files.cache is not None

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
        return read_tables(self.manifest, self._files.read_checked, self.out)

    def content(self, pack: int) -> memoryview:
        """Read the bytes of a pack, by one read of the shard or one ranged request."""
        return self.read(pack, self.open(pack))

    def open(self, pack: int) -> BinaryIO | None:
        """Open the shard of a pack as a local file; None: it is remote and not in a cache."""
        return self._files.opened(self._places.of(pack).shard)

    def open_ahead(self, packs: Iterable[int]) -> Iterator[tuple[int, BinaryIO | None]]:
        """Pair packs with the open files of their shards. A cache downloads whole shards ahead of them."""
        if not self.has_cache:
            yield from ((pack, None) for pack in packs)
            return
        # The open file stays readable even if the cache evicts the shard before its packs are read.
        runs = ((shard, list(run)) for shard, run in groupby(packs, lambda pack: self._places.of(pack).shard))
        for run, file in in_advance(lambda run: (run[1], self._files.opened(run[0])), runs, SHARDS_AHEAD):
            yield from ((pack, file) for pack in run)

    def read(self, pack: int, file: BinaryIO | None) -> memoryview:
        """Read the bytes of a pack and compare their crc32. They are the caller's own, in any thread.

        Args:
            pack: its number.
            file: its shard; None: read it by range, or from the local output.
        """
        found = self._places.of(pack)
        if file is None and self.is_local:
            file = self._files.opened(found.shard)
        if file is not None and self.is_local:
            self._notice_changes(found.shard, file)
        content = self._read(pack, file)
        if self._compares and not self._known[pack] & SAME_BYTES:
            if (crc32 := zlib_ng.crc32(content)) != found.crc32:
                raise self._broken(
                    pack, f"its crc32 is {crc32:08x}, by the index {found.crc32:08x}", got=crc32, expected=found.crc32
                )
            if file is not None:  # each download is another copy
                self._known[pack] |= SAME_BYTES
        return content

    def _read(self, pack: int, file: BinaryIO | None) -> memoryview:
        found = self._places.of(pack)
        content = np.empty(found.bytes, np.uint8).data
        if file is None:
            read = self._files.read_range(found.shard, found.offset, found.bytes)
            got = len(read)
            content[:got] = read  # bytes are read-only, and torch needs writable memory
        else:
            try:
                got = read_into(file, content, found.offset)
            except OSError as error:
                raise self._broken(pack, f"cannot be read: {error}") from error
        if got != found.bytes:
            raise self._broken(
                pack, f"the file ends {found.bytes - got} bytes before it does", missing=found.bytes - got
            )
        return content

    def _notice_changes(self, shard: int, file: BinaryIO) -> None:
        """Of a shard that is no longer the file that it was, packs are compared again."""
        if (version := self._files.changed(shard, file)) is None:
            return
        if not self._compares:
            name = shard_name(shard)
            raise ShardError(
                f"{self.out}/shards/{name}: replaced or written to since this loader has looked at it; start it "
                'again, or let it compare packs (check="packs")', name, out=self.out, check=False,
            )  # fmt: skip
        first, end = self.manifest.shards.firsts[shard : shard + 2]
        self._known[first:end] = bytes(end - first)
        self._files.remember(shard, version)

    def check_decoder(self) -> None:
        """Restore the pack with the fewest visual tokens if images are stored as original files, and compare it.

        Otherwise a decoder that gives other pixels than when they were packed is found in the middle of a training.
        """
        if self._compares and SOURCE in self._pixels.codecs.values():
            visual, _ = self.loads()
            if len(seen := np.flatnonzero(visual)):
                pack = int(seen[visual[seen].argmin()])
                self.arrays(pack, self.content(pack))

    def members_of(self, pack: int, content: memoryview) -> dict[str, memoryview]:
        """The members of a pack, as views of its bytes."""
        found = self._places.of(pack)
        places = zip(self.members, found.starts, found.sizes, strict=True)
        return {name: content[start : start + size] for name, start, size in places}

    def arrays(self, pack: int, content: memoryview) -> dict[str, np.ndarray]:
        """Return the arrays of a pack, as views of its bytes where these are stored as they are."""
        compare = self._compares and not self._known[pack] & SAME_PIXELS
        try:
            arrays = self._pixels.restore(read_arrays(self.members_of(pack, content)), compare=compare)
        except ValueError as error:
            code = error.code if isinstance(error, PixelsChangedError) else "shard-damaged"
            remedy = self._pixels.find_remedy(error)
            raise self._broken(pack, str(error), remedy, code=code, **fields_of(error)) from None
        if compare:
            self._known[pack] |= SAME_PIXELS
        if not self._known[pack] & WELL_FORMED:
            if problem := self._misfit(pack, arrays):
                raise self._broken(pack, problem, array=problem.array)
            self._known[pack] |= WELL_FORMED
        return arrays

    def _misfit(self, pack: int, arrays: dict[str, np.ndarray]) -> Misfit:
        """What makes arrays unfit for a pack of this output, whoever wrote them and their checksums."""
        family, tokens = self.manifest.family, self._places.of(pack).tokens
        if problem := text_problem(arrays, family["position_axes"], family["position_dtype"]):
            return problem
        if len(arrays["input_ids"]) != tokens:
            return Misfit(f"{len(arrays['input_ids'])} tokens, by the index {tokens}", "input_ids")
        counts = zip(TOKEN_TYPES, self._places.of(pack).counts, strict=True)
        return misfit(arrays, self.layout, {kind: [count] for kind, count in counts})

    def header(self, pack: int, content: memoryview) -> dict[str, Any]:
        """The JSON of a pack."""
        try:
            header = parse_json(bytes(self.members_of(pack, content)["json"]))
        except ValueError as error:
            raise self._broken(pack, f"json: {error}", member="json") from None
        if not isinstance(header, dict):
            raise self._broken(pack, "json: no object", member="json")
        return header

    def counts(self, pack: int) -> dict[str, int]:
        """num_images, num_videos and num_audios of a pack, from the index: parsing its JSON would take longer."""
        counts = zip(TOKEN_TYPES, self._places.of(pack).counts, strict=True)
        return {f"num_{kind}s": count for kind, count in counts}

    def _broken(self, pack: int, words: str, remedy: str = REMEDY, **fields: Any) -> ShardError:
        name = shard_name(self._places.of(pack).shard)
        if (cache := self._files.cache) is not None and remedy == REMEDY:
            remedy = f"empty the cache {cache.folder}, or {REMEDY}"
        return ShardError(
            f"{self.out}/shards/{name}, pack {pack}: {words}; {remedy}", name, pack, out=self.out, **fields
        )
