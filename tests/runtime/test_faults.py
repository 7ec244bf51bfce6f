"""Faults of the machine in a sentence: what happened, where, and the remedy."""

import errno
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions

from neatpack.pipeline.runtime.engine import RayEngine, _head_of, engine
from neatpack.pipeline.runtime.faults import HeadLost, MachineError, naming, of_ray, of_workers, sentence
from neatpack.pipeline.runtime.storage import write_json

AGAIN = "; then run the same command again to go on"


def of_kernel(number: int, path: str | None = "/out/shards/pack-000003.tar") -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "No space left on device; free some room there, or give another --out or --work"),
        (errno.EDQUOT, "Disk quota exceeded; free some room there, or give another --out or --work"),
        (errno.EROFS, "Read-only file system; make it writable, or give another --out or --work"),
        (errno.EACCES, "Permission denied; give this user the right to it, or give another --out or --work"),
        (errno.ENOENT, "No such file or directory; bring it back (was it moved, is its disk mounted?)"),
        (errno.EMFILE, "Too many open files; allow more open files (ulimit -n)"),
        (errno.EIO, "Input/output error; see to its disk or mount"),
        (errno.ESTALE, "Stale file handle; see to its disk or mount"),
        (errno.EFBIG, "File too large; allow larger files there (ulimit -f), or give another --out or --work"),
    ],
)
def test_what_the_kernel_says(number: int, words: str) -> None:
    assert sentence(of_kernel(number)) == f"/out/shards/pack-000003.tar: {words}{AGAIN}"
    suggested = words.replace(", or give another --out or --work", "")
    assert sentence(of_kernel(number), elsewhere="") == f"/out/shards/pack-000003.tar: {suggested}{AGAIN}"
    travelled = pickle.loads(pickle.dumps(of_kernel(number)))
    assert sentence(travelled) == sentence(of_kernel(number))


def test_without_a_file() -> None:
    assert sentence(of_kernel(errno.EMFILE, None)) == f"Too many open files; allow more open files (ulimit -n){AGAIN}"


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), of_kernel(errno.EINVAL), of_kernel(errno.EBADF)])
def test_errors_of_the_program_are_none(error: Exception) -> None:
    assert sentence(error) == ""


