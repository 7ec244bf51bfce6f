"""The plan of a run: which row goes into which pack, at which position, and which row goes nowhere, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from neatpack.storage.location import Location
from neatpack.storage.tables import open_arrow, open_arrows

from ..config import PackConfig, UserError
from ..families.base import Family
from ..ingest.corpus import Corpus, TakenRows
from ..measure.length import shrunk, truncated
from ..measure.store import MeasuredPart, read_measured
from ..records import Measured
from .mixture import copies, drawn_copies, ratios
from .partition import partition_of
from .plan import plan_packs
from .table import (
    SCHEMA as SCHEMA,
    TEXT as TEXT,
    Key as Key,
    Plan as Plan,
    PlanLine as PlanLine,
    cut_off as cut_off,
    in_order as in_order,
    in_pack_order as in_pack_order,
    pack_bytes as pack_bytes,
    replaced as replaced,
    shard_starts as shard_starts,
    with_columns as with_columns,
)

FROM_STORE = (
    "at",
    "size",
    "tokens",
    "visual_tokens",
    "audio_tokens",
    "media_bytes",
    "picture_bytes",
    "reason",
    "detail",
)  # columns that a part of the store has
# Fitting changes these.
FITTED = (
    "tokens", "visual_tokens", "audio_tokens", "media_bytes", "picture_bytes", "limit", "shrink", "reason", "detail",
)  # fmt: skip
MAX_SHRINK = 16  # halvings: 768 frames are down to 4 after 8, and 100 megapixels to one patch after 16


Tokens = TypeVar("Tokens", int, np.ndarray)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TakenPart:
    """A part of the token store, and how often its rows are taken."""

    index: int  # in the run's measured parts
    corpus: int  # index into the run's corpora
    path: Location
    rows: TakenRows

    @classmethod
    def of(cls, index: int, part: MeasuredPart, corpora: Sequence[Corpus]) -> "TakenPart":
        rows = corpora[part.corpus].taken(part.part.first_row, part.part.num_rows)
        return cls(index=index, corpus=part.corpus, path=part.path, rows=rows)


class Share(NamedTuple):
    """What a plan knows of a corpus."""

    name: str
    weight: float | None
    has_group_column: bool = False


class Dealt(NamedTuple):
    """Which of several partitions is planned. Copies of a row are dealt to different ones, in equal distances."""

    number: int
    num_partitions: int
    tokens_in_all: Sequence[int]  # of each corpus, in all partitions; weights are about those


def make_plan(
    parts: Sequence[TakenPart],
    corpora: Sequence[Share],
    family: Family,
    config: PackConfig,
    dealt: Dealt | None = None,
) -> Plan:
    """Assign every measured row of these parts, as often as its corpus takes it; of a partition, those dealt to it."""
    lines = fitted_lines(parts, corpora, family, config, dealt)
    lines = _mixed(lines, corpora, dealt)
    lines = _with_groups(lines, corpora, config)
    reserve = reserved(config, len(family.fake_image_ids))
    tokens = aligned(lines["tokens"].to_numpy(), config.align)
    visual, audio = lines["visual_tokens"].to_numpy(), lines["audio_tokens"].to_numpy()
    is_good = pc.equal(lines["reason"], "").to_numpy()
    # Rows that exceed the fill that packing_ratio asks for, but not the pack, get a pack of their own.
    is_alone = tokens > np.where(visual > 0, config.fill, config.fill - reserve)
    shared, alone = np.flatnonzero(is_good & ~is_alone), np.flatnonzero(is_good & is_alone)
    rows, groups = kinship_of(lines)
    pack = np.full(len(lines), -1, dtype=np.int64)
    pack[shared] = plan_packs(
        tokens[shared],
        visual[shared],
        capacity=config.fill,
        group_size=config.group_size,
        seed=config.seed,
        max_visual_tokens=config.max_visual_tokens or None,
        text_reserve=reserve,
        audio_tokens=audio[shared],
        cost=config.step_cost,
        rows=None if rows is None else rows[shared],
        groups=None if groups is None else groups[shared],
    )
    pack[alone] = pack.max(initial=-1) + 1 + np.arange(len(alone))
    plan = in_pack_order(lines, pack)
    return cut_off(plan, config.max_packs) if config.max_packs else plan


def kinship_of(lines: pa.Table) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return a number for each row that lines are copies of, and one for its group; None where all are different."""
    rows, groups = _row_keys(lines), lines["group"].to_numpy()
    has_groups = bool(groups.any())
    if not has_groups and not lines["repeat"].to_numpy().any():
        return None, None
    return rows, np.where(groups > 0, -groups, rows) if has_groups else None


