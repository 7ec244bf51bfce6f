"""Which rows Random(42).sample over row numbers gives, as the online API documents it, for hundreds of millions of
rows: by whole arrays, and not in the order of the draw.

Python's own takes 1 us and an object for each number. What it does is written down here, so that the draw depends on no
version of it: the words of MT19937, which is fixed, and what `sample` makes of them.
"""

import math
import random

import numpy as np
from numpy.typing import NDArray

SEED = 42
MOST = 1 << 16  # words that are looked at together


def is_drawn(num_rows: int, num_drawn: int) -> NDArray[np.bool_]:
    """Of each row, whether it is in random.Random(SEED).sample(range(num_rows), num_drawn)."""
    assert 0 <= num_drawn <= num_rows < 1 << 32, "a word of the generator is a row number"
    words = _Words()
    # As Python chooses: by a set of what is drawn, where that is smaller than a list of all.
    size_of_set = 21 + (4 ** math.ceil(math.log(num_drawn * 3, 4)) if num_drawn > 5 else 0)
    if num_rows > size_of_set:
        return _different(words, num_rows, num_drawn)
    return _exchanged(_shrinking(words, num_rows, num_drawn), num_rows)


class _Words:
    """The generator's numbers of 32 bits, in order; those that were not used come again."""

    def __init__(self) -> None:
        *key, place = random.Random(SEED).getstate()[1]
        self._source = np.random.MT19937()
        self._source.state = {
            "bit_generator": "MT19937",
            "state": {"key": np.array(key, np.uint32), "pos": place},
        }
        self._ahead = np.zeros(0, np.int64)

    def next(self, number: int, bits: int) -> NDArray[np.int64]:
        """As many, each of so many bits, as `getrandbits` gives them."""
        lacking = number - len(self._ahead)
        if lacking > 0:
            more = self._source.random_raw(lacking).astype(np.int64)
            self._ahead = np.concatenate([self._ahead, more])
        return self._ahead[:number] >> (32 - bits)

    def use(self, number: int) -> None:
        self._ahead = self._ahead[number:]


def _different(words: _Words, num_rows: int, num_drawn: int) -> NDArray[np.bool_]:
    """Numbers below `num_rows` until so many are different: never more at once than are lacking."""
    found = np.zeros(num_rows, np.bool_)
    lacking = num_drawn
    while lacking:
        some = words.next(min(lacking, 64 * MOST), num_rows.bit_length())
        words.use(len(some))
        found[some[some < num_rows]] = True
        lacking = num_drawn - int(np.count_nonzero(found))
    return found


def _shrinking(words: _Words, num_rows: int, num_drawn: int) -> NDArray[np.int64]:
    """A number below num_rows, one below num_rows - 1, and so on: words that are too large are left out."""
    found: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    done = 0
    while done < num_drawn:
        below = num_rows - done
        bits = below.bit_length()
        # As long as the number of bits stays. Few words against `below`, so that few depend on those before them.
        most = min(num_drawn - done, below - (1 << (bits - 1)) + 1)
        some = words.next(min(MOST, 8 + below // 16), bits)
        taken = np.flatnonzero(_taken(some, below))[:most]
        words.use(int(taken[-1]) + 1 if len(taken) == most else len(some))
        found.append(some[taken])
        done += len(taken)
    return np.concatenate(found)


def _taken(words: NDArray[np.int64], below: int) -> NDArray[np.bool_]:
    """Which words are small enough, where each that is makes the limit one less for those after it.

    Found by guessing again from the last guess. One more from the front is right each time, and nearly always all.
    """
    taken = words < below
    while True:
        again = words < below - (np.cumsum(taken) - taken)
        if np.array_equal(again, taken):
            return taken
        taken = again


def _exchanged(places: NDArray[np.int64], num_rows: int) -> NDArray[np.bool_]:
    """What is drawn from a list of all rows at these places, if the last of the list goes to each place that was drawn.

    What stays in the list is what is not drawn. The number at a place is the one that went there last. What went there
    at step i was at the end, place num_rows - 1 - i, where another may have gone before; and so on, back to one that
    nobody moved.
    """
    steps = np.arange(len(places))
    ends = num_rows - 1 - steps
    last = np.full(num_rows, -1)  # by place: the step at which a number went there last, if it was not there
    moved = places != ends
    last[places[moved]] = steps[moved]  # of several at one place, the last stays
    origin = np.where(last[ends] < 0, steps, last[ends])
    while not np.array_equal(further := origin[origin], origin):
        origin = further
    stays = last[: num_rows - len(places)]
    found = np.ones(num_rows, np.bool_)
    found[np.where(stays < 0, np.arange(len(stays)), ends[origin[stays]] if len(steps) else stays)] = False
    return found
