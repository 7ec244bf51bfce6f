"""Media in stores that fail. Such a medium costs its row; many of them in a short time end the run."""

import logging
import time
from collections import defaultdict, deque

from neatpack.storage.clients import NoAnswer, Unreachable
from neatpack.storage.location import Location

from ..records import Skip
from .limits import limits

MOST = 20  # media of one store that a process may lose within WINDOW
WINDOW = 600.0  # seconds
_DOWN = 3  # failures in a row after which requests are not tried again
_ONCE = 1e-6  # seconds: no further try

logger = logging.getLogger(__name__)


class StoreFailures:
    """Counts, per store, the media of this process that could not be read."""

    def __init__(self) -> None:
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)
        self._in_a_row: defaultdict[str, int] = defaultdict(int)

    def patience(self, medium: Location) -> float:
        """Return the seconds within which a request for a medium is tried again."""
        return _ONCE if self._in_a_row[_store_of(medium)] >= _DOWN else limits().media_timeout

    def note_answer(self, medium: Location) -> None:
        self._in_a_row[_store_of(medium)] = 0

    def lose_medium(self, error: NoAnswer) -> Skip:
        """Return the skip of a row whose medium could not be read.

        Raises:
            Unreachable: its store lost more than `MOST` media within `WINDOW` seconds.
        """
        store = _store_of(Location.parse(error.shown))
        now = time.monotonic()
        times = self._times[store]
        times.append(now)
        self._in_a_row[store] += 1
        while times[0] < now - WINDOW:
            times.popleft()
        logger.info("%s", error.told)
        if len(times) > MOST:
            del self._times[store], self._in_a_row[store]  # the next run in this process asks afresh
            raise Unreachable(
                f"{store} failed for {len(times)} media within {now - times[0]:.0f} s. The last: {error.told}"
            )
        return Skip(
            reason="missing_media", detail=f"{error.shown}: its store does not answer", fields={"medium": error.shown}
        )


def _store_of(medium: Location) -> str:
    return f"{medium.scheme}://{medium.authority.rpartition('@')[2]}"


store_failures = StoreFailures()  # of this process
