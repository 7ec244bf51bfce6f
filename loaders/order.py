"""Which pack comes when, and to whom: pure functions of (seed, epoch), position and world.

Of ten million packs an order is 80 MB, and a training has an order in every process. So it is computed where it is
asked for, a few groups at a time: what a process keeps is the order of the groups.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neatpack.format.groups import NestedGroups, nested_shuffle, nested_sizes, without_trend

MIN_GROUPS = 16  # of an epoch that keeps copies of rows spread
CHUNK = 1 << 17  # packs whose order is computed at once, where all of it is wanted: 1 MB each time
Drawn = dict[tuple[int, int], int]  # by source and pass, which of the shuffles that were drawn is taken


def epoch_order(
    packs: np.ndarray,
    group_size: int,
    seed: int,
    epoch: int,
    loads: Sequence[np.ndarray] = (),
    *,
    source: int = 0,
    keeps_spread: bool = False,
) -> np.ndarray:
    """The pack numbers of an epoch in order: whole groups of the plan shuffled, and blocks inside them, never across.

    `packs` are the numbers that exist, ascending. Groups that are not whole (the plan's last one; one that lost a pack
    to unreadable media) come last, so that steps before them stay aligned with groups. `loads` (visual tokens, say, of
    each pack): shuffles in which they rise or fall over the epoch are drawn again, as the planner does. `source`: of
    several outputs, each has a shuffle of its own. `keeps_spread`: see NestedGroups.
    """
    if keeps_spread:
        group_size = spread_group_size(group_size, len(packs))
    alone = Source(
        packs=packs, group_size=group_size, loads=lambda: loads, per_epoch=len(packs), keeps_spread=keeps_spread
    )
    return np.asarray(packs[_shuffled(alone, source, seed, epoch, {}).rows(0, len(packs))])


def spread_group_size(group_size: int, num_packs: int) -> int:
    """Return the packs that are shuffled as one where copies of rows stay spread: a sixteenth of all, at most."""
    return next((size for size in nested_sizes(group_size) if MIN_GROUPS * size <= num_packs), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """An output as the order sees it, or those of its packs that come equally often in an epoch."""

    packs: range | np.ndarray  # the pack numbers that exist, ascending; a range: all from 0 on
    group_size: int
    loads: Callable[[], Sequence[np.ndarray]]  # asked for when a shuffle is chosen, and not kept
    per_epoch: int  # packs that it gives to an epoch
    first: int = 0  # added to its pack numbers, so that those of several outputs differ
    keeps_spread: bool = False  # whether copies of rows stay spread over an epoch as the plan has them


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """One way through all packs of a source: its whole groups, shuffled or as they are, and the others behind them."""

    groups: range | np.ndarray  # rows of the whole groups, end to end, before the shuffle
    others: np.ndarray  # rows of the others, in order
    group_size: int
    shuffle: NestedGroups | None = None  # None: as they are
    number: int = 0  # of the shuffles that were drawn for this pass

    def rows(self, first: int, last: int) -> np.ndarray:
        """The rows that come at first … last - 1."""
        num_grouped = len(self.groups)
        places = self._places(first, min(last, num_grouped)) if first < num_grouped else np.empty(0, np.int64)
        grouped = places if isinstance(self.groups, range) else self.groups[places]
        return np.concatenate([grouped, self.others[max(0, first - num_grouped) : max(0, last - num_grouped)]])

    def _places(self, first: int, last: int) -> np.ndarray:
        if self.shuffle is None:
            return np.arange(first, last)
        begin = first // self.group_size
        places = self.shuffle.places(begin, -(-last // self.group_size))
        return places[first - begin * self.group_size : last - begin * self.group_size]

    def applied(self, load: np.ndarray) -> np.ndarray:
        """A load of each row, in the order of this pass."""
        result, step = np.empty(len(load), load.dtype), max(self.group_size, CHUNK // self.group_size * self.group_size)
        for first in range(0, len(load), step):
            result[first : first + step] = load[self.rows(first, min(first + step, len(load)))]
        return result


def _grouped(packs: range | np.ndarray, group_size: int) -> tuple[range | np.ndarray, np.ndarray]:
    """Rows of whole groups, and the others."""
    if isinstance(packs, range):
        num_grouped = len(packs) // group_size * group_size
        return range(num_grouped), np.arange(num_grouped, len(packs))
    numbers, counts = np.unique(packs // group_size, return_counts=True)
    whole = np.isin(packs // group_size, numbers[counts == group_size])
    return np.flatnonzero(whole), np.flatnonzero(~whole)


def _shuffled(source: Source, number: int, seed: int, turn: int, drawn: Drawn) -> Pass:
    random = np.random.PCG64(np.random.SeedSequence([seed, turn, number] if number else [seed, turn]))
    groups, others = _grouped(source.packs, source.group_size)
    sizes, count = nested_sizes(source.group_size), iter(range(1 << 30))

    def shuffle() -> Pass:
        shuffled = NestedGroups(len(groups) // source.group_size, sizes, random, keeps_spread=source.keeps_spread)
        pieces, rest, fitting = [np.empty(0, np.int64)], others, sizes
        while len(rest):  # as the plan cut it: in blocks of the largest nested size that fits, the remainder last
            fitting = [size for size in fitting if size <= len(rest)]
            num_whole = len(rest) // fitting[0] * fitting[0]
            pieces.append(nested_shuffle(rest[:num_whole], fitting, random))
            rest = rest[num_whole:]
        return Pass(groups=groups, others=np.concatenate(pieces), shuffle=shuffled, group_size=source.group_size,
                    number=next(count))  # fmt: skip

    known = drawn.get((number, turn))
    if known is not None:
        return [shuffle() for _ in range(known + 1)][-1]
    taken = without_trend(shuffle, source.loads(), sizes, lambda load, order: order.applied(load))
    drawn[number, turn] = taken.number
    return taken


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Packs that come one after another: those at first … last - 1 of a pass through a source."""

    source: Source
    through: Pass
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    def packs(self, first: int, last: int) -> np.ndarray:
        """Those at first … last - 1 of it."""
        rows, source = self.through.rows(self.first + first, self.first + last), self.source
        return (rows if isinstance(source.packs, range) else source.packs[rows]) + source.first


