"""What tests share: the demo processor that the project ships, and the real processors where ../shared is."""

import ctypes
import gc
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from launcher import Launcher
from places import DEMO_PROCESSOR, PROOFS, REAL_PROCESSORS, SHARED
from s3_server import NOT_INSTALLED, S3, WEED, s3_server

if TYPE_CHECKING:
    from support.data import TinyData

    from neatpack.pipeline.families.base import Family

# One token for every Ray of the suite: a process reads it once, and its tests may join several clusters.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
# Ray's workers, which give way to all others (nice 15), would wait for the processes of the suite: on two busy cores, a
# test of 25 s of CPU took 5 minutes.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:  # a process per core: threads of torch would wait for each other, spinning
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# One profile for all property tests: machines are shared and busy, so time is no criterion, and a failure here must be
# one everywhere, so examples are drawn by a fixed seed.
settings.register_profile("neatpack", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("neatpack")


def keep_freed_memory() -> None:
    """Large arrays are of fresh pages each time, which the kernel clears: a quarter of the time of models. By glibc's
    mallopt none is mapped by itself (M_MMAP_MAX), and the heap stays as large as it was (M_TRIM_THRESHOLD) until a file
    of tests is done."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(-4, 0)
        mallopt(-1, (1 << 31) - 1)


def return_freed_memory() -> None:
    if malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        malloc_trim(0)


def pytest_configure(config: pytest.Config) -> None:
    """Not in the process that deals tests to others: it needs none of this, which takes seconds to import."""
    if config.getoption("dist", "no") == "no":
        import shared_processors

        keep_freed_memory()
        shared_processors.share()  # before anybody imports what it replaces
    elif PROOFS not in os.environ:
        os.environ[PROOFS] = tempfile.mkdtemp(prefix="neatpack-proofs-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(PROOFS)))


def pytest_collection_finish() -> None:
    """What was imported until here, a million objects, stays: the garbage collector need not look at it each time, a
    matter of 0.3 s, and a tenth of all that tests did; nor need loader workers copy it when they do."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # nor at the rest as often as a small program would


# To start Ray, and to have its workers import what tasks need, takes 10 s: tests that are marked come one after the
# other, and share one. `engine` uses a Ray that is there, and leaves it alone.
_ray = ExitStack()


# Fixtures of real processors, which take 2 to 8 s to load, and all of them a minute.
REAL = {"shared", "processor", "family"}


TIERS = {"s3": "s3", "launcher": "trainer", "browser": "browser"}  # markers of tests, by the fixture that they use


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_itemcollected(item: pytest.Item) -> None:
    for fixture, marker in TIERS.items():
        if fixture in getattr(item, "fixturenames", ()):
            item.add_marker(marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What tests share is made once if they come one after the other, in one process: processes begin at the start and
    in the middle, and take over from each other's end. What waits comes first, in one process, 11 minutes of a busy
    machine and 3 of CPU: the others have the cores meanwhile, and nobody waits for it in the end."""

    launched = {item.path for item in items if "launcher" in getattr(item, "fixturenames", ())}

    def place(item: pytest.Item) -> int:
        if item.get_closest_marker("cluster") or item.get_closest_marker("s3"):
            return 0
        if item.get_closest_marker("on_ray"):
            return 1
        if item.path in launched:
            return 2
        return 3 if REAL & set(getattr(item, "fixturenames", ())) else 4

    items.sort(key=place)
    # Real processors at the start of the second process: behind what waits, both others would take them over.
    first, real = (sum(place(item) < number for item in items) for number in (3, 4))
    begin = max(first, len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))) - first
    others = items[real:]
    items[first:] = [*others[:begin], *items[first:real], *others[begin:]] if begin < len(others) else items[first:]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("on_ray"):
        import ray

        from neatpack.pipeline.runtime.engine import engine

        if not ray.is_initialized():
            _ray.enter_context(engine("ray", num_workers=2))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        return_freed_memory()
    if nextitem is None or nextitem.get_closest_marker("on_ray") is None:
        _ray.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Fail what skips for want of ../shared where it is: a wrong path would hide its tests."""
    report = yield
    if report.skipped and SHARED.is_dir() and "../shared" in str(report.longrepr):
        report.outcome = "failed"
    return report


@pytest.fixture(scope="session", autouse=True)
def never_without_power() -> Iterator[None]:
    """No test takes the power away, so nothing in this process waits for the disk: a run syncs 50 files and folders, of
    4 ms each, as long as all the rest of a small one takes. tests/storage/test_files.py holds what is synced, and
    when; commands that tests start sync as always."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def tokenizers_stay_as_they_are() -> Iterator[None]:
    import shared_processors

    yield
    assert shared_processors.unchanged(), "a test has added tokens to a tokenizer that others use"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and processors beside the project."""
    if not SHARED.is_dir():
        pytest.skip("../shared (real data and processors) is not here")
    return SHARED


@pytest.fixture(scope="session")
def demo_family() -> "Family":
    from neatpack.pipeline.families.registry import family_for

    return family_for(str(DEMO_PROCESSOR))


@pytest.fixture(scope="session", params=["demo", *REAL_PROCESSORS])
def processor(request) -> str:
    """Each processor in turn: the demo's always, the real ones where ../shared is."""
    if request.param == "demo":
        return str(DEMO_PROCESSOR)
    path = SHARED / "processors" / request.param
    if not path.is_dir():
        pytest.skip(f"../shared/processors/{request.param} is not here")
    return str(path)


@pytest.fixture(scope="session")
def family(processor: str) -> "Family":
    from neatpack.pipeline.families.registry import family_for

    return family_for(processor)


@pytest.fixture
def tiny(tmp_path: Path) -> "TinyData":
    from support.data import TinyData

    return TinyData(tmp_path / "data")


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    started = Launcher()
    yield started
    started.close()


@pytest.fixture(scope="session")
def s3(tmp_path_factory) -> Iterator[S3]:
    """A bucket of a real server. All tests share it: each has keys under a prefix of its own."""
    if not WEED.is_file():
        pytest.skip(NOT_INSTALLED)
    with s3_server(tmp_path_factory.mktemp("s3")) as bucket:
        yield bucket
