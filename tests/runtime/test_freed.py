"""Memory that malloc gets back stays with a process that is ours."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from neatpack.pipeline.runtime.freed import keep_freed
if sys.argv[1] == "kept":
    keep_freed()
def round():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    several = [bytearray(20 << 20) for _ in range(4)]
    for each in several:
        each[:: 4096] = bytes(len(each) // 4096)
    several.clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
round(), round()
print(round())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_what_malloc_gets_back_is_not_asked_of_the_system_again():
    left, kept = (
        int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout)
        for how in ("left", "kept")
    )
    assert kept < left / 2, (kept, left)
