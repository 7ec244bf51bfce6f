"""A run on a machine that fails: it says so in a sentence, commits nothing by halves, and goes on to the same bytes."""

import contextlib
import errno
import json
import os
import random
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from places import DEMO_PROCESSOR
from support.data import TinyData, mixed_rows
from support.errors import prints_code

from jobs.breaking.disk import KILL, Disk
from jobs.breaking.run import SURVIVED, TOLD, Job, Wrong, files_of, killed_on, run_here, run_on

pytestmark = [pytest.mark.slow, pytest.mark.net]

SAMPLES = 4  # of the calls at which a fault is tried; jobs/chaos.py takes many


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, an output of them, and another that is to be overwritten."""
    folder = tmp_path_factory.mktemp("chaos")
    mixed_rows(TinyData(folder / "data"), 6, 3).write()
    for name, size in (("expected", 280), ("old", 256)):
        assert run_here(["pack", *flags(folder, size), "--out", str(folder / name)]) == (0, "")
    return folder


def flags(folder: Path, pack_size: int = 280) -> list[str]:
    return ["--meta", str(folder / "data/meta.json"), "--processor", str(DEMO_PROCESSOR), "--engine", "inline",
            "--pack-size", str(pack_size)]  # fmt: skip


@pytest.fixture(params=["new", "overwritten"])
def job(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> Job:
    before = made / "old" if request.param == "overwritten" else None
    return Job(flags=flags(made), out=tmp_path / "out", expected=files_of(made / "expected"), before=before)


def some_calls(job: Job, fault: int | str) -> list[int]:
    """The first and the last call that the fault may befall, and a few between."""
    job.prepare()
    disk = Disk(job.out, fault, -1)
    assert run_on(disk, job.command)[0] == 0
    inner = random.Random(f"{fault}").sample(range(1, disk.num_calls - 1), SAMPLES - 2)
    return [0, *sorted(inner), disk.num_calls - 1]


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EMFILE], ids=errno.errorcode.get)
def test_the_disk_fails_at_a_call(job: Job, fault: int) -> None:
    outcomes = []
    for at in some_calls(job, fault):
        job.prepare()
        disk = Disk(job.out, fault, at)
        code, told = run_on(disk, job.command)
        assert disk.failed
        outcomes.append(job.check(code, told))
        assert outcomes[-1] == SURVIVED or os.strerror(fault) in told
    assert outcomes.count(TOLD) >= SAMPLES / 2


def test_killed_at_a_call(job: Job) -> None:
    for at in some_calls(job, KILL):
        job.prepare()
        code, told = killed_on(Disk(job.out, KILL, at), job.command)
        assert code == -9
        job.check(code, told)


def test_the_checks_can_fail(made: Path, tmp_path: Path) -> None:
    job = Job(flags=flags(made), out=tmp_path / "out", expected=files_of(made / "old"))
    with pytest.raises(Wrong, match="No space left on device"):
        job.check(1, "Traceback …\nOSError: [Errno 28] No space left on device")
    with pytest.raises(Wrong):
        job.check(0, "")
    with pytest.raises(Wrong, match=r"manifest\.json"):
        job.check(-9, "")


# By the kernel itself


@contextlib.contextmanager
def limited(kind: int, limit: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@pytest.fixture
def new(made: Path, tmp_path: Path) -> Job:
    return Job(flags=flags(made), out=tmp_path / "out", expected=files_of(made / "expected"))


def test_files_that_may_not_be_large(new: Job) -> None:
    """Writes fail from a size on, as on a full disk; -v has the traceback; the same command goes on when they may."""
    with limited(resource.RLIMIT_FSIZE, 1 << 16):
        code, told = run_here(new.command)
        _, verbose = run_here([*new.command, "-v"])
    assert prints_code(told, "machine") and told.startswith(f"neatpack: {new.out}/shards/pack-000000.tar: ")
    assert os.strerror(errno.EFBIG) in told and "--out or --work" in told
    assert not any((new.out / "shards").iterdir())
    assert "Traceback" in verbose
    assert verbose.endswith(told)
    assert new.check(code, told) == TOLD


@contextlib.contextmanager
def only_so_many_files(more: int) -> Iterator[None]:
    """The limit is one of numbers, and free ones lie between those in use: they are taken first."""
    with contextlib.ExitStack() as held:
        last = max(map(int, os.listdir("/proc/self/fd")))
        while (taken := held.enter_context(open(os.devnull)).fileno()) < last:
            pass
        with limited(resource.RLIMIT_NOFILE, taken + 1 + more):
            yield


def test_too_few_open_files(new: Job) -> None:
    """Whoever opens the file that is one too many: also who would say of a file of the input that it cannot be read."""
    whose = set()
    for more in range(6):
        new.prepare()
        with only_so_many_files(more):
            code, told = run_here(new.command)
        if new.check(code, told) == TOLD:
            whose.add(told.split(": ")[1])
            assert prints_code(told, "machine") and os.strerror(errno.EMFILE) in told
    assert len(whose) > 1


def test_a_disk_that_is_full_is_not_the_fault_of_the_data(made: Path, tmp_path: Path) -> None:
    """Pictures of a parquet file are copied beside its rows."""
    row = json.loads((made / "data/rows.jsonl").read_text().splitlines()[6])
    row["images"] = [{"bytes": (made / "data" / row["images"][0]).read_bytes()}]
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    (tmp_path / "meta.json").write_text('{"tiny": {"file_name": "rows.parquet"}}')
    command = ["pack", *flags(made), "--meta", str(tmp_path / "meta.json"), "--out", str(tmp_path / "out")]
    blamed = set()
    for at in range(100):
        disk = Disk(tmp_path / "out/work/imported", errno.ENOSPC, at)
        code, told = run_on(disk, command)
        if not disk.failed:
            break
        assert (code, told.count("\n")) == (1, 1)
        file, words = told.removeprefix("neatpack: ").split(": ")
        assert prints_code(told, "disk-full") and words.startswith(os.strerror(errno.ENOSPC))
        blamed.add(Path(file).name)
        shutil.rmtree(tmp_path / "out")
    assert blamed >= {"media.bin", "rows.jsonl"}
    assert (code, told) == (0, "")


class Vanishing(Disk):
    """The folder of an output is removed before its first shard is written."""

    def _fail(self, path: str | None) -> None:
        shutil.rmtree(self._folder.removesuffix("/shards"))


def test_a_folder_that_vanishes(new: Job) -> None:
    code, told = run_on(Vanishing(new.out / "shards", errno.ENOSPC, 1), new.command)
    assert prints_code(told, "machine") and os.strerror(errno.ENOENT) in told
    assert new.check(code, told) == TOLD


@pytest.mark.parametrize("at", [0, 1, 2], ids=["stamped", "measured", "rendered"])
def test_a_picture_that_the_disk_does_not_give(new: Job, made: Path, at: int) -> None:
    """It may be as good as any: the run ends, and the row is not skipped."""
    disk = Disk(made / "data/6.png", errno.EIO, at)
    code, told = run_on(disk, new.command)
    assert (code, bool(disk.failed)) == (1, True)
    assert prints_code(told, "store-unreachable") and told.startswith(f"neatpack: {made}/data/6.png: ")
    assert os.strerror(errno.EIO) in told
    assert run_here(new.command) == (0, "")
    new.check_output(finished=True)


def test_errors_of_the_program_keep_their_traceback(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object) -> None:
        raise KeyError("no such key")

    monkeypatch.setattr("pyarrow.ipc.new_file", bug)
    with pytest.raises(KeyError):
        run_here(["pack", *flags(made), "--out", str(tmp_path / "out")])
