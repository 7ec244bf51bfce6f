"""Troubles: what a job lost of its data, data set by data set, with the reasons, a row for one and the likely remedy.

A job whose column names are wrong skips every row, each with a reason in the ledger, and nobody reads ledgers of jobs
that succeed. So such a job does not: it is judged by its plan, before anything is rendered, and again by its output,
for media may fail only when they are decoded. The command ends with exit code 1.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from neatpack.format.manifest import Manifest
from neatpack.storage.location import Location
from neatpack.storage.tables import read_parquet

from ..config import PackConfig
from ..ingest.convert import parse_row
from ..ingest.corpus import Corpus, Split
from ..ingest.formats.detect import detect
from ..ingest.lines import MAX_ROW_BYTES, rows
from ..plan.files import Sums, read_skipped
from ..planned import Planned
from ..records import REASONS
from .ledger import SCHEMA, folders_of
from .skipped import LEFT_OUT
from .tables import ledger_names
from .words import clipped, counted, percent

UNCOUNTED = (*LEFT_OUT, "max_packs")  # what the user's own limits leave out is not lost
NOT_RENDERED = "nothing is rendered: repair what is named above, or give --keep-going to pack the rest all the same"
MAX_GROUPS, MAX_DATASETS, MAX_KEYS = 3, 10, 8  # more would fill the screen
MAX_SHOWN = 240  # characters of a detail: the advice to overlong videos, with its values, is 180

# What to do about rows that were skipped; {media_dir} is the data set's.
REMEDIES = {
    "sampled_out": "raise its sample_ratio",
    "held_out": "lower --holdout",
    "not_held_out": "raise --holdout",
    "bad_row": "do columns and tags say how its rows are written? repair the rows, or set them",
    "bad_placeholders": "repair the rows, or give --placeholders lenient",
    "no_target": "is tags.assistant_tag what its rows call the assistant? is loss as it was meant?",
    "missing_media": "is media_dir right? it is {media_dir}",
    "bad_media": "fetch or make these files again, then pack with --overwrite",
    "image_unsupported": "take a processor that takes images, or leave the data set out by --datasets",
    "video_unsupported": "take a processor that takes videos, or leave the data set out by --datasets",
    "audio_unsupported": "take a processor that takes sounds, or leave the data set out by --datasets",
    "overlong": "raise --pack-size, give --overlong truncate or shrink, or accept the loss by --overlong drop",
    "too_many_visual_tokens": "raise --max-visual-tokens, or lower --max-pixels",
    "max_packs": "raise --max-packs",
}
# Where no row of a data set has media, tags stand for none: either they are text, or the media were not found.
_NO_MEDIA = (
    '; no row of the data set has media. If the tags are plain text, set "placeholders": "text" in the meta JSON. If '
    'the media are in another column, name it: "columns": {{"{field}": …}}'
)
_NAMED_IN_TEXT = 'if the rows only write about such tags, set "placeholders": "text"'
# Where no row is wanted in the first place:
_NOT_ASKED: dict[Split, str] = {
    "train": ", for there is nothing to take: rows are absent, sampled out or held out",
    "holdout": ", for no row is held out; raise --holdout, or leave it away",
}
_ABSENT = re.compile(r"column '[^']*' is absent")
_KIND = re.compile(r"<(image|video|audio)> tags")
_OF_MEDIA = ("missing_media", "image_unsupported", "video_unsupported", "audio_unsupported")
_NO_ROW = re.compile(r"line \S+(?: of .*)?: (?:broken JSON|a JSON \w+ where an object)")  # columns have no part in it
_TELLS = re.compile(r"; (?:fix|give|join|remove|set|take) |\"ignore_columns\"|--[a-z]")  # a detail with its remedy
KEYS = "; the row has "  # from there on a detail lists them


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tally:
    """A data set of an output, or of a plan, in figures."""

    corpus: Corpus
    samples: int
    packed: int
    tokens: int = 0  # of what is packed
    skipped: Mapping[str, int]  # by reason
    uncounted: Sequence[str] = UNCOUNTED  # reasons that are no loss
    has_media: bool = True
    lines: Callable[[], pa.Table]  # row, reason, detail, tokens of what is skipped; read only if there is trouble

    @property
    def wanted(self) -> int:
        return self.samples - sum(self.skipped.get(reason, 0) for reason in LEFT_OUT)

    @property
    def lost(self) -> int:
        return sum(count for reason, count in self.skipped.items() if reason not in self.uncounted)

    @property
    def is_empty(self) -> bool:
        """It should give something, and gives nothing. A file without rows is told once, not of the holdout too."""
        if self.packed or not self.corpus.dataset.sample_ratio or self.skipped.get("max_packs"):
            return False
        return self.wanted > 0 or (not self.corpus.num_rows and self.corpus.split == "train")


def troubles_of_output(
    out: Location, manifest: Manifest, corpora: Sequence[Corpus], config: PackConfig
) -> tuple[str, ...]:
    """Of a finished output, from its statistics and ledger: a second run on it says the same."""
    ledgers = list(ledger_names(manifest).values())

    def lines(number: int) -> pa.Table:
        columns, skipped = ["row", "reason", "detail", "tokens"], [("status", "=", "skipped")]
        found = [read_parquet(out / name, columns=columns, filters=skipped) for name in ledgers[number]]
        return pa.concat_tables(found) if found else SCHEMA.empty_table().select(columns)

    stats = read_parquet(out / "stats" / "datasets.parquet").to_pylist()
    tallies = [
        Tally(
            corpus=corpus,
            samples=figures["samples"],
            packed=figures["packed"],
            tokens=figures["tokens"],
            skipped={reason: figures[reason] for reason in REASONS if figures[reason]},
            uncounted=_uncounted(config),
            has_media=corpus.dataset.has_media or figures["media_bytes"] > 0,
            lines=lambda number=number: lines(number),  # type: ignore[misc]
        )
        for number, (corpus, figures) in enumerate(zip(corpora, stats, strict=True))
    ]
    counts = manifest.counts
    tokens = Tokens(packed=sum(line["tokens"] for line in stats), skipped=counts.skipped_tokens)
    return troubles(tallies, tokens, config.max_skipped, f"every row that is skipped: neatpack skipped {out}")


def troubles_of_plan(planned: Planned, more: str = "") -> tuple[str, ...]:
    """`more`: what to do, where it is not for the output to say."""
    config = planned.inputs.config

    def lines(number: int) -> pa.Table:
        found = [read_skipped(planned.path(file)) for file in planned.files]
        mine = pa.concat_tables([table.filter(pc.equal(table["dataset"], number)) for table in found])
        details = mine["detail"]
        for folder in folders_of(planned.inputs.corpora[number]):  # as in the ledger
            details = pc.replace_substring(details, f"{folder.rstrip('/')}/", "")
        return mine.set_column(mine.column_names.index("detail"), "detail", details)

    tallies = []
    for number, (corpus, sums) in enumerate(zip(planned.inputs.corpora, planned.sums, strict=True)):
        left_out = {reason: count for reason, count in corpus.num_left_out().items() if count}
        skipped = sums.skipped | left_out
        tallies.append(
            Tally(
                corpus=corpus,
                samples=sums.packed + sum(skipped.values()),
                packed=sums.packed,
                tokens=sums.tokens,
                skipped=skipped,
                uncounted=_uncounted(config),
                has_media=corpus.dataset.has_media or sums.media_bytes > 0,
                lines=lambda number=number: lines(number),  # type: ignore[misc]
            )
        )
    whole = sum(planned.sums, Sums())
    tokens = Tokens(packed=whole.tokens, skipped=whole.skipped_tokens)
    return troubles(tallies, tokens, config.max_skipped, more)


def _uncounted(config: PackConfig) -> tuple[str, ...]:
    return (*UNCOUNTED, "overlong") if config.accepts_overlong else UNCOUNTED


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Of all data sets: those that are packed, and by reason those of samples that were measured and skipped."""

    packed: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)

    def without(self, reasons: Sequence[str]) -> int:
        return sum(count for reason, count in self.skipped.items() if reason not in reasons)


