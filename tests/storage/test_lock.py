"""One run at a time in a folder, whatever became of the run before."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from support.errors import raises

from neatpack.pipeline.config import UserError
from neatpack.storage import lock
from neatpack.storage.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from neatpack.storage.lock import locked
with locked([Path(sys.argv[1])]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path/work."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "work")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_run_is_refused_by_name(tmp_path, holder):
    with raises(UserError, "output-locked", out=str(tmp_path / "work"), pid=holder.pid):
        locked([tmp_path / "work"]).__enter__()


def test_what_a_killed_run_left_is_free_at_once(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert json.loads((tmp_path / "work/lock").read_text())["pid"] == holder.pid
    with locked([tmp_path / "work"]):
        assert json.loads((tmp_path / "work/lock").read_text())["pid"] == os.getpid()


def test_a_run_that_is_being_killed_is_waited_for(tmp_path, holder, monkeypatch):
    """The job of a command runs in a fork, which the kernel ends when the command is gone, and a moment later."""

    def sleep(_):
        holder.kill()
        holder.wait()

    monkeypatch.setattr(time, "sleep", sleep)
    with locked([tmp_path / "work"]):
        assert json.loads((tmp_path / "work/lock").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("call", ["pwrite", "unlink"])
def test_a_disk_that_fails_leaves_nothing_locked(tmp_path, monkeypatch, call):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr(os, call, fail)
        with locked([tmp_path / "work"]):
            pass
    with locked([tmp_path / "work"]):
        pass


def test_nothing_is_left(tmp_path):
    with locked([tmp_path / "a/work", tmp_path / "b", tmp_path / "b"]):
        (tmp_path / "b/file").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "file"]


def test_a_lock_is_released_on_an_error_and_its_folders_too(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(ZeroDivisionError), locked([tmp_path / "a", tmp_path / "b"]):
        raise ZeroDivisionError
    with locked([tmp_path / "a", tmp_path / "b"]):
        pass


def elsewhere(path, beat):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"host": "another", "pid": 7, "since": "today", "beat": beat}).ljust(256))


def test_an_owner_on_another_machine_is_watched(tmp_path, monkeypatch):
    """On file systems whose locks do not reach other machines: the file is free here, but somebody counts in it."""
    file = tmp_path / "work/lock"
    elsewhere(file, 3)
    monkeypatch.setattr(time, "sleep", lambda _: elsewhere(file, 4))
    with raises(UserError, "output-locked", pid=7, host="another", since="today"):
        locked([tmp_path / "work"]).__enter__()
    assert json.loads(file.read_text())["pid"] == 7


def test_a_dead_owner_on_another_machine_is_followed(tmp_path, monkeypatch):
    elsewhere(tmp_path / "work/lock", 3)
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    with locked([tmp_path / "work"]):
        assert json.loads((tmp_path / "work/lock").read_text())["pid"] == os.getpid()
    assert sum(waited) == lock.BEAT * lock.PATIENCE


def test_the_owner_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.01)
    seen = set()
    with locked([tmp_path]):
        while len(seen) < 3:
            seen.add(json.loads((tmp_path / "lock").read_text())["beat"])
            time.sleep(0.001)
    assert min(seen) >= 0 and max(seen) >= 2


def test_a_lock_that_its_owner_removed_meanwhile_is_none(tmp_path, monkeypatch):
    """Opened before, locked after the owner removed it: the file under the name is another one, or none."""
    opened = os.open
    first = []

    def open_then_lose(path, *arguments):
        file = opened(path, *arguments)
        if not first:
            first.append(path)
            os.unlink(path)
        return file

    monkeypatch.setattr(os, "open", open_then_lose)
    with locked([tmp_path / "work"]):
        assert (tmp_path / "work/lock").exists()


def test_a_file_system_without_locks(tmp_path, monkeypatch, holder):
    """Then the count is all that tells, of a run on this machine, too."""

    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    file = tmp_path / "work/lock"
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(time, "sleep", lambda _: elsewhere(file, 4))
    with raises(UserError, "output-locked", pid=holder.pid):
        locked([tmp_path / "work"]).__enter__()
    holder.kill()
    holder.wait()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with locked([tmp_path / "work"]):
        assert json.loads(file.read_text())["pid"] == os.getpid()


# In a store, which has no locks: is the run that is named in one on this machine still there?


def owner(pid: int, **changes) -> lock.Owner:
    return replace(lock.Owner(host=socket.gethostname(), pid=pid, since="", beat=0), **changes)


def test_an_owner_that_lives_has_not_ended(holder, monkeypatch):
    monkeypatch.setattr(lock, "GRACE", 1)
    assert not lock._has_ended(owner(holder.pid))
    assert not lock._has_ended(owner(1))  # somebody else's, maybe
    assert not lock._has_ended(owner(1 << 22, host="another"))


def test_an_owner_that_is_being_killed_has_ended(holder, monkeypatch):
    def sleep(_):
        holder.kill()
        holder.wait()

    monkeypatch.setattr(time, "sleep", sleep)
    assert lock._has_ended(owner(holder.pid))


def test_an_owner_that_nobody_fetches_has_ended(holder, monkeypatch):
    """Killed, and not waited for: its number is still taken."""
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    os.kill(holder.pid, 0)
    monkeypatch.setattr(lock, "GRACE", 1)
    assert lock._has_ended(owner(holder.pid))