class Order:
    """The packs of an epoch, in order. `order[first:last]` computes those; `order[:]` all, in 8 bytes each."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._ends: list[int] = np.cumsum([len(span) for span in spans], dtype=np.int64).tolist()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, where: slice) -> np.ndarray:
        begin, end, _ = where.indices(len(self))
        pieces = [np.empty(0, np.int64)]
        for number in range(bisect_right(self._ends, begin), bisect_left(self._ends, end) + 1 if begin < end else 0):
            span, start = self._spans[number], self._ends[number] - len(self._spans[number])
            last = min(end - start, len(span))
            pieces += (span.packs(at, min(at + CHUNK, last)) for at in range(max(begin - start, 0), last, CHUNK))
        return np.concatenate(pieces)


def mixed_order(sources: Sequence[Source], seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
    """As `lazy_order`, all of it at once."""
    return lazy_order(sources, seed, epoch, shuffle=shuffle)[:]


def lazy_order(
    sources: Sequence[Source], seed: int, epoch: int, *, shuffle: bool = True, drawn: Drawn | None = None
) -> Order:
    """The packs of an epoch over several outputs, in order.

    Each output goes on through passes of its own, where it stopped in the epoch before: nothing of it comes again
    before all of it has come. 5 packs, 3 per epoch: the first three of pass 0, its last two and the first of pass 1, …
    Whole groups of the outputs take turns, evenly over the epoch, so that a step is as balanced as the group it comes
    from; what is left of broken groups comes last.

    `drawn`: which shuffles were taken, as far as it is known; what is found out here is added.
    """
    parts: list[Span] = []
    starts, of, turns, rests = [], [], [], []
    for number, source in enumerate(sources):
        mine = list(_passes(source, number, seed, epoch, shuffle, {} if drawn is None else drawn))
        wholes = [_whole_groups(span) for span in mine]
        starts += wholes
        of += [np.full(len(whole), len(parts) + at) for at, whole in enumerate(wholes)]
        num_groups = sum(map(len, wholes))
        turns.append((np.arange(num_groups) + 0.5) * source.group_size / max(1, num_groups * source.group_size))
        rests += [rest for span, whole in zip(mine, wholes, strict=True) for rest in _between(span, whole)]
        parts += mine
    if not parts:
        return Order([])
    order = np.argsort(np.concatenate(turns), kind="stable")
    return Order([*_joined(parts, np.concatenate(of)[order], np.concatenate(starts)[order]), *rests])


def _passes(source: Source, number: int, seed: int, epoch: int, shuffle: bool, drawn: Drawn) -> Iterator[Span]:
    """What an epoch has of the passes through a source."""
    num_packs = len(source.packs)
    begin, end = epoch * source.per_epoch, (epoch + 1) * source.per_epoch
    for turn in range(begin // num_packs, -(-end // num_packs)) if num_packs else ():
        if shuffle:
            through = _shuffled(source, number, seed, turn, drawn)
        else:
            through = Pass(groups=range(num_packs), others=np.empty(0, np.int64), group_size=source.group_size)
        start = turn * num_packs
        yield Span(source=source, through=through, first=max(0, begin - start), last=min(num_packs, end - start))


def _whole_groups(span: Span) -> np.ndarray:
    """Where in its pass the groups begin that are in a span as a whole."""
    size = span.source.group_size
    if span.through.shuffle is not None or isinstance(span.source.packs, range):
        last = min(span.last, len(span.through.groups))
        return np.arange(-(-span.first // size) * size, last // size * size, size)
    edges = np.flatnonzero(np.diff(span.source.packs[span.first : span.last] // size, prepend=-1, append=-1))
    return np.asarray(span.first + edges[:-1][np.diff(edges) == size])


def _between(span: Span, wholes: np.ndarray) -> list[Span]:
    """What is left of a span beside its whole groups."""
    firsts, lasts = np.append(span.first, wholes + span.source.group_size), np.append(wholes, span.last)
    left = firsts < lasts
    pairs = zip(firsts[left].tolist(), lasts[left].tolist(), strict=True)
    return [replace(span, first=first, last=last) for first, last in pairs]


def _joined(parts: Sequence[Span], of: np.ndarray, starts: np.ndarray) -> list[Span]:
    """Groups in order, `of` which part and where they begin in its pass; those that follow each other as one span."""
    if not len(of):
        return []
    sizes = np.array([part.source.group_size for part in parts])[of]
    goes_on = (np.diff(of) == 0) & (np.diff(starts) == sizes[:-1])
    firsts = np.flatnonzero(np.append(True, ~goes_on))
    lasts = np.append(firsts[1:], len(of)) - 1
    runs = zip(of[firsts].tolist(), starts[firsts].tolist(), (starts + sizes)[lasts].tolist(), strict=True)
    return [replace(parts[part], first=first, last=last) for part, first, last in runs]


def shares(num_packs: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Packs of each output in an epoch as long as all outputs together.

    10 and 20 packs by weights 0.7 and 0.3: 21 and 9.
    """
    return apportioned(sum(num_packs), weights)


def apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """A whole number in whole parts by weight; the largest remainders are rounded up."""
    exact = np.array(weights, dtype=np.float64) / sum(weights) * total
    whole = np.floor(exact).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return [int(count) for count in whole]


def share_length(num_packs: int, position: int, world_size: int, *, drop_last: bool) -> int:
    """How many packs a rank gets from global `position` on: equally many for every rank.

    What does not fill a last step is left out (`drop_last`), or filled up with packs from the start of the epoch.
    """
    left = max(0, num_packs - position)
    return left // world_size if drop_last else -(-left // world_size)


def rank_share(
    order: Order | np.ndarray, position: int, rank: int, world_size: int, first: int, last: int
) -> np.ndarray:
    """The packs first … last - 1 of a rank from global `position` on, which are every world_size-th.

    Behind the last of them the order begins anew.
    order [a b c d e], position 0, world 2: ranks [a c] and [b d], and with a third item [a c e] and [b d a].
    """
    begin, end = position + first * world_size, position + last * world_size
    pieces = [order[begin:end]]
    while (missing := end - max(begin, len(order)) - sum(map(len, pieces[1:]))) > 0 and len(order):
        pieces.append(order[:missing])
    return np.concatenate(pieces)[rank::world_size]