def _row_keys(lines: pa.Table) -> np.ndarray:
    keys: np.ndarray = (lines["dataset"].to_numpy().astype(np.int64) << 40) + lines["row"].to_numpy()
    return keys


def _with_groups(lines: pa.Table, corpora: Sequence[Share], config: PackConfig) -> pa.Table:
    """Number each group by its first row, so that numbers do not depend on where media are; a row alone is in none."""
    groups = lines["group"].to_numpy().copy()
    groups[~pc.equal(lines["reason"], "").to_numpy()] = 0
    if config.group_by == "none":
        is_asked = np.array([corpus.has_group_column for corpus in corpora])
        groups[~is_asked[lines["dataset"].to_numpy()]] = 0
    where = np.flatnonzero(groups)
    keys = _row_keys(lines)[where]
    _, first, inverse = np.unique(groups[where], return_index=True, return_inverse=True)
    of_first = keys[first][inverse]
    is_shared = np.zeros(len(first), dtype=np.bool_)
    is_shared[inverse[keys != of_first]] = True
    groups[where] = np.where(is_shared[inverse], of_first + 1, 0)
    return with_columns(lines, {"group": groups})


def fitted_lines(
    parts: Sequence[TakenPart],
    corpora: Sequence[Share],
    family: Family,
    config: PackConfig,
    dealt: Dealt | None = None,
) -> pa.Table:
    """One line per row and repetition, in source order, what is overlong made to fit or skipped."""
    reserve = reserved(config, len(family.fake_image_ids))
    paths = {part.index: part.path for part in parts}
    names = [corpus.name for corpus in corpora]
    fitting = _Fitting(names=names, paths=paths, family=family, config=config, reserve=reserve)
    return fitting.fitted(_lines(parts, corpora, config, dealt))


def measured_again(
    plan: Plan,
    where: np.ndarray,
    names: Sequence[str],
    paths: Mapping[int, Location],
    family: Family,
    config: PackConfig,
) -> pa.Table:
    """What the lines at these places of the plan's table are by the token store as it is now. `names`: of corpora."""
    lines = plan.table.take(pa.array(where))
    found = [
        open_arrow(paths[part]).select(FROM_STORE).slice(line, 1)
        for part, line in zip(lines["part"].to_pylist(), lines["line"].to_pylist(), strict=True)
    ]
    stored = pa.concat_tables(found) if found else lines.select(FROM_STORE)
    nothing = np.zeros(len(lines), dtype=np.int32)
    fresh = with_columns(lines, {name: stored[name] for name in FROM_STORE} | {"limit": nothing, "shrink": nothing})
    reserve = reserved(config, len(family.fake_image_ids))
    return _Fitting(names=names, paths=paths, family=family, config=config, reserve=reserve).fitted(fresh)


def reserved(config: PackConfig, num_fake_ids: int) -> int:
    """Tokens that a pack without visual tokens keeps free, for the fake image."""
    reserve = aligned(num_fake_ids, config.align) if config.fake_image else 0
    if reserve >= config.pack_size:
        raise UserError(
            f"--pack-size {config.pack_size}: a pack without pictures keeps {reserve} tokens free for a fake image, "
            "the smallest picture of this model, and has no room for text beside it; give more, or --no-fake-image",
            code="pack-size",
            pack_size=config.pack_size,
            reserve=reserve,
        )
    return reserve


