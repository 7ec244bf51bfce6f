"""Where an iteration begins, and which shuffles it has: in shared memory that all its loader workers see alike."""

import torch

# What a loader worker notes when it has given out all that it reads: which iteration, and how many workers there are.
_WORKERS = 1 << 16
_DRAWS = 1 << 16  # more than shuffles are drawn for a pass


class Start:
    """Epoch and position (packs consumed before, over all ranks) at which an iteration begins; then the next epoch's.

    A consumer that iterates again without a word wants the next epoch. It cannot be asked: a plain DataLoader iterates
    in its workers alone. So every worker notes here that it is done, and whoever finds all of them done when an
    iteration begins moves on. Persistent workers and those that are started anew see the same numbers.

    Workers come here at once, and without a lock (one could not be pickled). So each reads the number of the iteration
    once, and what it writes follows from that number alone: the start of iteration n lies beside that of n - 1, which
    stays as it is, and two workers that both move on from n - 1 write the same.
    """

    def __init__(self) -> None:
        # [iteration, epoch and position of even iterations, of odd ones, then what worker 0, 1, … has noted]
        self._numbers = torch.zeros(5 + 1024, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch(self) -> int:
        return self._begun(self._iteration())[0]

    @property
    def position(self) -> int:
        return self._begun(self._iteration())[1]

    @property
    def is_finished(self) -> bool:
        """Whether all workers of this iteration have given out everything."""
        return self._is_finished(self._iteration())

    def begin(self, epoch: int, position: int = 0) -> None:
        """The next iteration begins here. Workers that all load one state begin it once."""
        iteration = self._iteration()
        if (epoch, position) != self._begun(iteration) or self._is_finished(iteration):
            self._move_on(iteration, epoch, position)

    def restart(self, epoch: int, position: int) -> None:
        """As `begin`, and what workers of an iteration that was broken off still note counts no more."""
        self._move_on(self._iteration(), epoch, position)

    def enter(self) -> int:
        """The number of the iteration that begins now, to `note` at its end."""
        iteration = self._iteration()
        if self._is_finished(iteration):
            return self._move_on(iteration, self._begun(iteration)[0] + 1, 0)
        return iteration

    def note(self, iteration: int, worker: int, num_workers: int) -> None:
        """This worker has given out all that it reads in that iteration."""
        self._numbers[5 + worker] = _note(iteration, num_workers)

    def _iteration(self) -> int:
        return int(self._numbers[0])

    def _begun(self, iteration: int) -> tuple[int, int]:
        at = 1 + 2 * (iteration % 2)
        return int(self._numbers[at]), int(self._numbers[at + 1])

    def _is_finished(self, iteration: int) -> bool:
        noted = self._numbers[5:]
        num_workers = int(noted[0]) % _WORKERS
        return num_workers > 0 and bool((noted[:num_workers] == _note(iteration, num_workers)).all())

    def _move_on(self, iteration: int, epoch: int, position: int) -> int:
        at = 1 + 2 * ((iteration + 1) % 2)
        self._numbers[at], self._numbers[at + 1] = epoch, position
        self._numbers[0] = iteration + 1  # last: whoever sees it sees the rest
        return iteration + 1


def _note(iteration: int, num_workers: int) -> int:
    return iteration * _WORKERS + num_workers


class Draws:
    """Which shuffle of a pass was taken: found out by one process of a rank, and seen by all of its workers.

    Without a lock: a number in shared memory says the pass, too, and who finds out the same writes the same. Two passes
    of a source are kept, for an epoch may end one and begin the next.
    """

    def __init__(self, num_sources: int) -> None:
        self._numbers = torch.zeros(max(1, num_sources), 2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def get(self, of: tuple[int, int], /) -> int | None:
        source, turn = of
        known_turn, draw = divmod(int(self._numbers[source, turn % 2]), _DRAWS)
        return draw - 1 if draw and known_turn == turn else None

    def __setitem__(self, of: tuple[int, int], draw: int, /) -> None:
        source, turn = of
        self._numbers[source, turn % 2] = turn * _DRAWS + draw + 1
