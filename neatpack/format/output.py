"""Packs of a finished output by number: the one reader of loader, show and export."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, BinaryIO

import numpy as np
from zlib_ng import zlib_ng

from neatpack.errors import OutputError, ShardError, UserError, fields_of
from neatpack.storage.files import read_into
from neatpack.storage.location import PathLike

from .index import PackIndex, PackPlace, largest_index
from .layout import TOKEN_TYPES, MediaArray, Misfit, layout_of, misfit
from .manifest import FILE as MANIFEST, LOADER_INDEX, REMEDY, SOURCE, Pixels, shard_name
from .members import Pack, members_of, read_arrays, read_pack, split_members, text_problem
from .output_files import OutputFiles, ShardCache, in_advance
from .pixels import ImageRenderer, PixelDecoder, PixelsChangedError

CHECKS = ("none", "sizes", "read", "packs", "full")
SHARDS_AHEAD = 2  # whole shards that a reader with a cache downloads ahead of need
SAME_BYTES, WELL_FORMED, SAME_PIXELS = 1, 2, 4  # what is known of a pack in this process


class OutputReader:
    """Reads OUT, a local directory or a URI (s3://bucket/out). Can be pickled: files are opened where they are used.

    Manifest, index and pixel tables are always compared with their digests. What is not as it was written raises an
    OutputError; for a shard or a pack a ShardError that names it.
    """

    def __init__(
        self,
        out: PathLike,
        load_renderer: Callable[[Pixels], ImageRenderer],
        *,
        check: str = "packs",
        make_cache: Callable[[], ShardCache] | None = None,
    ) -> None:
        """Read manifest and index.

        Args:
            out: a local directory or a URI.
            load_renderer: makes what renders images of the codec `source`.
            check: "none"; "sizes" compares the size of every shard with the manifest, at once; "packs" too (of more
                than 4,096 local shards it only looks whether they exist, and compares sizes where it reads), and
                compares the crc32 of each pack when it is read: of a local one when it is first read by a process, and
                again if its file was touched since; "read" compares nothing at once; "full" compares all sizes and the
                sha256 of every shard, at once.
            make_cache: makes a local cache for whole shards of a remote output.
        """
        if check not in CHECKS:
            raise UserError(
                f"check is {check!r}; it must be one of {', '.join(CHECKS)}",
                code="loader-argument",
                argument="check",
                got=check,
            )
        self._files = OutputFiles(out, make_cache)
        self.manifest = self._files.manifest
        try:
            self.layout: dict[str, MediaArray] = layout_of(self.manifest.family)  # what the media arrays are
            self.members = members_of(self.manifest)  # of every pack, in the order of the tar
            self.pixels = PixelDecoder(self.manifest, load_renderer)
        except ValueError as error:
            raise OutputError(f"{self.out}/{MANIFEST}: {error}; pack again", out=self.out, file=MANIFEST) from None
        content = self._files.read_checked(LOADER_INDEX, largest_index(self.num_packs))
        self._index = PackIndex(content, self.manifest, self.out)
        self._compares = check in ("read", "packs", "full")
        self._known = bytearray(self.num_packs)  # by pack: SAME_BYTES, WELL_FORMED, SAME_PIXELS
        if check not in ("none", "read"):
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

    def loads(self) -> tuple[np.ndarray, np.ndarray]:
        """Return visual tokens and tokens of every pack, int32."""
        return self._index.loads

    @property
    def group_size(self) -> int:
        return int(self.manifest.identity.config["group_size"])

    def read_file(self, name: str) -> bytes:
        """Read a file of the output other than a shard, its digest compared."""
        return self._files.read_checked(name)

    def content(self, pack: int) -> memoryview:
        """Read the bytes of a pack, by one read of the shard or one ranged request."""
        return self.read(pack, self.open(pack))

    def open(self, pack: int) -> BinaryIO | None:
        """Open the shard of a pack as a local file; None: it is remote and not in a cache."""
        return self._files.opened(self._index.locate(pack).shard)

    def open_ahead(self, packs: Iterable[int]) -> Iterator[tuple[int, BinaryIO | None]]:
        """Pair packs with the open files of their shards. A cache downloads whole shards ahead of them."""
        if not self.has_cache:
            yield from ((pack, None) for pack in packs)
            return
        # The open file stays readable even if the cache evicts the shard before its packs are read.
        runs = ((shard, list(run)) for shard, run in groupby(packs, self._index.find_shard))
        for run, file in in_advance(lambda run: (run[1], self._files.opened(run[0])), runs, SHARDS_AHEAD):
            yield from ((pack, file) for pack in run)

    def read(self, pack: int, file: BinaryIO | None) -> memoryview:
        """Read the bytes of a pack and compare their crc32. They are the caller's own, in any thread.

        Args:
            pack: its number.
            file: its shard; None: read it by range, or from the local output.
        """
        found = self._index.locate(pack)
        if file is None and self.is_local:
            file = self._files.opened(found.shard)
        if file is not None and self.is_local:
            self._notice_changes(found.shard, file)
        content = self._read_bytes(found, file)
        if self._compares and not self._known[pack] & SAME_BYTES:
            if (crc32 := zlib_ng.crc32(content)) != found.crc32:
                raise self._broken(
                    pack, f"its crc32 is {crc32:08x}, by the index {found.crc32:08x}", got=crc32, expected=found.crc32
                )
            if file is not None:  # each download is another copy
                self._known[pack] |= SAME_BYTES
        return content

    def _read_bytes(self, found: PackPlace, file: BinaryIO | None) -> memoryview:
        content = np.empty(found.bytes, np.uint8).data
        if file is None:
            read = self._files.read_range(found.shard, found.offset, found.bytes)
            got = len(read)
            content[:got] = read  # bytes are read-only, and torch needs writable memory
        else:
            try:
                got = read_into(file, content, found.offset)
            except OSError as error:
                raise self._broken(found.pack, f"cannot be read: {error}") from error
        if missing := found.bytes - got:
            raise self._broken(found.pack, f"the file ends {missing} bytes before it does", missing=missing)
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
        if self._compares and SOURCE in self.pixels.codecs.values():
            visual, _ = self.loads()
            if len(seen := np.flatnonzero(visual)):
                pack = int(seen[visual[seen].argmin()])
                self.arrays(pack, self.content(pack))

    def members_of(self, pack: int, content: memoryview) -> dict[str, memoryview]:
        """The members of a pack, as views of its bytes."""
        try:
            return split_members(content, pack, self.members)
        except OutputError as error:
            raise self._broken(pack, str(error), **fields_of(error)) from None

    def arrays(self, pack: int, content: memoryview) -> dict[str, np.ndarray]:
        """Return the arrays of a pack, as views of its bytes where these are stored as they are."""
        compare = self._compares and not self._known[pack] & SAME_PIXELS
        members = self.members_of(pack, content)
        try:
            arrays = self.pixels.restore(read_arrays(members), compare=compare)
        except ValueError as error:
            code = error.code if isinstance(error, PixelsChangedError) else "shard-damaged"
            remedy = self.pixels.find_remedy(error)
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
        family, tokens = self.manifest.family, self._index.locate(pack).tokens
        if problem := text_problem(arrays, family["position_axes"], family["position_dtype"]):
            return problem
        if len(arrays["input_ids"]) != tokens:
            return Misfit(f"{len(arrays['input_ids'])} tokens, by the index {tokens}", "input_ids")
        counts = zip(TOKEN_TYPES, self._index.locate(pack).counts, strict=True)
        return misfit(arrays, self.layout, {kind: [count] for kind, count in counts})

    def read_pack(self, pack: int) -> Pack:
        """Read a pack with its documents."""
        members = self.members_of(pack, self.content(pack))
        try:
            found = read_pack(members, self.pixels)
        except ValueError as error:
            raise self._broken(pack, str(error), self.pixels.find_remedy(error), **fields_of(error)) from None
        problem = self._misfit(pack, found.arrays)
        if not problem and found.arrays["seq_lens"].tolist() != [document.tokens for document in found.documents]:
            problem = Misfit("its documents have other lengths than its JSON says", "seq_lens")
        parts = {kind: [getattr(document, f"num_{kind}s") for document in found.documents] for kind in TOKEN_TYPES}
        if problem := problem or misfit(found.arrays, self.layout, parts):
            raise self._broken(pack, problem, array=problem.array)
        return found

    def counts(self, pack: int) -> dict[str, int]:
        """num_images, num_videos and num_audios of a pack, from the index: parsing its JSON would take longer."""
        counts = zip(TOKEN_TYPES, self._index.locate(pack).counts, strict=True)
        return {f"num_{kind}s": count for kind, count in counts}

    def _broken(self, pack: int, words: str, remedy: str = REMEDY, **fields: Any) -> ShardError:
        name = shard_name(self._index.locate(pack).shard)
        if (cache := self._files.cache) is not None and remedy == REMEDY:
            remedy = f"empty the cache {cache.folder}, or {REMEDY}"
        return ShardError(
            f"{self.out}/shards/{name}, pack {pack}: {words}; {remedy}", name, pack, out=self.out, **fields
        )
