"""The note of a finished shard: what its task hands back, and leaves on disk for the next run."""

import dataclasses
import logging
from dataclasses import dataclass
from typing import NamedTuple

from ..manifest import ShardEntry
from ..media.remote import Fetched
from ..records import Pack, Skip
from ..runtime.storage import Place, read_json, write_json

logger = logging.getLogger(__name__)


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
        return cls(
            pack=pack.number,
            offset=start,
            bytes=end - start,
            crc32=crc32,
            tokens=len(pack.arrays["input_ids"]),
            padding_tokens=int((pack.arrays["seq_lens_padded"] - pack.arrays["seq_lens"]).sum()),
            visual_tokens=sum(document.visual_tokens for document in pack.documents),
            target_tokens=int((pack.arrays["labels"] >= 0).sum()),
            squares=int((lengths**2).sum()),
            num_documents=len(pack.documents),
            num_images=sum(document.num_images for document in pack.documents),
            num_videos=sum(document.num_videos for document in pack.documents),
            num_audios=sum(document.num_audios for document in pack.documents),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardNote:
    fingerprint: str  # of the identity it was made from, and of its packs in the plan
    shard: str  # the file's name
    bytes: int
    sha256: str
    packs: tuple[PackLine, ...]
    lost: tuple[LostRow, ...]
    fetched: tuple[Fetched, ...] = ()  # the downloads that its media were read from, each once
    sizes: tuple[MediaSize, ...] = ()
    sums: tuple[DatasetSums, ...] = ()

    @property
    def entry(self) -> ShardEntry:
        """What the manifest says of the shard."""
        first = self.packs[0].pack if self.packs else -1
        return ShardEntry(
            name=self.shard, bytes=self.bytes, sha256=self.sha256, first_pack=first, num_packs=len(self.packs)
        )

    def write(self, path: Place) -> None:
        write_json(path, dataclasses.asdict(self))

    @classmethod
    def read(cls, path: Place, fingerprint: str) -> "ShardNote | None":
        """None where there is no note, one of another fingerprint, or a damaged one: the shard is made again."""
        if not path.exists():
            return None
        try:
            found = read_json(path)
            if found["fingerprint"] != fingerprint:
                return None
            packs = (PackLine(**line | {"members": tuple(map(tuple, line["members"]))}) for line in found["packs"])
            lost = (LostRow(**line) for line in found["lost"])
            fetched = (Fetched(*line) for line in found["fetched"])
            sizes = (MediaSize(*line) for line in found["sizes"])
            sums = (DatasetSums(*line) for line in found["sums"])
            read = {"packs": packs, "lost": lost, "fetched": fetched, "sizes": sizes, "sums": sums}
            return cls(**found | {name: tuple(lines) for name, lines in read.items()})
        except (ValueError, TypeError, LookupError) as error:
            logger.warning(
                "%s: no note of a shard (%s: %s); the shard is made again", path, type(error).__name__, error
            )
            return None
