"""One run at a time in a folder, on disk and in a store, whatever became of the run before."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from s3_server import S3
from support.errors import raises

from neatpack.errors import UserError
from neatpack.storage import clients, lock
from neatpack.storage.files import write_whole
from neatpack.storage.location import Location
from neatpack.storage.lock import lock_folders

HOLD = """
import sys, time
from neatpack.storage.lock import lock_folders
with lock_folders([sys.argv[1]]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["disk", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    if request.param == "disk":
        return Location.parse(tmp_path / "work")
    s3: S3 = request.getfixturevalue("s3")
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    clients.connect.cache_clear()
    return Location.parse(s3.uri(f"locks-{abs(hash(request.node.name))}/work"))


@pytest.fixture
def holder(folder: Location) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock of the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, folder.uri], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def owner_of(folder: Location | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "lock").read_bytes())
    return found


def test_second_run_is_rejected_and_names_the_first(folder: Location, holder: "subprocess.Popen[str]") -> None:
    with raises(UserError, "output-locked", out=str(folder), pid=holder.pid, host=socket.gethostname()):
        lock_folders([folder]).__enter__()
    assert owner_of(folder)["pid"] == holder.pid


def test_lock_of_killed_run_is_free_at_once(
    folder: Location, holder: "subprocess.Popen[str]", caplog: pytest.LogCaptureFixture
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert owner_of(folder)["pid"] == holder.pid
    with lock_folders([folder]):
        assert owner_of(folder)["pid"] == os.getpid()
    assert not caplog.records  # nobody was watched
    assert not (folder / "lock").exists()


def test_run_that_is_being_killed_is_waited_for(
    folder: Location, holder: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of a command runs in a fork, which the kernel ends when the command is gone, and a moment later."""

    def sleep(_: float) -> None:
        holder.kill()
        holder.wait()

    monkeypatch.setattr(time, "sleep", sleep)
    with lock_folders([folder]):
        assert owner_of(folder)["pid"] == os.getpid()


def test_zombie_holds_no_lock(
    folder: Location, holder: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, and not waited for: its number is still taken."""
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    os.kill(holder.pid, 0)
    with lock_folders([folder]):
        assert owner_of(folder)["pid"] == os.getpid()


def test_process_with_the_number_of_a_dead_owner_holds_no_lock(
    folder: Location, holder: "subprocess.Popen[str]"
) -> None:
    write_owner(folder, owner_of(folder) | {"started": "1"})
    with lock_folders([folder]):
        assert owner_of(folder)["pid"] == os.getpid()


def write_owner(folder: Location, owner: dict[str, Any]) -> None:
    with write_whole(folder / "lock") as file:
        file.write(json.dumps(owner).encode())


def elsewhere(beat: int) -> dict[str, Any]:
    return {"host": "another", "pid": 7, "since": "today", "beat": beat, "machine": "another pid:[1]", "token": "x"}


def test_living_owner_on_another_machine_is_rejected(folder: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    write_owner(folder, elsewhere(3))
    monkeypatch.setattr(time, "sleep", lambda _: write_owner(folder, elsewhere(4)))
    with raises(UserError, "output-locked", pid=7, host="another", since="today"):
        lock_folders([folder]).__enter__()
    assert owner_of(folder)["pid"] == 7


def test_dead_owner_on_another_machine_is_followed(folder: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    write_owner(folder, elsewhere(3))
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    with lock_folders([folder]):
        assert owner_of(folder)["pid"] == os.getpid()
    assert sum(waited) == lock.WATCH + lock.SETTLING


def test_owner_that_gives_the_lock_back_is_followed_at_once(folder: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    write_owner(folder, elsewhere(3))
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            (folder / "lock").unlink()

    monkeypatch.setattr(time, "sleep", sleep)
    with lock_folders([folder]):
        assert waited == [lock.WATCH / lock.LOOKS, lock.SETTLING]


def test_container_of_the_same_host_name_is_watched(
    folder: Location, holder: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers of processes are others: that none here has its number says nothing."""
    here = owner_of(folder)
    other = here | {"machine": f"{socket.gethostname()} pid:[1]", "pid": 1 << 22, "token": "x"}
    write_owner(folder, other)
    monkeypatch.setattr(time, "sleep", lambda _: write_owner(folder, other | {"beat": 1}))
    with raises(UserError, "output-locked", pid=1 << 22):
        lock_folders([folder]).__enter__()


def test_last_of_two_that_follow_a_dead_owner_stays(folder: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    other = json.loads(lock._to_bytes(lock._describe_this_run()))
    write_owner(folder, elsewhere(3) | {"machine": lock._name_machine(), "pid": 1 << 22})
    monkeypatch.setattr(time, "sleep", lambda _: write_owner(folder, other))
    with raises(UserError, "output-locked", pid=os.getpid()):
        lock_folders([folder]).__enter__()
    assert owner_of(folder) == other


def test_file_of_something_else_is_replaced(folder: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "SETTLING", 0.0)
    for content in (b"", b"[]", b'{"a": 1}', b"x"):
        with write_whole(folder / "lock") as file:
            file.write(content)
        with lock_folders([folder]):
            assert owner_of(folder)["pid"] == os.getpid()


def test_owner_renews_its_lock(folder: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.01)
    monkeypatch.setattr(lock, "SETTLING", 0.0)
    seen = set()
    with lock_folders([folder]):
        while len(seen) < 3:
            seen.add(owner_of(folder)["beat"])
    assert min(seen) >= 0 and max(seen) >= 2


def test_lost_lock_is_neither_renewed_nor_removed(
    folder: Location, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.01)
    monkeypatch.setattr(lock, "SETTLING", 0.0)
    with lock_folders([folder]):
        write_owner(folder, elsewhere(1))
        while not any(record.levelname == "ERROR" for record in caplog.records):
            time.sleep(0.01)
    assert owner_of(folder) == elsewhere(1)


# On disk


def test_first_of_many_threads_gets_the_lock(tmp_path: Path) -> None:
    """A hard link is made once: none of the others waits, and none gets it."""
    begin, got, lost = threading.Barrier(8), [], []

    def run() -> None:
        begin.wait()
        try:
            with lock_folders([tmp_path]):
                got.append(owner_of(tmp_path)["token"])
                end.wait()
        except UserError:
            lost.append(1)
            if len(lost) == 7:
                end.set()

    end = threading.Event()
    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1 and len(lost) == 7 and not tmp_path.exists()


@pytest.mark.parametrize("call", ["link", "unlink"])
def test_a_disk_that_fails_leaves_nothing_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr(os, call, fail)
        with lock_folders([tmp_path]):
            pass
    with lock_folders([tmp_path]):
        pass


def test_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    with lock_folders([tmp_path / "work"]):
        assert owner_of(tmp_path / "work")["pid"] == os.getpid()
        monkeypatch.setattr(lock, "GRACE", 1)
        with raises(UserError, "output-locked", pid=os.getpid()):
            lock_folders([tmp_path / "work"]).__enter__()


def test_nothing_is_left(tmp_path: Path) -> None:
    with lock_folders([tmp_path / "a/work", tmp_path / "b", tmp_path / "b"]):
        (tmp_path / "b/file").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "file"]


def test_a_lock_is_released_on_an_error_and_its_folders_too(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(ZeroDivisionError), lock_folders([tmp_path / "a", tmp_path / "b"]):
        raise ZeroDivisionError
    with lock_folders([tmp_path / "a", tmp_path / "b"]):
        pass


def test_process_of_another_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may hide what it does (hidepid)."""

    def kill(*_: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    mine = lock._describe_this_run()
    monkeypatch.setattr(os, "kill", kill)
    assert lock._is_alive(replace(mine, pid=1 << 22))
