"""A job in a process of its own that is started again when a medium brings it down, as Ray does with its workers.

The fork comes before anything heavy is imported or any thread is started, and there is one for the whole job.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable

from .journal import ALARMS, LATE_MEDIA, MAX_RETRIES, count_late_media, late_media_file
from .logs import to_stderr

# Crashes, and the end of a budget: what leaves a report in the journal. Whatever else ends the process is meant to.
_REPORTED = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, *ALARMS.values()}
_PR_SET_PDEATHSIG = 1  # of Linux


def run_again(job: Callable[[], int]) -> int:
    """The exit code of the job. Returns in two processes: there with what the job gave, and here with the same."""
    with late_media_file() as file:
        os.environ[LATE_MEDIA] = file
        code, ended_by = _run_attempts(job)
    if ended_by is not None:
        if ended_by != signal.SIGKILL:  # which has no handler, and none may be set
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    return code


def _run_attempts(job: Callable[[], int]) -> tuple[int, int | None]:
    """The exit code of the job, and the signal that ended its last attempt, or None.

    Attempts that lead to one more row that is skipped do not count: rows must not end the run by being many.
    """
    attempts = num_late = 0
    while True:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it is clear whose it is
        parent, child = os.getpid(), os.fork()
        if not child:
            _end_with(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return job(), None
        status = _waited_for(child, mask)
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status), None
        before, num_late = num_late, count_late_media()
        attempts = attempts + 1 if num_late == before else 1
        if os.WTERMSIG(status) not in _REPORTED or attempts > MAX_RETRIES:
            break
        name = signal.Signals(os.WTERMSIG(status)).name
        to_stderr(f"neatpack: the process ended by {name}; going on in another")
    if os.WTERMSIG(status) == signal.SIGKILL:  # which leaves no word of its own
        to_stderr(
            "neatpack: the process was killed (SIGKILL). Mostly the kernel does that when memory runs out: look at "
            "its log (dmesg) and give the job more memory. What is done is kept; run the same command again. [memory]"
        )
    return 1, os.WTERMSIG(status)  # the code is for a signal that is blocked


def _waited_for(child: int, mask: Iterable[int]) -> int:
    """Its status. Ctrl-C reaches it from the terminal, as it reaches us; other wishes to end are passed on."""
    if signal.SIGINT in signal.sigpending():  # perhaps it came before there was a child
        os.kill(child, signal.SIGINT)
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda number, _: os.kill(child, number))
    try:
        return os.waitpid(child, 0)[1]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with(parent: int) -> None:
    """Whoever kills the command means this process, too. Elsewhere than on Linux it would go on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed just now
            os.kill(os.getpid(), signal.SIGKILL)