def troubles(tallies: Sequence[Tally], tokens: Tokens, max_skipped: float, more: str) -> tuple[str, ...]:
    """Lines of text: what is wrong, then each data set that lost rows. None, if no more is lost than may be.

    `more`: where to read on. With a `max_skipped` of 1, whatever comes is right.
    """
    wanted, lost = sum(tally.wanted for tally in tallies), sum(tally.lost for tally in tallies)
    wrong = []
    if not any(tally.packed for tally in tallies):
        wrong.append("nothing is packed" + (_NOT_ASKED[tallies[0].corpus.split] if tallies and not wanted else ""))
    elif empty := [tally.corpus.name for tally in tallies if tally.is_empty]:
        wrong.append(f"nothing is packed of {', '.join(empty)}")
    lost_tokens = tokens.without(tallies[0].uncounted) if tallies else 0
    wanted_tokens = tokens.packed + tokens.without(LEFT_OUT)
    if lost > max_skipped * wanted or lost_tokens > max_skipped * wanted_tokens:
        share = f"{lost:,} of {counted(wanted, 'sample')} skipped, {percent(lost, wanted)}"
        if lost_tokens:
            share += (
                f", and {lost_tokens:,} of {counted(wanted_tokens, 'token')}, {percent(lost_tokens, wanted_tokens)}"
            )
        wrong.append(f"{share}: more than max_skipped allows, {max_skipped:.1%}")
    if not wrong or max_skipped == 1:
        return ()
    affected = sorted((tally for tally in tallies if tally.lost or tally.is_empty), key=lambda tally: -tally.lost)
    code = "too-many-skipped" if any(tally.packed for tally in tallies) else "no-rows"
    lines = [f"{'; '.join(wrong)} [{code}]", *(_described(tally) for tally in affected[:MAX_DATASETS])]
    if len(affected) > MAX_DATASETS:
        lines.append(f"and {counted(len(affected) - MAX_DATASETS, 'data set')} more")
    lines += [more] * bool(more and affected)
    return (*lines, "if that is right, raise --max-skipped; 1 takes whatever comes")


