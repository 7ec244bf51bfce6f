"""The note of a finished shard: what its task leaves on disk, for the end of the run and for the next one.

It is small. The lines that its packs have in the index are beside it, as an Arrow file (`lines_path`), and
what the driver gets is less than either: `ShardDone`.
"""

import dataclasses
import logging
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neatpack.format.manifest import ShardEntry
from neatpack.format.members import Documents, Pack
from neatpack.storage.files import read_json, write_json
from neatpack.storage.location import Location

from ..media.remote import Fetched
from ..records import Skip

logger = logging.getLogger(__name__)


def note_path(out: Location, shard: int) -> Location:
    """Where the note of a shard is; beside it, as .arrow, the lines of its packs."""
    return out / "work" / "done" / f"{shard:06d}.json"


def lines_path(out: Location, shard: int) -> Location:
    return out / "work" / "done" / f"{shard:06d}.arrow"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackLine:
    """One pack of a shard, as the index has it."""

    pack: int
    offset: int
    bytes: int
    crc32: int  # of these bytes
    tokens: int  # length of input_ids
    padding_tokens: int  # of which alignment
    visual_tokens: int
    target_tokens: int
    squares: int  # sum of squared document lengths: what attention costs
    num_documents: int
    num_images: int
    num_videos: int
    num_audios: int
    fake_image: bool
    members: tuple[tuple[int, int], ...]  # offset and size of each member, in the order of the tar

    @classmethod
    def of(cls, pack: Pack, start: int, end: int, crc32: int, members: list[tuple[int, int]]) -> "PackLine":
        """`start` and `end`: its bytes in the shard."""
        lengths = pack.arrays["seq_lens"].astype("int64")
        documents = Documents.of(pack.documents)
        summed = ("visual_tokens", "num_images", "num_videos", "num_audios")
        return cls(
            pack=pack.number,
            offset=start,
            bytes=end - start,
            crc32=crc32,
            tokens=len(pack.arrays["input_ids"]),
            padding_tokens=int((pack.arrays["seq_lens_padded"] - pack.arrays["seq_lens"]).sum()),
            target_tokens=int(np.count_nonzero(pack.arrays["labels"] >= 0)),
            squares=int((lengths**2).sum()),
            num_documents=len(documents),
            **{name: sum(documents.columns[name]) for name in summed},
            fake_image=pack.fake_image,
            members=tuple(members),
        )


CHANGED = "changed"  # no reason of the ledger's: such a row is measured again


@dataclass(frozen=True, kw_only=True, slots=True)
class LostRow:
    """A planned row that is in no pack, because its media could not be decoded, or have changed (CHANGED)."""

    dataset: int  # index into the run's corpora
    row: int
    repeat: int
    reason: str
    detail: str
    part: int  # of the token store, by index

    @property
    def key(self) -> tuple[int, int, int]:
        """As the plan has it."""
        return self.dataset, self.row, self.repeat

    @property
    def skip(self) -> Skip:
        return Skip(reason=self.reason, detail=self.detail)


class MediaSize(NamedTuple):
    """How many pictures or videos of a data set have a size, as they are displayed and after resizing."""

    dataset: str
    kind: str
    height: int
    width: int
    resized_height: int
    resized_width: int
    num_media: int


class DatasetSums(NamedTuple):
    """What the documents of a data set have, beside what the plan says of them."""

    dataset: str
    target_tokens: int
    num_images: int
    num_videos: int
    num_audios: int


class ShardDone(NamedTuple):
    """What the driver needs to know of a shard. A tuple: there may be 100,000, and it unpickles each of them."""

    name: str
    bytes: int
    sha256: str
    first_pack: int
    num_packs: int
    num_lost: int
    num_changed: int  # of which such that are measured again
    changed_parts: tuple[int, ...]  # of the token store, in which these are

    @property
    def entry(self) -> ShardEntry:
        return ShardEntry(
            name=self.name,
            bytes=self.bytes,
            sha256=self.sha256,
            first_pack=self.first_pack,
            num_packs=self.num_packs,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardNote:
    fingerprint: str  # of the identity it was made from, and of its packs in the plan
    shard: str  # the file's name
    bytes: int
    sha256: str
    first_pack: int  # -1: none could be written
    num_packs: int
    lost: tuple[LostRow, ...]
    fetched: tuple[Fetched, ...] = ()  # the downloads that its media were read from, each once
    sizes: tuple[MediaSize, ...] = ()
    sums: tuple[DatasetSums, ...] = ()

    @property
    def done(self) -> ShardDone:
        changed = [row for row in self.lost if row.reason == CHANGED]
        return ShardDone(
            name=self.shard,
            bytes=self.bytes,
            sha256=self.sha256,
            first_pack=self.first_pack,
            num_packs=self.num_packs,
            num_lost=len(self.lost),
            num_changed=len(changed),
            changed_parts=tuple(sorted({row.part for row in changed})),
        )

    def write(self, path: Location) -> None:
        write_json(path, dataclasses.asdict(self))

    @classmethod
    def read(cls, path: Location, fingerprint: str = "") -> "ShardNote | None":
        """None where there is no note, one of another fingerprint, if one is given, or a damaged one: the shard is made
        again."""
        if not path.exists():
            return None
        try:
            found = read_json(path)
            if fingerprint and found["fingerprint"] != fingerprint:
                return None
            lost = (LostRow(**line) for line in found["lost"])
            fetched = (Fetched(*line) for line in found["fetched"])
            sizes = (MediaSize(*line) for line in found["sizes"])
            sums = (DatasetSums(*line) for line in found["sums"])
            read = {"lost": lost, "fetched": fetched, "sizes": sizes, "sums": sums}
            return cls(**found | {name: tuple(lines) for name, lines in read.items()})
        except (ValueError, TypeError, LookupError) as error:
            logger.warning(
                "%s: no note of a shard (%s: %s); the shard is made again", path, type(error).__name__, error
            )
            return None