def test_a_write_that_fails_names_the_file(tmp_path: Path) -> None:
    """Of the kernel's own accord: /dev/full has no room, and the error of a write has no name."""
    (tmp_path / f".full.json.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_json(tmp_path / "full.json", list(range(10)))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "full.json"))
    assert not any(tmp_path.iterdir())


def test_naming_keeps_what_is_no_error_of_the_kernel() -> None:
    with pytest.raises(ValueError, match="^x$"), naming("/file"):
        raise ValueError("x")


# Ray


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ray.exceptions.ObjectStoreFullError(), "Ray's object store is full (ObjectStoreFullError); make /dev/shm "),
        (ray.exceptions.OutOfDiskError(), "the disk of Ray's session folder is full (OutOfDiskError); free some room"),
        (ray.exceptions.OutOfMemoryError("x"), "Ray ended a task for want of memory (OutOfMemoryError); give fewer "),
        (ray.exceptions.LocalRayletDiedError(), "a node of Ray was lost (LocalRayletDiedError); look whether "),
        (ray.exceptions.NodeDiedError("x"), "a node of Ray was lost (NodeDiedError); look whether "),
        (ray.exceptions.OwnerDiedError("0" * 56, None, ""), "a node of Ray was lost (OwnerDiedError); look whether "),
        (ray.exceptions.WorkerCrashedError(), "a worker of Ray ended, also when it was tried again "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_ray_says(error: Exception, words: str) -> None:
    fault = of_ray(error)
    assert fault is not None
    assert sentence(fault).startswith(words)
    assert sentence(fault).endswith(AGAIN)
    assert "\n" not in sentence(fault)


def test_errors_of_tasks_are_none_of_ray() -> None:
    assert of_ray(ray.exceptions.RayTaskError("f", "Traceback …", ValueError("x"))) is None
    assert of_ray(ValueError("x")) is None


class _LosesItsNode:
    """As much of Ray as the engine uses, without processes: what `get` raises is Ray's own."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.cancelled: list[object] = []

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0, "memory": 2.0**30}}]

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        return lambda _: type("Task", (), {"remote": staticmethod(lambda *_: object())})

    def wait(
        self, waiting: list[object], num_returns: int, timeout: float | None = None
    ) -> tuple[list[object], list[object]]:
        return waiting[:num_returns], waiting[num_returns:]

    def get(self, _: object) -> None:
        raise self._error

    def cancel(self, reference: object, *, force: bool) -> None:
        self.cancelled.append(reference)


def test_a_node_that_is_lost_ends_the_run_in_words() -> None:
    lost = _LosesItsNode(ray.exceptions.LocalRayletDiedError())
    with pytest.raises(MachineError, match="a node of Ray was lost"):
        RayEngine({}, lost, 1).run(print, [(1,), (2,)], title="x")
    assert lost.cancelled == []  # a task that completes while it is cancelled aborts the driver
    with pytest.raises(ray.exceptions.RayTaskError):
        error = ray.exceptions.RayTaskError("f", "Traceback …", ValueError("x"))
        RayEngine({}, _LosesItsNode(error), 1).run(print, [(1,), (2,)], title="x")


class _Waits(_LosesItsNode):
    """No task ends. Once it was waited for, the head answers, or does not, as told."""

    def __init__(self, head: socket.socket, *, leaves_at: int) -> None:
        super().__init__(AssertionError("there is nothing to get"))
        self._head, self._left = head, leaves_at

    def wait(
        self, waiting: list[object], num_returns: int, timeout: float | None = None
    ) -> tuple[list[object], list[object]]:
        assert timeout, "who waits for ever does not see that the head is gone"
        self._left -= 1
        if not self._left:
            self._head.close()
        return [], waiting


def test_a_head_that_is_lost_ends_the_run_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there for two looks, and then away for too long; nothing is asked of it any more."""
    monkeypatch.setattr("neatpack.pipeline.runtime.engine.AWAY_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        waits = _Waits(head, leaves_at=3)
        with pytest.raises(HeadLost, match=f"^the head of Ray at {address} does not answer any more; look why it "):
            RayEngine({}, waits, 1, head=address).run(print, [(1,), (2,)], title="x")
    assert waits._left <= 0 and waits.cancelled == []


def test_a_head_that_never_answered_is_not_looked_for() -> None:
    """As where Ray's client leads into a network of its own: the address in there tells nothing out here."""
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        ray = SimpleNamespace(get_runtime_context=lambda: SimpleNamespace(gcs_address=address))
        assert _head_of(ray) == address
    assert _head_of(ray) == ""


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    if ray.is_initialized():
        pytest.skip("a Ray runs in this process already")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    yield monkeypatch


def test_a_cluster_that_does_not_answer(no_ray: pytest.MonkeyPatch) -> None:
    no_ray.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with (
        pytest.raises(MachineError, match="RAY_ADDRESS 127.0.0.1:1: no Ray answers there .Connection refused.; "),
        engine("ray"),
    ):
        pass


def test_a_worker_that_lacks_a_package() -> None:
    """By Ray, which blames its system; and by a task that imports it. What this process lacks is another matter."""
    of_ray = ray.exceptions.RaySystemError("System error: No module named 'neatpack'\ntraceback: …")
    for error in (of_ray, ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")):
        assert "the workers of Ray cannot import" in str(of_workers(error))
    assert of_workers(ValueError("No module named 'x'")) is None
    with pytest.raises(MachineError, match="cannot import neatpack: every node"):
        RayEngine({}, _LosesItsNode(of_ray), 1).run(print, [(1,)], title="x")


def never_up(**_: Any) -> None:
    """In Ray's own words, without the minute that it waits."""
    raise RuntimeError("No node info found matching attributes: ''.\nMore")


def test_a_cluster_that_is_not_up_yet(no_ray: pytest.MonkeyPatch) -> None:
    """Its port answers, and its node is not there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        no_ray.setenv("RAY_ADDRESS", address)
        no_ray.setattr("ray.init", never_up)
        with pytest.raises(MachineError) as caught:
            engine("ray", 1).__enter__()
    assert sentence(caught.value).startswith(
        f"RAY_ADDRESS {address}: something answers there, and Ray cannot join it: No node info found matching "
        f"attributes: ''; look whether the cluster is up (`ray status --address {address}`)"
    )
    assert "/dev/shm" not in sentence(caught.value) and "\n" not in sentence(caught.value)


@pytest.mark.parametrize("folder", ["t" * 120, "file/ray"])
def test_a_folder_that_ray_cannot_use(no_ray: pytest.MonkeyPatch, tmp_path: Path, folder: str) -> None:
    """Ray's own words: sockets have short paths, and a file is no folder. No process is started yet."""
    (tmp_path / "file").touch()
    no_ray.setenv("TMPDIR", str(tmp_path / folder))
    with pytest.raises(MachineError, match=r"^Ray does not start: .*; it needs .* TMPDIR .*--engine inline$") as caught:
        engine("ray", 1).__enter__()
    assert "\n" not in sentence(caught.value)