@dataclass(kw_only=True, slots=True)
class _Group:
    """Rows that are skipped for one reason in much the same words."""

    reason: str
    count: int
    tokens: int
    row: int  # the first of them
    detail: str  # its own
    words: str  # of all of them
    is_alike: bool  # whether all say the very same


def _described(tally: Tally) -> str:
    name, skipped = tally.corpus.name, tally.wanted - tally.packed
    if not tally.corpus.num_rows:
        return f"{name}: {', '.join(tally.corpus.dataset.files) or tally.corpus.dataset.source} has no rows"
    groups = _groups(tally)
    told = "; ".join(_told(group, tally) for group in groups[:MAX_GROUPS])
    others = groups[MAX_GROUPS:]
    if others:
        tokens = sum(group.tokens for group in others)
        more = f" ({counted(tokens, 'token')})" if tokens else ""
        told += f"; and {sum(group.count for group in others):,}{more} for {counted(len(others), 'other cause')}"
    lost = sum(group.tokens for group in groups)
    share = f", with {percent(lost, tally.tokens + lost)} of its tokens" if lost else ""
    return f"{name}: {skipped:,} of {tally.wanted:,} skipped{share}: {told}"


def _told(group: _Group, tally: Tally) -> str:
    if group.count == 1:
        detail, row = group.detail, f"row {group.row}"
    else:
        detail, row = group.words, f"row {group.row}" + ("" if group.is_alike else ", for one")
    detail = clipped(detail.partition(KEYS)[0], MAX_SHOWN)  # the remedy names the keys of the row
    tokens = f" ({counted(group.tokens, 'token')})" if group.tokens else ""
    return f"{group.count:,}x {group.reason}{tokens}: {detail} ({row}){_remedy(group, tally)}"


def _groups(tally: Tally) -> list[_Group]:
    """The largest first. Details are counted by Arrow before they are looked at: there may be millions of them."""
    lines, media_dir = tally.lines(), tally.corpus.dataset.media_dir
    figures = [("row", "min"), ("row", "count"), ("tokens", "sum")]
    counts = lines.group_by(["reason", "detail"], use_threads=False).aggregate(figures)
    groups: dict[tuple[str, str], _Group] = {}
    for line in counts.sort_by("row_min").to_pylist():
        reason, detail, count = line["reason"], line["detail"], line["row_count"]
        if reason in LEFT_OUT:
            continue
        key = (reason, generic(detail, reason, media_dir))
        if key in groups:
            group = groups[key]
            group.count, group.is_alike = group.count + count, False
            group.tokens += line["tokens_sum"]
            group.words = key[1] if reason in ("missing_media", "bad_media") else group.detail
        else:
            groups[key] = _Group(
                reason=reason,
                count=count,
                tokens=line["tokens_sum"],
                row=line["row_min"],
                detail=detail,
                words=detail,
                is_alike=True,
            )
    return sorted(groups.values(), key=lambda group: -group.count)


