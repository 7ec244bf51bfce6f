"""Mixing: which samples share a pack, beyond their lengths.

Every sample has a phase in [0, 1): its place in the epoch, as far as lengths allow. Samples of one group (copies of a
row, rows with one image) have phases at equal distances, all others one at random. Packs are planned in sections by
phase, so copies lie in different packs, spread over the epoch. `separate` exchanges documents of packs that hold two
samples of a group all the same. Functions from ints to ints.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .knapsack import Ints, Mask, Samples, bin_sums, sort_with_first, sorted_by, stable_order

MAX_SECTIONS = 16
MIN_ROUNDS, MAX_ROUNDS, MIXED_SAMPLES = 2, 24, 300_000  # exchanges between bundles, of so many samples in all
ALIGN_ROUNDS, FINEST = 16, 1 << 12  # and the steps in phases
MOST_BUNDLED = 8
LOAD_STEPS = 8  # in the mean deviation of packs' encoder loads; bundles that change places are of one step
MIN_SECTION_BINS = 8
ROUNDS, IDLE_ROUNDS = 24, 3  # of exchanges between documents of equal length, and those without any
LEAST_LOOKS, MOST_LOOKS, NUM_LOOKS = 24, 400, 50_000  # packs that are looked at for a document, and for all: 10 s
TRIES_PER_PACK, ORDERS = 4, 32
CANDIDATES = 20  # documents of each pack that may change places with it
LOAD_CHANGES = 0.02, 0.1, 1.0  # of a pack's mean encoder load; the larger ones for what finds no other place


class Kinship(NamedTuple):
    """Which samples are copies of one row, and which are of one group, as numbers from 0; a row is in one group."""

    rows: Ints
    groups: Ints
    phases: NDArray[np.float64]
    largest: int  # samples of the largest group


def draw_phases(rows: Ints | None, groups: Ints | None, count: int, random: np.random.RandomState) -> Kinship | None:
    """Return the phases of samples in rows and groups; None if every sample is alone.

    A group of three rows, twice each: copies of the first have phases u and u + 1/2, of the second u + 1/6 and u + 4/6.
    """
    if rows is None and groups is None:
        return None
    own = np.arange(count) if rows is None else _numbered(rows)
    shared = own if groups is None else _numbered(groups)
    sizes = np.bincount(shared, minlength=1)
    largest = int(sizes.max(initial=1))
    if largest == 1:
        return None
    phases = random.random_sample(len(sizes))[shared]
    many = np.flatnonzero(sizes[shared] > 1)
    by_row = many[stable_order(own[many])]
    copy = _ranks(own[by_row])
    turn = random.permutation(int(own.max()) + 1)[own[by_row]]
    by_group = by_row[np.lexsort((turn, copy, shared[by_row]))]
    phases[by_group] = (phases[by_group] + _ranks(shared[by_group])) / sizes[shared[by_group]]
    return Kinship(own, shared, phases, largest)


def _numbered(values: Ints) -> Ints:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _ranks(ascending: Ints) -> Ints:
    """Count equal neighbours. [4, 4, 7, 7, 7] -> [0, 1, 0, 1, 2]"""
    starts = np.flatnonzero(np.diff(ascending, prepend=-1))
    counts = np.diff(np.append(starts, len(ascending)))
    return np.arange(len(ascending)) - np.repeat(starts, counts)


def num_sections(largest: int, num_bins: int) -> int:
    """Return a power of two: as many sections as the largest group has samples, as far as there are bins."""
    sections = 1
    while sections < min(largest, MAX_SECTIONS) and 2 * sections * MIN_SECTION_BINS <= num_bins:
        sections *= 2
    return sections


def section_block(num_bins: int, sections: int, sizes: list[int]) -> int:
    """Return the largest of the sizes that leaves eight blocks for each section; sections end where blocks do."""
    return next((size for size in sizes if 8 * size * sections <= num_bins), 1)


def section_edges(num_bins: int, sections: int, sizes: list[int]) -> Ints:
    """Return the first bin of each section, and the number of bins: whole blocks, and what is left in the last one."""
    block = section_block(num_bins, sections, sizes)
    num_blocks = num_bins // block
    edges = (2 * np.arange(sections + 1) * num_blocks + sections) // (2 * sections) * block
    edges[-1] = num_bins
    return edges


def mix_lengths(bin_of: Ints, edges: Ints, samples: Samples, random: np.random.RandomState) -> Ints:
    """Exchange bundles of documents of equal sums until samples of about one length share bins no more than others do.

    Best fit puts samples of neighbouring lengths into one bin. A dataset that is sorted by length, or has ten questions
    of about one length for each image, would become packs of one topic. Bins keep their tokens, and about their load,
    and samples their section. `edges`: its first bin.
    """
    section = np.searchsorted(edges, np.arange(int(edges[-1])), side="right") - 1
    counts = np.bincount(bin_of).astype(np.float64)
    chance = float((counts * (counts - 1)).sum()) / max(1, len(bin_of) - 1)  # pairs of neighbours in one bin
    load_step = _load_step(bin_of, samples, len(counts))
    bin_of = bin_of.copy()
    for todo in _texts_and_media(samples):
        own, bins = samples.take(todo), bin_of[todo]
        by_length = sorted_by(own.lengths, np.frombuffer(random.bytes(2 * len(todo)), np.uint16))  # ties at random
        expected = chance * len(todo) / len(bin_of)
        budget, before = max(MIN_ROUNDS, MIXED_SAMPLES // max(1, len(todo))), 0
        for round_ in range(MAX_ROUNDS):
            together = int(np.count_nonzero(np.diff(bins[by_length]) == 0))
            is_mixed = together <= expected + expected**0.5 / 2
            hardly_helps = round_ >= budget and 4 * together > 3 * before  # many samples: a round takes 30 ms a million
            if hardly_helps or (is_mixed and not round_):
                break
            before = together
            bins = _exchange_bundles(bins, section, own, load_step, random)
            if is_mixed:  # one round more has been, since other orders of equal lengths may have had worse luck
                break
        bin_of[todo] = bins
    return bin_of


def align_sections(bin_of: Ints, samples: Samples, kin: Kinship, random: np.random.RandomState) -> Ints:
    """Number bins so that samples are about where their phases are, and exchange bundles until more of them are."""
    num_bins = int(bin_of.max()) + 1
    bin_of = random.permutation(num_bins)[bin_of]
    load_step = _load_step(bin_of, samples, num_bins)
    everywhere = np.zeros(num_bins, dtype=np.int64)
    for todo in _texts_and_media(samples):
        own, bins, phases = samples.take(todo), bin_of[todo], kin.phases[todo]
        for _ in range(ALIGN_ROUNDS if len(todo) else 0):
            bins = _exchange_bundles(bins, everywhere, own, load_step, random, phases)
        bin_of[todo] = bins
    return bin_of


def _texts_and_media(samples: Samples) -> tuple[Ints, Ints]:
    is_text = (samples.encoder == 0) & ~samples.is_visual
    return np.flatnonzero(is_text), np.flatnonzero(~is_text)


def _load_step(bin_of: Ints, samples: Samples, num_bins: int) -> int:
    """Return how much less than a bundle's encoder load may come for it: little against how bins differ already."""
    loads = bin_sums(bin_of, samples.encoder, num_bins)
    return max(1, int(np.abs(loads - loads.sum() // num_bins).sum()) // (num_bins * LOAD_STEPS))


def _exchange_bundles(
    bin_of: Ints,
    section: Ints,
    samples: Samples,
    load_step: int,
    random: np.random.RandomState,
    phases: NDArray[np.float64] | None = None,
) -> Ints:
    """Bundle the documents of each bin at random, in twos at least, and let bundles of equal sums change places.

    Bins of short documents have larger bundles, too: five of 60 tokens change places with six of 50. By `phases`,
    documents of near ones are bundled, and bundles go into bins in the order of theirs.
    """
    order, starts, places = _bundle(bin_of, random, phases)
    keys = [np.add.reduceat(samples.lengths[order], starts)]
    if samples.encoder.any() or samples.is_visual.any():
        visual, encoder = (
            np.add.reduceat(values[order], starts) for values in (samples.visual_tokens, samples.encoder)
        )
        keys += [encoder // load_step, (visual > 0).astype(np.int64) if samples.max_visual_tokens is None else visual]
    if section.any():
        keys.append(section[places])
    sizes = np.diff(starts, append=len(order))
    if phases is None:
        moved = _give_to_next(places, keys, random)
    else:
        means = np.add.reduceat((phases[order] * FINEST).astype(np.int64), starts) // sizes
        moved = np.empty_like(places)
        moved[sorted_by(*keys, means)] = places[sorted_by(*keys, places)]
    exchanged = np.empty_like(bin_of)
    exchanged[order] = np.repeat(moved, sizes)
    return exchanged


def _bundle(bin_of: Ints, random: np.random.RandomState, phases: NDArray[np.float64] | None) -> tuple[Ints, Ints, Ints]:
    """Return the documents in an order in which bundles are together, and the start and the bin of each bundle."""
    within = _few_bits(len(bin_of), random) if phases is None else (phases * FINEST).astype(np.int64)
    order = sorted_by(bin_of, within)
    counts = np.bincount(bin_of)
    most = np.clip(counts // 4, 1, MOST_BUNDLED - 1)
    each = (2 if phases is None else 1) + (random.random_sample(len(most)) * most).astype(np.int64)
    num_bundles = -(-counts // each)
    places = np.repeat(np.arange(len(counts)), num_bundles)
    # The third bundle of a bin starts two bundles after its first document.
    before = np.cumsum(counts) - counts - (np.cumsum(num_bundles) - num_bundles) * each
    return order, before[places] + np.arange(len(places)) * each[places], places


def _give_to_next(places: Ints, keys: list[Ints], random: np.random.RandomState) -> Ints:
    """Return, for each bundle, the place of the next one with its keys, in random order; for the last the first's."""
    turn, first = sort_with_first(*keys, _few_bits(len(places), random))
    differs = first[1:] != first[:-1]
    for key in keys[1:]:
        differs |= np.diff(key[turn]) != 0
    lasts = np.append(np.flatnonzero(differs), len(turn) - 1)
    given = places[turn]
    firsts = given[np.append(0, lasts[:-1] + 1)]
    given[:-1] = given[1:]
    given[lasts] = firsts
    moved = np.empty_like(places)
    moved[turn] = given
    return moved


def _few_bits(count: int, random: np.random.RandomState) -> Ints:
    """Return random numbers of eight bits: enough for an order in which neighbours are others each time."""
    return np.frombuffer(random.bytes(count), np.uint8).astype(np.int64)


def _load_keys(samples: Samples) -> tuple[Ints, Ints, Ints]:
    return samples.encoder, samples.visual_tokens, samples.lengths


def separate(
    pack: Ints, samples: Samples, kin: Kinship, random: np.random.RandomState, fixed: Mask | None = None
) -> Ints:
    """Exchange documents until no pack holds two samples of a group, as far as a search finds what to exchange.

    First documents of equal length and load are exchanged, at random; then a document with another of about its
    length, and texts that make up for the difference. `fixed`: samples that stay where they are.
    """
    pack = pack.copy()
    movable = np.ones(len(pack), dtype=np.bool_) if fixed is None else ~fixed
    num_packs = int(pack.max()) + 1
    rows = _without_large(kin.rows, np.arange(len(pack)), num_packs)
    looks = NUM_LOOKS
    for labels in (_without_large(kin.groups, rows, num_packs), rows):
        if (clashing(pack, labels) & movable).any():
            _exchange_alike(pack, samples, labels, random, movable)
        for load_change in LOAD_CHANGES:
            if looks > 0 and (clashing(pack, labels) & movable).any():
                looks -= _Search(pack, samples, labels, random, movable, load_change).run(looks)
    return pack


def _without_large(labels: Ints, others: Ints, most: int) -> Ints:
    """Return the other labels where one has more samples than there are packs: those cannot avoid each other."""
    is_large = np.bincount(labels)[labels] > most
    return _numbered(np.where(is_large, len(labels) + others, labels)) if is_large.any() else labels


def clashing(pack: Ints, labels: Ints) -> Mask:
    """Return which samples share their pack with an earlier one of their label."""
    order = np.lexsort((labels, pack))
    again = np.zeros(len(pack), dtype=np.bool_)
    same = (np.diff(pack[order]) == 0) & (np.diff(labels[order]) == 0)
    again[order[1:][same]] = True
    return again


def _exchange_alike(pack: Ints, samples: Samples, labels: Ints, random: np.random.RandomState, movable: Mask) -> None:
    order = np.lexsort(_load_keys(samples))
    order = order[movable[order]]
    if not len(order):
        return
    keys = np.stack(_load_keys(samples))[:, order]
    starts = np.flatnonzero(np.append(True, (np.diff(keys, axis=1) != 0).any(axis=0)))
    counts = np.diff(np.append(starts, len(order)))
    of_class = np.repeat(np.arange(len(starts)), counts)
    class_of = np.full(len(pack), -1)
    class_of[order] = of_class
    num_labels = int(labels.max()) + 1
    idle = 0
    for _ in range(ROUNDS):
        bad = np.flatnonzero(clashing(pack, labels) & movable)
        bad = bad[counts[class_of[bad]] > 1]
        if not len(bad) or idle == IDLE_ROUNDS:
            return
        here = bad[random.permutation(len(bad))]
        mine = class_of[here]
        there = order[starts[mine] + (random.random_sample(len(here)) * counts[mine]).astype(np.int64)]
        held = np.unique(pack * num_labels + labels)

        def free(packs: Ints, wanted: Ints, held: Ints = held) -> Mask:
            key = packs * num_labels + wanted
            at = np.minimum(np.searchsorted(held, key), len(held) - 1)
            return np.asarray(held[at] != key)

        able = free(pack[there], labels[here]) & free(pack[here], labels[there])
        here, there = here[able], there[able]
        # Each pack takes part in one exchange of a round: what was asked above holds.
        ends = np.stack([pack[here], pack[there]], axis=1).reshape(-1)
        first = np.full(int(pack.max()) + 1, len(ends))
        np.minimum.at(first, ends, np.arange(len(ends)))
        alone = (first[pack[here]] >= 2 * np.arange(len(here))) & (first[pack[there]] >= 2 * np.arange(len(here)))
        here, there = here[alone], there[alone]
        idle = 0 if len(here) else idle + 1
        pack[here], pack[there] = pack[there], pack[here]


class _Search:
    """Looks for exchanges of documents that are not alike: one or two for some that are about as long."""

    def __init__(
        self,
        pack: Ints,
        samples: Samples,
        labels: Ints,
        random: np.random.RandomState,
        movable: Mask,
        load_change: float,
    ) -> None:
        self.pack, self.samples, self.labels, self.random, self.movable = pack, samples, labels, random, movable
        num_packs = int(pack.max()) + 1
        self.visual = bin_sums(pack, samples.visual_tokens, num_packs)
        self.room = samples.capacity - bin_sums(pack, samples.lengths, num_packs)
        self.room -= np.where(self.visual > 0, 0, samples.text_reserve)
        self.most_load = int(samples.encoder.sum() * load_change / num_packs)
        self._by_pack = stable_order(pack)
        self._edges = np.searchsorted(pack[self._by_pack], np.arange(num_packs + 1))
        self._members: dict[int, Ints] = {}

    def run(self, most_looks: int) -> int:
        """Look for exchanges, and return how often packs were looked at; no more often than that."""
        num_packs, looks = len(self.room), 0
        bad = np.flatnonzero(clashing(self.pack, self.labels) & self.movable)
        num_looks = min(MOST_LOOKS, max(LEAST_LOOKS, most_looks // max(1, len(bad))))
        for sample in bad.tolist():
            if looks >= most_looks:
                break
            here = int(self.pack[sample])
            if np.count_nonzero(self.labels[self._in(here)] == self.labels[sample]) < 2:
                continue  # the other one has been moved
            for there in self.random.randint(0, num_packs, num_looks).tolist():
                looks += 1
                if there != here and self._exchange(sample, here, there):
                    break
        return looks

    def _in(self, pack: int) -> Ints:
        if pack not in self._members:
            self._members[pack] = self._by_pack[self._edges[pack] : self._edges[pack + 1]]
        return self._members[pack]

    def _exchange(self, sample: int, here: int, there: int) -> bool:
        """Move a sample from `here` to `there`, perhaps with another one, and some that fill its place back."""
        if (self.labels[self._in(there)] == self.labels[sample]).any():
            return False
        along, back = self._candidates(here, there, sample), self._candidates(there, here, sample)
        # What comes back are the first ones of an order, of several random ones; or nothing.
        orders = np.argsort(self.random.random_sample((ORDERS, len(back))), axis=1)
        growths = []
        for values in (self.samples.lengths, self.samples.encoder, self.samples.visual_tokens):
            given = np.append(values[along], 0) + values[sample]
            taken = np.append(np.cumsum(values[back][orders], axis=1), 0)
            growths.append(given[:, None] - taken[None, :])
        growth, load, visual = growths
        allowed = (growth <= self.room[there]) & (-growth <= self.room[here]) & (np.abs(load) <= self.most_load)
        # Packs with visual tokens keep some: they have no room for a fake image.
        if self.samples.visual_tokens[sample] or self.visual[here] or self.visual[there]:
            for pack, sign in ((there, 1), (here, -1)):
                after = self.visual[pack] + sign * visual
                allowed &= (after > 0) | (self.visual[pack] == 0)
                if self.samples.max_visual_tokens is not None:
                    allowed &= after <= self.samples.max_visual_tokens
        found = np.flatnonzero(allowed)
        for at in found[self.random.randint(0, len(found), TRIES_PER_PACK)].tolist() if len(found) else ():
            with_it, which = divmod(at, allowed.shape[1])
            order, last = divmod(which, max(1, len(back)))
            to_there = [sample, *along[with_it : with_it + 1].tolist()]
            to_here = back[orders[order, : last + 1]].tolist() if which < orders.size else []
            if all(len(set(self.labels[moved].tolist())) == len(moved) for moved in (to_there, to_here)):
                self._move(to_there, here, there)
                self._move(to_here, there, here)
                return True
        return False

    def _candidates(self, source: int, target: int, besides: int) -> Ints:
        """Return documents of a pack that may go to another, in random order."""
        own = self._in(source)
        own = own[self.movable[own] & (own != besides) & ~np.isin(self.labels[own], self.labels[self._in(target)])]
        return np.asarray(own[self.random.permutation(len(own))[:CANDIDATES]])

    def _move(self, moved: list[int], source: int, target: int) -> None:
        if not moved:
            return
        tokens, visual = (int(values[moved].sum()) for values in (self.samples.lengths, self.samples.visual_tokens))
        self._members[source] = np.setdiff1d(self._in(source), moved)
        self._members[target] = np.concatenate([self._in(target), moved])
        self.pack[moved] = target
        self.room[source] += tokens
        self.room[target] -= tokens
        self.visual[source] -= visual
        self.visual[target] += visual
