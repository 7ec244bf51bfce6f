"""One shard: render its packs, write its tar, and leave a note that it is done."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from neatpack.format.layout import TOKEN_TYPES, MediaKind
from neatpack.format.manifest import shard_name
from neatpack.format.members import Documents, Pack, member_names, write_end, write_pack
from neatpack.format.pixels import ImageFile, PixelEncoder
from neatpack.storage.clients import NoAnswer
from neatpack.storage.files import Counted, Hashed, write_whole
from neatpack.storage.location import Location
from neatpack.storage.tables import write_arrow

from ..codecs import parse_codecs
from ..families.base import Family, ProcessorKey
from ..families.registry import family_for
from ..families.restore import RuleRenderer, image_file
from ..labels import shifted_spans_together
from ..measure.length import shrunk, truncated
from ..measure.store import TextRow
from ..media.open import open_picture
from ..media.remote import Fetched, fetched_for
from ..media.stamp import is_changed
from ..media.store_failures import store_failures
from ..plan.assign import Plan, PlanLine
from ..plan.files import read_paths, read_shard
from ..records import Measured, MeasuredMedia, MediaError
from ..render.pack import build_pack, spans_of
from ..render.sample import Expanded, expanded
from ..runtime.journal import Journal, journal
from ..runtime.work import did, each_timed, timed
from .note import CHANGED, DatasetSums, LostRow, MediaSize, PackLine, ShardDone, ShardNote, lines_path, note_path
from .rows import Rows, rows_of_packs
from .stats import make_index

_SUMMED = DatasetSums._fields[1:]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardJob:
    """What a shard is made of: packs [first, last) by a batch of the plan at `plan`. It travels: no data."""

    number: int
    first: int
    last: int
    plan: Location
    batch: int
    shift: int  # what the plan's numbers of packs lack to those of the output
    parts: Location  # where measured parts are, which the plan names by index: see `write_paths`
    corpora: tuple[str, ...]  # names, likewise
    processor: ProcessorKey
    resize: str
    pixels: str
    fake_image: bool
    align: int
    out: Location
    fingerprint: str  # of the identity, and of its packs in the plan
    seconds: float = 0.0  # that it takes, about

    @property
    def name(self) -> str:
        return shard_name(self.number)

    @property
    def tar(self) -> Location:
        return self.out / "shards" / self.name

    @property
    def done(self) -> Location:
        """Where the note goes."""
        return note_path(self.out, self.number)

    @property
    def lines(self) -> Location:
        """Of its packs, as the index has them."""
        return lines_path(self.out, self.number)


def finished_shards(out: Location, shards: Sequence[tuple[int, str]]) -> dict[int, ShardDone]:
    """The task that looks for what earlier runs with the same fingerprint finished: of these, numbers and fingerprints,
    by number. Their tars must still be whole in size."""
    folder = note_path(out, 0).parent
    beside = {number: (note_path(out, number), lines_path(out, number)) for number, _ in shards}
    notes = folder.sizes([path.name for paths in beside.values() for path in paths])
    tars = (out / "shards").sizes([shard_name(number) for number, _ in shards])
    found = {}
    for number, fingerprint in shards:
        path, lines = beside[number]
        if path.name in notes and lines.name in notes:
            note = ShardNote.read(path, fingerprint)
            if note is not None and tars.get(shard_name(number)) == note.bytes:
                found[number] = note.done
    return found


def shard_task(job: ShardJob) -> ShardDone:
    return write_shard(job, *loaded(job)).done


def loaded(job: ShardJob) -> tuple[Family, Plan]:
    """What a task needs beside its job."""
    with timed("loading the processor"):
        family = family_for(job.processor)
    return family, read_shard(job.plan, job.batch, job.shift)


def write_shard(job: ShardJob, family: Family, plan: Plan) -> ShardNote:
    """Write the tar, then the lines of its packs, then the note."""
    with journal(job.done.with_suffix(".journal")) as watch, write_whole(job.tar) as file:
        hashed = Hashed(file)
        note, lines = write_packs(hashed, job, range(job.first, job.last), family, plan, watch)
        write_end(hashed)
    note = dataclasses.replace(note, bytes=hashed.size, sha256=hashed.digest())
    write_arrow(job.lines, lines)
    note.write(job.done)
    logger.debug("%s: %d packs, %d bytes, %d rows lost", note.shard, note.num_packs, note.bytes, len(note.lost))
    return note


def write_packs(
    file: Counted, job: ShardJob, numbers: Sequence[int], family: Family, plan: Plan, watch: Journal
) -> tuple[ShardNote, pa.Table]:
    """Write these packs to a tar that begins here, without its end; what a note says of them but for the sha256 of the
    whole, and the index."""
    lines: list[PackLine] = []
    lost: list[LostRow] = []
    sums: dict[str, Counter[str]] = {}
    of_fake: Mapping[str, np.ndarray] = {}  # as the last pack with a fake image was stored: its pixels are those of all
    encoder = encoder_of(job, family)
    renderer = Renderer(job=job, family=family, watch=watch, keeps_sources=encoder.keeps_sources)
    for number, rows in each_timed("reading rows", rows_of_packs(plan, parts_of(job, plan), numbers)):
        with timed("composing"):
            pack, failed = renderer.pack(number, rows)
        lost += failed
        if pack is not None:
            start = file.size
            with timed("encoding"):
                stored = encoder.encode(pack.arrays, renderer.sources, of_fake if pack.fake_image else None)
            if pack.fake_image:
                of_fake = stored
            with timed("writing"):
                written = write_pack(file, start, pack, stored, encoder.codecs)
            lines.append(PackLine.of(pack, start, *written))
            _add_up(pack, sums)
        _tell(lines[-1:] if pack is not None else [], failed)
    note = ShardNote(
        fingerprint=job.fingerprint,
        shard=job.name,
        bytes=file.size,
        sha256="",
        first_pack=lines[0].pack if lines else -1,
        num_packs=len(lines),
        lost=tuple(lost),
        fetched=tuple(sorted(renderer.fetched)),
        sizes=tuple(MediaSize(*size, count) for size, count in sorted(renderer.sizes.items())),
        sums=tuple(DatasetSums(name, *(own[each] for each in _SUMMED)) for name, own in sorted(sums.items())),
    )
    fake_tokens = len(family.fake_image_ids) if job.fake_image else 0
    return note, make_index(job.name, lines, member_names(family.media, encoder.codecs), fake_tokens)


def encoder_of(job: ShardJob, family: Family) -> PixelEncoder:
    renderer = RuleRenderer(family.image, job.resize) if family.image is not None else None
    return PixelEncoder(layout=family.media, codecs=parse_codecs(job.pixels), renderer=renderer)


def parts_of(job: ShardJob, plan: Plan) -> dict[int, Location]:
    return read_paths(job.parts, np.unique(plan.packed["part"].to_numpy()).tolist())


def _tell(written: Sequence[PackLine], lost: Sequence[LostRow]) -> None:
    """How far the task is."""
    for line in written:
        images, videos, sounds = line.num_images - line.fake_image, line.num_videos, line.num_audios
        did(rows=line.num_documents, packs=1, bytes=line.bytes, images=images, videos=videos, sounds=sounds)
    did(rows=len(lost), skipped=Counter(row.reason for row in lost if row.reason != CHANGED))


def first_pack(job: ShardJob) -> tuple[Pack | None, list[LostRow]]:
    """The pack that a shard begins with, as `write_shard` would write it: to be looked at."""
    family, plan = loaded(job)
    with journal(job.done.with_suffix(".journal")) as watch:
        ((number, rows),) = rows_of_packs(plan, parts_of(job, plan), [job.first])
        return Renderer(job=job, family=family, watch=watch).pack(number, rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Renderer:
    """Renders the packs of a shard, document by document."""

    job: ShardJob
    family: Family
    watch: Journal
    fetched: set[Fetched] = field(default_factory=set)  # downloads that are in a pack, filled on the way
    sizes: Counter[tuple[str, str, int, int, int, int]] = field(default_factory=Counter)  # likewise: see MediaSize
    keeps_sources: bool = False
    # Where they are kept, the media of the last pack in the order of the text, images with their files.
    sources: list[tuple[MediaKind, ImageFile | None]] = field(default_factory=list)

    def pack(self, number: int, rows: Rows) -> tuple[Pack | None, list[LostRow]]:
        """Pack `number` without the rows whose media fail, and those rows; None where no row is left."""
        self.sources.clear()
        kept: list[int] = []
        rendered: list[tuple[Measured | TextRow, Expanded | TextRow]] = []
        lost: list[LostRow] = []
        for at, (found, tokens) in enumerate(zip(rows.measured, rows.lines["tokens"], strict=True)):
            if isinstance(found, TextRow) and found.tokens == tokens:
                kept.append(at)
                rendered.append((found, found))
                continue
            document = self._document(rows.line(at), found)
            if isinstance(document, LostRow):
                lost.append(document)
            else:
                kept.append(at)
                rendered.append(document)
        if not rendered:
            return None, lost
        job = self.job
        measured, documents = zip(*rendered, strict=True)
        told = self._told(rows.taken(kept), measured, documents)
        pack = build_pack(number, told, documents, self.family, fake_image=job.fake_image, align=job.align)
        planned, found = told.columns["tokens"], pack.arrays["seq_lens"][: len(told)].tolist()
        assert planned == found, f"pack {number}: planned documents of {planned} tokens, rendered {found}"
        return pack, lost

    def _told(
        self,
        lines: Mapping[str, Sequence[Any]],
        measured: Sequence[Measured | TextRow],
        documents: Sequence[Expanded | TextRow],
    ) -> Documents:
        """What a pack says of its documents."""
        num_media = [each.num_media for each in measured]
        return Documents(
            {name: lines[name] for name in ("row", "repeat", "id", "tokens", "visual_tokens")}
            | {
                "dataset": [self.job.corpora[dataset] for dataset in lines["dataset"]],
                "form": [each.form for each in measured],
                "loss": [each.loss for each in measured],
                "targets": shifted_spans_together(*spans_of(documents)),
            }
            | {f"num_{kind}s": [counts[kind] for counts in num_media] for kind in TOKEN_TYPES}
        )

    def _document(self, line: PlanLine, whole: Measured | TextRow | None) -> tuple[Measured, Expanded] | LostRow:
        """One document that is more than text, or not all of it."""
        fitted = self._fitted(line, whole)
        if fitted is None:
            return _lost(line, CHANGED, "")
        document = self._seen(line, fitted) if fitted.media else expanded(fitted, self.family, self.job.resize)
        return document if isinstance(document, LostRow) else (fitted, document)

    def _seen(self, line: PlanLine, measured: Measured) -> Expanded | LostRow:
        """A document with media, and what is kept of them."""
        name = f"{line['dataset']}/{line['row']}/{line['repeat']}"
        try:
            if any(is_changed(medium.ref, medium.stamp) for medium in measured.media):
                return _lost(line, CHANGED, "")
            self.watch.at(name)
            if why := self.watch.poison(name):
                logger.warning("row %s: %s; skipped as bad_media", name, why)
                raise MediaError("bad_media", why)
            if self.keeps_sources:
                measured = dataclasses.replace(measured, media=tuple(map(with_own_bytes, measured.media)))
            document = expanded(measured, self.family, self.job.resize)
        except MediaError as error:
            return _lost(line, error.skip.reason, error.skip.detail)
        except NoAnswer as error:
            skip = store_failures.lose_medium(error)
            return _lost(line, skip.reason, skip.detail)
        if self.keeps_sources:
            media = self.family.in_text_order(measured.ids, measured.media)
            self.sources.extend((medium.ref.kind, image_file(medium)) for medium in media)
        for medium in measured.media:
            self.fetched.update(fetched_for(medium.ref))
            if medium.height:  # a sound has none
                size = (medium.ref.kind, medium.height, medium.width, *medium.size)
                self.sizes[self.job.corpora[line["dataset"]], *size] += 1
        return document

    def _fitted(self, line: PlanLine, whole: Measured | TextRow | None) -> Measured | None:
        """A measured row, truncated or with smaller media where the plan says so.

        None where it is not what was planned: it was measured again, because its media had changed, and the run was
        killed before the plan was mended.
        """
        if not isinstance(whole, Measured):
            return None
        cut = truncated(whole, line["limit"], self.family) if line["limit"] else whole
        fitted = shrunk(cut, line["shrink"], self.family) if cut is not None and line["shrink"] else cut
        return fitted if fitted is not None and fitted.tokens == line["tokens"] else None


def with_own_bytes(medium: MeasuredMedia) -> MeasuredMedia:
    """A picture with its file's bytes, which are read once: to be decoded, and to be kept."""
    if medium.ref.kind != "image" or medium.ref.held is not None:
        return medium
    with open_picture(medium.ref) as file:
        return dataclasses.replace(medium, ref=dataclasses.replace(medium.ref, held=file.read()))


