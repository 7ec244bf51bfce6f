"""A proof about the merges of a byte-pair encoding: that merging by rank and merging by list give the same tokens."""

from collections.abc import Sequence

import numpy as np

MAX_SIMULATED = 2000  # tokens that are merged one by one, in Python, to see what becomes of them
MAX_ROUNDS = 20


def are_ranked(merges: np.ndarray, byte_ids: Sequence[int]) -> bool:
    """Whether merging by the ids of what comes out gives the same tokens of any bytes as merging by the list.

    merges: ids [n, 3] of left, right and what they become, in the order of the list.

    It does where (1) the list is in the order of those ids, and (2) the bytes of every token, merged by the list,
    become that token. For let merging by ids make t of a pair. No merge has reached across the ends of t's bytes, so
    among them the same merges were made, in the same order, as if t stood alone; alone, by (2), the last of them is a
    pair of the list. So the pair is that one, and the list merges it as well.
    """
    if not len(merges) or (np.diff(merges[:, 2]) < 0).any() or max(byte_ids) >= merges[0, 2]:
        return False
    proper, rest = _proper(merges)
    pairs = _Pairs(merges)
    return len(rest) <= MAX_SIMULATED and _all_stand(proper, pairs) and _become(rest, merges, set(byte_ids))


def _proper(merges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merges of two older tokens, each itself made so all the way down; and the ids of tokens that have none."""
    left, right, merged = merges.T
    is_made = np.zeros(int(merges.max()) + 1, dtype=bool)
    is_made[merged] = True
    is_proper, count = np.maximum(left, right) < merged, -1
    is_left_out = np.zeros_like(is_made)
    while count != (count := int(np.count_nonzero(is_proper))):
        is_left_out[:] = is_made
        is_left_out[merged[is_proper]] = False
        is_proper &= ~(is_left_out[left] | is_left_out[right])
    return merges[is_proper], np.flatnonzero(is_left_out)


class _Pairs:
    """What pairs become, for many at once."""

    def __init__(self, merges: np.ndarray) -> None:
        keys = merges[:, 0] << 32 | merges[:, 1]
        order = np.argsort(keys)
        self.keys, self.merged = keys[order], merges[order, 2]

    def become_below(self, left: np.ndarray, right: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Whether they merge into a token below `limit`."""
        wanted = left << 32 | right
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        below: np.ndarray = (self.keys[place] == wanted) & (self.merged[place] < limit)
        return below


def _all_stand(merges: np.ndarray, pairs: _Pairs) -> bool:
    """(2) for tokens that older ones make. Some lists name several ways to make a token: one of them is the one, mostly
    that of the oldest parts. Where it does not stand, another that does takes its place, until all stand as they are.
    """
    left, right, merged = merges[np.lexsort((np.maximum(merges[:, 0], merges[:, 1]), merges[:, 2]))].T
    tokens, way = np.unique(merged, return_index=True)
    parts = np.tile(np.arange(int(merged.max(initial=0)) + 1), (2, 1))  # a byte is made of itself
    for _ in range(MAX_ROUNDS):
        parts[:, tokens] = left[way], right[way]
        stands = _stand(left[way], right[way], tokens, parts, pairs)
        if stands.all():
            return True
        others = np.flatnonzero(np.isin(merged, tokens[~stands]))
        others = others[_stand(left[others], right[others], merged[others], parts, pairs)]
        better, first = np.unique(merged[others], return_index=True)
        if not len(better):
            return False
        way[np.searchsorted(tokens, better)] = others[first]
    return False


def _stand(left: np.ndarray, right: np.ndarray, limit: np.ndarray, parts: np.ndarray, pairs: _Pairs) -> np.ndarray:
    """Which pairs are still two tokens when all merges into ids below `limit` are made.

    A pair stands unless what its two neighbouring ends are made of would have merged earlier. The later one of the two
    is taken apart, again and again. Left to right among equals: what is further left merges first.
    """
    stands = np.ones(len(left), dtype=bool)
    rows = np.arange(len(left))
    while len(rows):
        fails = pairs.become_below(left, right, limit)
        stands[rows[fails]] = False
        inner_left, inner_right = parts[1][left], parts[0][right]
        can_left, can_right = inner_left != left, inner_right != right
        goes_left = can_left & ((left > right) | ~can_right)
        limit = np.where(goes_left, left, right + 1)
        left, right = np.where(goes_left, inner_left, left), np.where(goes_left, right, inner_right)
        on = (can_left | can_right) & ~fails
        rows, left, right, limit = rows[on], left[on], right[on], limit[on]
    return stands


def _become(tokens: np.ndarray, merges: np.ndarray, byte_ids: set[int]) -> bool:
    """(2) for the few others: their bytes are merged by the list."""
    if not len(tokens):
        return True
    ranks = {(left, right): (place, merged) for place, (left, right, merged) in enumerate(merges.tolist())}
    made_of = {merged: (left, right) for (left, right), (_, merged) in ranks.items()}

    def bytes_of(token: int) -> list[int]:
        return [token] if token in byte_ids else [part for half in made_of[token] for part in bytes_of(half)]

    def merged(ids: list[int]) -> list[int]:
        while found := [(*ranks[pair], at) for at, pair in enumerate(zip(ids, ids[1:], strict=False)) if pair in ranks]:
            _, token, at = min(found, key=lambda each: (each[0], each[2]))
            ids[at : at + 2] = [token]
        return ids

    return all(merged(bytes_of(token)) == [token] for token in tokens.tolist())
