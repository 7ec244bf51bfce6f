"""Where an iteration begins: one place in shared memory that the consumer and its loader workers see alike."""

import torch

# What a loader worker notes when it has given out all that it reads: which iteration, and how many workers there are.
_WORKERS = 1 << 16


class Start:
    """Epoch and position (packs consumed before, over all ranks) at which an iteration begins; then the next epoch's.

    A consumer that iterates again without a word wants the next epoch. It cannot be asked: a plain DataLoader iterates
    in its workers alone. So every worker notes here that it is done, and whoever finds all of them done when an
    iteration begins moves on. Persistent workers and those that are started anew see the same numbers.
    """

    def __init__(self) -> None:
        # [iteration, epoch, position, then what worker 0, 1, … has noted]
        self._numbers = torch.zeros(3 + 1024, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch(self) -> int:
        return int(self._numbers[1])

    @property
    def position(self) -> int:
        return int(self._numbers[2])

    @property
    def is_finished(self) -> bool:
        """Whether all workers of this iteration have given out everything."""
        iteration, noted = int(self._numbers[0]), self._numbers[3:]
        num_workers = int(noted[0]) % _WORKERS
        return num_workers > 0 and bool((noted[:num_workers] == _note(iteration, num_workers)).all())

    def begin(self, epoch: int, position: int = 0) -> None:
        """The next iteration begins here. Workers that all load one state begin it once."""
        if (epoch, position) != (self.epoch, self.position) or self.is_finished:
            self.restart(epoch, position)

    def restart(self, epoch: int, position: int) -> None:
        """As `begin`, and what workers of an iteration that was broken off still note counts no more."""
        iteration = int(self._numbers[0])
        # The iteration last: a worker that sees it sees the rest. Two that do this at once write the same.
        self._numbers[2], self._numbers[1] = position, epoch
        self._numbers[0] = iteration + 1

    def enter(self) -> int:
        """The number of the iteration that begins now, to `note` at its end."""
        if self.is_finished:
            self.restart(self.epoch + 1, 0)
        return int(self._numbers[0])

    def note(self, iteration: int, worker: int, num_workers: int) -> None:
        """This worker has given out all that it reads in that iteration."""
        self._numbers[3 + worker] = _note(iteration, num_workers)


def _note(iteration: int, num_workers: int) -> int:
    return iteration * _WORKERS + num_workers
