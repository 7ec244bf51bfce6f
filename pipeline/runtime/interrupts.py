"""Ctrl-C ends a run, whatever Python is at when it comes.

Python raises KeyboardInterrupt in whatever is running. In a finalizer, in the callback of a weak reference (every
import has one) and in functions that C code calls, nothing can be raised: it is reported as ignored, and gone. Some
libraries catch whatever comes while they are imported. So a command remembers that it was asked, and a run that says
how far it is (runtime/progress.py) is told again.
"""

import signal
import sys
import threading
from types import FrameType

_is_asked = False


def remember_interrupts() -> None:
    """In a process that is ours. Where somebody wants SIGINT ignored (nohup), or handles it, that stays."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    signal.signal(signal.SIGINT, _interrupted)
    report = sys.unraisablehook

    def silent(lost: "sys.UnraisableHookArgs") -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):  # that one is remembered
            report(lost)

    sys.unraisablehook = silent


def check_interrupted() -> None:
    """Raise a KeyboardInterrupt that was lost. While one is on its way, nothing: clean-up is not disturbed."""
    if _is_asked and sys.exception() is None and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


def _interrupted(number: int, frame: FrameType | None) -> None:
    global _is_asked
    _is_asked = True
    signal.default_int_handler(number, frame)
