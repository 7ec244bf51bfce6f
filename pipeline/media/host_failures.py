"""Hosts of downloads that fail. They cost their rows little time, and never the run, for rows name them."""

import time
from collections import defaultdict

NAMES = ""  # in place of a host: the resolver of names
_DOWN = 3  # failures in a row after which there is no second try
_GONE = 10  # connections in a row that failed, after which a host is asked once in `_REST` seconds
_REST = 60.0


class HostFailures:
    """Counts, per scheme, host and port, the downloads of this process that failed in a row."""

    def __init__(self) -> None:
        self._in_a_row: defaultdict[str, int] = defaultdict(int)
        self._unconnected: defaultdict[str, int] = defaultdict(int)
        self._resting: dict[str, float] = {}  # until when

    def is_resting(self, host: str) -> bool:
        """Whether a host is not to be asked now. Only failed connections count: those no other row can bring about."""
        return time.monotonic() < self._resting.get(host, 0.0)

    def num_tries(self, host: str, most: int) -> int:
        return 1 if self._in_a_row.get(host, 0) >= _DOWN else most

    def note_answer(self, host: str) -> None:
        for each in (host, NAMES):
            for counts in (self._in_a_row, self._unconnected):
                counts.pop(each, None)  # of millions of hosts that answer, nothing is kept

    def note_failure(self, host: str, *, is_connected: bool) -> None:
        """Count a download that failed in all of its tries."""
        self._in_a_row[host] += 1
        if is_connected:
            self._unconnected.pop(host, None)
            return
        self._unconnected[host] += 1
        if self._unconnected[host] >= _GONE:
            self._resting[host] = time.monotonic() + _REST


host_failures = HostFailures()  # of this process
