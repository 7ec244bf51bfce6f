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
from support.errors import raises

from neatpack.pipeline.runtime.engine import RayEngine, _head_of, engine
from neatpack.pipeline.runtime.faults import HeadLost, MachineError, code_of, of_ray, of_workers, sentence
from neatpack.storage.files import name_errors, write_json


def of_kernel(number: int, path: str | None = "/out/shards/pack-000003.tar") -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("number", "code", "is_elsewhere"),
    [
        (errno.ENOSPC, "disk-full", True),
        (errno.EDQUOT, "disk-full", True),
        (errno.EROFS, "machine", True),
        (errno.EACCES, "machine", True),
        (errno.ENOENT, "machine", False),
        (errno.EMFILE, "machine", False),
        (errno.EIO, "machine", False),
        (errno.ESTALE, "machine", False),
        (errno.EFBIG, "machine", True),
    ],
)
def test_what_the_kernel_says(number: int, code: str, is_elsewhere: bool) -> None:
    told = sentence(of_kernel(number))
    assert told.startswith("/out/shards/pack-000003.tar: ") and os.strerror(number) in told
    assert code_of(of_kernel(number)) == code
    assert ("--out or --work" in told) == is_elsewhere
    assert "--out or --work" not in sentence(of_kernel(number), elsewhere="")
    travelled = pickle.loads(pickle.dumps(of_kernel(number)))
    assert sentence(travelled) == sentence(of_kernel(number))


def test_without_a_file() -> None:
    assert sentence(of_kernel(errno.EMFILE, None)).startswith(os.strerror(errno.EMFILE))


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), of_kernel(errno.EINVAL), of_kernel(errno.EBADF)])
def test_errors_of_the_program_are_none(error: Exception) -> None:
    assert sentence(error) == ""


def test_a_write_that_fails_names_the_file(tmp_path: Path) -> None:
    """Of the kernel's own accord: /dev/full has no room, and the error of a write has no name."""
    (tmp_path / f".full.json.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        write_json(tmp_path / "full.json", list(range(10)))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "full.json"))
    assert not any(tmp_path.iterdir())


def test_naming_keeps_what_is_no_error_of_the_kernel() -> None:
    with pytest.raises(ValueError, match="^x$"), name_errors("/file"):
        raise ValueError("x")


# Ray


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ray.exceptions.ObjectStoreFullError(), "memory"),
        (ray.exceptions.OutOfDiskError(), "disk-full"),
        (ray.exceptions.OutOfMemoryError("x"), "memory"),
        (ray.exceptions.LocalRayletDiedError(), "machine"),
        (ray.exceptions.NodeDiedError("x"), "machine"),
        (ray.exceptions.OwnerDiedError("0" * 56, None, ""), "machine"),
        (ray.exceptions.WorkerCrashedError(), "worker-crashed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_ray_says(error: Exception, code: str) -> None:
    fault = of_ray(error)
    assert fault is not None
    assert (fault.code, code_of(fault), fault.fields["error"]) == (code, code, type(error).__name__)
    assert str(fault) in sentence(fault) and "\n" not in sentence(fault)


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
    with raises(MachineError, "machine", error="LocalRayletDiedError"):
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
        with raises(HeadLost, "ray-unreachable", address=address):
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
        raises(MachineError, "ray-unreachable", address="127.0.0.1:1"),
        engine("ray"),
    ):
        pass


def test_a_worker_that_lacks_a_package() -> None:
    """By Ray, which blames its system; and by a task that imports it. What this process lacks is another matter."""
    of_ray = ray.exceptions.RaySystemError("System error: No module named 'neatpack'\ntraceback: …")
    torch = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    for error, package in ((of_ray, "neatpack"), (torch, "torch")):
        fault = of_workers(error)
        assert fault is not None and (fault.code, fault.fields["package"]) == ("worker-import", package)
    assert of_workers(ValueError("No module named 'x'")) is None
    with raises(MachineError, "worker-import", package="neatpack"):
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
        with raises(MachineError, "ray-unreachable", address=address) as caught:
            engine("ray", 1).__enter__()
    told = sentence(caught.error)
    assert "No node info found matching attributes: ''" in told and f"`ray status --address {address}`" in told
    assert "/dev/shm" not in told and "\n" not in told


@pytest.mark.parametrize("folder", ["t" * 120, "file/ray"])
def test_a_folder_that_ray_cannot_use(no_ray: pytest.MonkeyPatch, tmp_path: Path, folder: str) -> None:
    """Ray's own words: sockets have short paths, and a file is no folder. No process is started yet."""
    (tmp_path / "file").touch()
    no_ray.setenv("TMPDIR", str(tmp_path / folder))
    with raises(MachineError, "ray-start") as caught:
        engine("ray", 1).__enter__()
    told = sentence(caught.error)
    assert "\n" not in told and "TMPDIR" in told and "--engine inline" in told