def aligned(tokens: Tokens, align: int) -> Tokens:
    """What documents occupy in a pack, one or many: [5, 8] tokens with align 4 -> [8, 8]."""
    return -(-tokens // align) * align


def _lines(parts: Sequence[TakenPart], corpora: Sequence[Share], config: PackConfig, dealt: Dealt | None) -> pa.Table:
    """One line per row and repetition, in source order."""
    by_weight = None
    if dealt and corpora[0].weight is not None:
        by_weight = ratios(dealt.tokens_in_all, [corpus.weight or 0.0 for corpus in corpora])
    pieces: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    numbers = ("row", "group", "at", "size", "tokens", "visual_tokens", "audio_tokens", "media_bytes", "picture_bytes")
    for part, stored in zip(parts, open_arrows([part.path for part in parts]), strict=True):
        rows = stored["row"].to_numpy()
        repeats = part.rows.copies_of(rows)
        if by_weight:
            good = pc.equal(stored["reason"], "").to_numpy()
            repeats = np.where(good, drawn_copies(rows, by_weight[part.corpus]), repeats)
        is_once = bool((repeats == 1).all()) and dealt is None
        line = np.arange(len(rows)) if is_once else np.repeat(np.arange(len(rows)), repeats)
        repeat = _repeat_numbers(repeats)
        if dealt:
            copies = repeats[line]
            place = partition_of(part.corpus, rows[line], repeat, copies, dealt.num_partitions, config.seed)
            line, repeat = line[place == dealt.number], repeat[place == dealt.number]
        for name in numbers:
            values = stored[name].to_numpy()
            pieces[name].append(values if is_once else values[line])
        for name in ("id", "reason", "detail"):
            texts = stored[name] if is_once else stored[name].take(pa.array(line))
            pieces[name] += texts.cast(TEXT).chunks
        pieces["line"].append(line.astype(np.int32))
        pieces["repeat"].append(repeat.astype(np.int32))
    counts = [len(line) for line in pieces["line"]]
    fixed = {
        "dataset": np.repeat(np.array([part.corpus for part in parts], dtype=np.int32), counts),
        "part": np.repeat(np.array([part.index for part in parts], dtype=np.int32), counts),
    } | {name: np.full(sum(counts), value, np.int32) for name, value in
         (("pack", -1), ("position", -1), ("limit", 0), ("shrink", 0))}  # fmt: skip
    columns = []
    for field in SCHEMA:
        if field.name in fixed:
            columns.append(pa.array(fixed[field.name], field.type))
        elif field.type == TEXT:
            columns.append(pa.chunked_array(pieces[field.name], TEXT).combine_chunks())
        else:
            whole = np.concatenate([np.zeros(0, field.type.to_pandas_dtype()), *pieces[field.name]])
            columns.append(pa.array(whole, field.type))
    return pa.table(columns, schema=SCHEMA)


def tokens_of(lines: pa.Table, num_corpora: int) -> list[int]:
    """Of the lines that can be packed, by corpus."""
    good = np.where(pc.equal(lines["reason"], "").to_numpy(), lines["tokens"].to_numpy(), 0).astype(np.int64)
    sums = np.zeros(num_corpora, dtype=np.int64)
    np.add.at(sums, lines["dataset"].to_numpy(), good)
    return [int(count) for count in sums]


def _mixed(lines: pa.Table, corpora: Sequence[Share], dealt: Dealt | None) -> pa.Table:
    """Repeat lines by the weights of their data sets: only now it is known how long each row is, and which fit."""
    weights = [corpus.weight for corpus in corpora if corpus.weight is not None]
    if not weights or dealt:  # what is dealt is repeated already
        return lines
    assert len(weights) == len(corpora), "read_meta gives all of them a weight, or none"
    dataset = lines["dataset"].to_numpy()
    tokens = np.where(pc.equal(lines["reason"], "").to_numpy(), lines["tokens"].to_numpy(), 0).astype(np.int64)
    places = [np.flatnonzero(dataset == index) for index in range(len(corpora))]
    repeats = np.ones(len(lines), dtype=np.int32)
    for place, ratio in zip(places, ratios(tokens_of(lines, len(corpora)), weights), strict=True):
        repeats[place] = copies(tokens[place], ratio)
    taken = lines.take(pa.array(np.repeat(np.arange(len(lines)), repeats)))
    return with_columns(taken, {"repeat": _repeat_numbers(repeats)})


def _repeat_numbers(repeats: np.ndarray) -> np.ndarray:
    """[1, 3] -> [0, 0, 1, 2]."""
    numbers: np.ndarray = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return numbers


# What is left to try for a row that the policy could not make to fit.
NEXT_ADVICE = {
    "truncate": "; raise --pack-size, or give --overlong shrink",
    "shrink": "; raise --pack-size, or lower --max-pixels",
}


def video_flags(sampling: Mapping[str, Any]) -> str:
    """Return the flags that shorten videos, with their values: "--video-fps (now 2) or --video-max-frames (now 8)"."""
    number, rate = sampling.get("num_frames"), sampling.get("fps")
    values = {"--video-fps": f"{number} frames" if number else f"{rate:g}" if rate else "all"}
    for name in ("max_frames", "max_pixels"):
        if name in sampling:
            values[f"--video-{name.replace('_', '-')}"] = str(sampling[name] or "no bound")
    named = [f"{flag} (now {value})" for flag, value in values.items()]
    return " or ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    """How an overlong sample is made to fit, or why it is not."""

    measured: Measured | None  # what fits; None: nothing does
    words: str
    limit: int = 0  # tokens it is truncated to; 0: it is not
    shrink: int = 0  # steps by which its media are made smaller


@dataclass(frozen=True, kw_only=True)
class _Fitting:
    """Truncates, shrinks, skips or refuses what does not fit a pack, as the config says."""

    names: Sequence[str]  # of corpora
    paths: Mapping[int, Location]  # of parts, by index
    family: Family
    config: PackConfig
    reserve: int  # tokens that a pack without visual tokens keeps free, for the fake image

    def fitted(self, lines: pa.Table) -> pa.Table:
        """The lines of a plan: overlong samples made to fit or skipped, and those above max_visual_tokens skipped."""
        lines = self._without_overlong(lines)
        if not (most := self.config.max_visual_tokens):
            return lines
        visual = lines["visual_tokens"].to_numpy()
        above = np.flatnonzero((visual > most) & pc.equal(lines["reason"], "").to_numpy())
        reasons = ["too_many_visual_tokens"] * len(above)
        details = [f"{count} visual tokens, a pack may hold {most}" for count in visual[above].tolist()]
        texts = {"reason": reasons, "detail": details}
        return with_columns(lines, {name: replaced(lines[name], above, values) for name, values in texts.items()})

    def _without_overlong(self, lines: pa.Table) -> pa.Table:
        config = self.config
        if config.overlong_policy == "error":
            self._refuse_unmeasured(lines)
        tokens, visual = lines["tokens"].to_numpy(), lines["visual_tokens"].to_numpy()
        room = np.where(visual > 0, config.pack_size, config.pack_size - self.reserve)
        is_good = pc.equal(lines["reason"], "").to_numpy()
        where = np.flatnonzero(is_good & (aligned(tokens, config.align) > room))
        if not len(where):
            return lines
        media, pictures = (lines[name].to_numpy()[where] for name in ("media_bytes", "picture_bytes"))
        is_video = (2 * visual[where] > tokens[where]) & (2 * pictures < media)
        advice = [self._advice(count, video) for count, video in zip(visual[where], is_video, strict=True)]
        names = ("dataset", "row", "part", "line")
        dataset, row, part, line = (lines[name].to_numpy()[where].tolist() for name in names)
        lengths, rooms = tokens[where].tolist(), room[where].tolist()
        if config.overlong_policy == "error":
            raise UserError(
                f"{self.names[dataset[0]]} row {row[0]}: {lengths[0]} tokens, a pack holds {rooms[0]}{advice[0]}; "
                "set overlong to truncate or drop, or raise pack_size",
                code="overlong",
                dataset=self.names[dataset[0]],
                row=int(row[0]),
                tokens=int(lengths[0]),
                room=int(rooms[0]),
            )
        changed = {name: lines[name].to_numpy().copy() for name in FITTED if SCHEMA.field(name).type != TEXT}
        reasons, details = [], []
        for at, each in enumerate(where.tolist()):
            fit = self._fit(part[at], line[at])
            if fit.measured is None:
                reasons.append("overlong")
                details.append(f"{lengths[at]} tokens, a pack holds {rooms[at]}{fit.words}{advice[at]}")
                continue
            values = {
                "tokens": fit.measured.tokens,
                "visual_tokens": fit.measured.visual_tokens,
                "audio_tokens": fit.measured.audio_tokens,
                "media_bytes": fit.measured.media_bytes,
                "picture_bytes": fit.measured.picture_bytes,
                "limit": fit.limit,
                "shrink": fit.shrink,
            }
            for name, value in values.items():
                changed[name][each] = value
            reasons.append("")
            details.append(f"{fit.words} from {lengths[at]} to {fit.measured.tokens} tokens")
        texts = {"reason": reasons, "detail": details}
        return with_columns(
            lines, changed | {name: replaced(lines[name], where, values) for name, values in texts.items()}
        )

    def _refuse_unmeasured(self, lines: pa.Table) -> None:
        """Raise for a row that was not measured to its end, since it has more tokens than any pack."""
        where = np.flatnonzero(pc.equal(lines["reason"], "overlong").to_numpy())
        if len(where):
            dataset, row, detail = (lines[name][int(where[0])].as_py() for name in ("dataset", "row", "detail"))
            raise UserError(
                f"{self.names[dataset]} row {row}: {detail}; set overlong to truncate or drop",
                code="overlong",
                dataset=self.names[dataset],
                row=row,
            )

    def _advice(self, visual_tokens: int, is_video: bool) -> str:
        """Return what to do about an overlong row, where the general remedies do not help it."""
        if is_video and self.family.video is not None:
            flags = video_flags(self.family.video.sampling)
            return f"; {visual_tokens} of them are visual, most of video: lower {flags}, or raise --pack-size"
        return NEXT_ADVICE.get(self.config.overlong_policy, "")

    def _fit(self, part: int, line: int) -> _Fit:
        policy = self.config.overlong_policy
        if policy not in ("truncate", "shrink"):
            return _Fit(measured=None, words="")
        whole = read_measured(self.paths[part], line)
        assert whole is not None, "a row that was skipped is not fitted"
        return self._cut(whole) if policy == "truncate" else self._smaller(whole)

    def _cut(self, whole: Measured) -> _Fit:
        size, reserve = self.config.pack_size, self.reserve
        for limit in (size, size - reserve):  # a sample cut down to its text needs room for the fake image
            cut = truncated(whole, limit, self.family)
            if cut is None:
                return _Fit(measured=None, words="; cut to that it would have no target")
            if cut.visual_tokens or cut.tokens <= size - reserve:
                break
        return _Fit(measured=cut, words="truncated", limit=limit)

    def _smaller(self, whole: Measured) -> _Fit:
        for level in range(1, MAX_SHRINK + 1):
            smaller = shrunk(whole, level, self.family)
            if smaller is not None and aligned(smaller.tokens, self.config.align) <= self.config.pack_size:
                return _Fit(measured=smaller, words=f"shrunk (step {level})", shrink=level)
        return _Fit(measured=None, words="; its media cannot be made small enough")


def shares_of(corpora: Sequence[Corpus]) -> list[Share]:
    return [Share(corpus.name, corpus.weight, bool(corpus.dataset.group_column)) for corpus in corpora]