def generic(detail: str, reason: str, media_dir: str) -> str:
    """What details have in common: "/data/a/7.jpg: No such file" in media_dir /data -> "a/…jpg: No such file"."""
    path, colon, words = detail.partition(": ")
    if reason in ("missing_media", "bad_media") and colon:
        place = Path(path.strip("'\""))
        if place.is_relative_to(media_dir):
            place = place.relative_to(media_dir)
        folder = "/".join(place.parts[: 1 if not place.is_absolute() else 2]) if len(place.parts) > 1 else ""
        shown = f"{folder.replace('//', '/')}/…" if folder else "…"
        return f"{shown}{place.suffix.lstrip('.')}: {_numberless(words)}"
    return _numberless(detail)


def _numberless(text: str) -> str:
    """Numbers and quoted paths are particular; quoted names (a column, a role) are not."""
    return re.sub(r"\d+", "#", re.sub(r"'[^']*[/.][^']*'|\"[^\"]*[/.][^\"]*\"", "'…'", text))


def _remedy(group: _Group, tally: Tally) -> str:
    """As it follows the row: "; rows have id, image: set columns" or ": is media_dir right?"."""
    corpus = tally.corpus
    if group.reason == "bad_row" and (row := _row(corpus, group.row)):
        keys, told = list(row), detect([row])
        other = f', or "format": "{told}"' if told and told != corpus.dataset.format else ""
        if other or _ABSENT.search(group.detail):
            shown = ", ".join(keys[:MAX_KEYS]) + (", …" if len(keys) > MAX_KEYS else "")
            if not told and (inside := _rows_inside(row)):
                return f"; the row has {shown}, and rows are inside of it: jq -c '{inside}' writes them as JSONL"
            return f"; rows have {shown}: " + (
                f"set columns and tags{other}" if told else 'give "format" and "columns"'
            )
    if _NO_ROW.match(group.detail):
        if "codec can't decode" in group.detail:
            return ": save the file as UTF-8, by iconv -f ENCODING -t UTF-8"
        return ": repair these lines, or write the file again, with an object on each line"
    if group.reason == "bad_placeholders" and not tally.has_media:
        kind = found[1] if (found := _KIND.search(group.detail)) else "image"
        return _NO_MEDIA.format(field=f"{kind}s")
    if _TELLS.search(group.detail):
        return ""
    remedy = REMEDIES[group.reason].format(media_dir=corpus.dataset.media_dir)
    if group.reason in _OF_MEDIA and not tally.has_media:
        return f": {_NAMED_IN_TEXT}; {remedy}"
    return f": {remedy}"


def _rows_inside(row: dict[str, Any]) -> str:
    """What jq finds rows by, in an object that holds them: {"data": [{…}, …]} or {"0": {…}, "1": {…}}; "": none."""

    def are_rows(values: Sequence[Any]) -> bool:
        return bool(values) and all(isinstance(value, dict) for value in values) and detect(values) is not None

    lists = {key: value[:100] for key, value in row.items() if isinstance(value, list)}
    found = next((key for key, values in lists.items() if key.isidentifier() and are_rows(values)), None)
    return f".{found}[]" if found else ".[]" if are_rows(list(row.values())[:100]) else ""


def _row(corpus: Corpus, number: int) -> dict[str, Any]:
    """A row, if its file still has it; else an empty one."""
    for part in corpus.source.parts:
        if part.first_row <= number < part.first_row + part.num_rows:
            try:
                row = next(
                    (parse_row(row.text, row.line) for row in rows(part, MAX_ROW_BYTES) if row.number == number), None
                )
            except OSError:
                return {}
            return row if isinstance(row, dict) else {}
    return {}