def _lost(line: PlanLine, reason: str, detail: str) -> LostRow:
    names = {"dataset": line["dataset"], "row": line["row"], "repeat": line["repeat"], "part": line["part"]}
    return LostRow(**names, reason=reason, detail=detail)


def _add_up(pack: Pack, sums: dict[str, Counter[str]]) -> None:
    """By data set; a fake image, which comes last, is of none. Pack by pack: kept until the end, what is said of
    thousands of documents would be what the garbage collector looks at again and again."""
    columns = Documents.of(pack.documents).columns
    datasets = columns["dataset"][: len(columns["dataset"]) - pack.fake_image]
    for dataset in set(datasets):
        sums.setdefault(dataset, Counter())
    for name in _SUMMED:
        numbers = _trained(pack) if name == "target_tokens" else columns[name]
        if any(numbers):
            for dataset, number in zip(datasets, numbers, strict=False):
                sums[dataset][name] += number


def _trained(pack: Pack) -> list[int]:
    """Tokens of each document that are trained on."""
    # labels [-100, 5, 6] [] [-100, 7] -> trained tokens up to and with each [0, 1, 2, 2, 3], and a 0 behind them, which
    # is what a first document without tokens ends at (place -1) -> at the ends [2, 2, 3] -> of each [2, 0, 1]
    until = np.zeros(len(pack.arrays["labels"]) + 1, np.int32)
    (pack.arrays["labels"] >= 0).cumsum(out=until[:-1])
    at_ends = until[pack.arrays["seq_lens_padded"].cumsum() - 1]
    trained: list[int] = np.diff(at_ends, prepend=0).tolist()
    return trained
