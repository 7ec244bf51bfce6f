"""Memory for the large tensors of a batch. In a loader's worker it is shared with the training process, and comes back.

Fresh pages are what large batches cost: 67 MB (a pack of 8,192 tokens in pictures, as bf16) are written into new shared
memory in 74 ms of CPU time, and in 4 ms where it was written before. So a worker keeps its pieces of memory (slots). A
tensor travels as the number of its slot. When the training process drops it, a byte in the slot says so, and the worker
writes its next batch there.

A slot is a file without a name (memfd), which the other process opens through /proc: nothing is left behind by
processes that are killed, and the size of /dev/shm, 64 MB in many containers, limits nothing. Where there is no such
file, and for who keeps very many batches, torch copies tensors into shared memory of its own.
"""

import math
import mmap
import multiprocessing
import os
import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ..pipeline.errors import LoaderError
from ..pipeline.runtime import reused

SMALL = 256 * 1024  # bytes, that travel by value; positions of 8,192 tokens on three axes are 192 KB
HEADER = mmap.PAGESIZE  # before the bytes of a slot: its state, and the token of its worker
FREE, TAKEN, RETIRED = range(3)
MOST = 64  # slots of a worker: each has two files open
IDLE = 64  # a slot that was not taken for so many others is given up
Room = Callable[[Sequence[int], torch.dtype], torch.Tensor]  # gives memory of this shape: `empty`, or `own`
_GRAIN = 1 << 20  # a slot has some room to spare: the next batch may be a little larger


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Memory for a part of a batch, whatever is in it: in a loader's worker a slot, if it is large."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if is_small(num_bytes) or get_worker_info() is None or not _can_be_opened():
        return own(shape, dtype)
    flat = slots(os.getpid()).taken(num_bytes)
    return own(shape, dtype) if flat is None else torch.from_numpy(flat).view(dtype).view(*shape)


def room_of_batch() -> Room | None:
    """For the bytes of a pack that goes into a batch: where that leaves this process, they are read to where they can
    stay. None: they may lie anywhere."""
    return None if get_worker_info() is None else empty


@lru_cache(maxsize=1)
def _can_be_opened() -> bool:
    """Whether files without a name are to be had, and by whoever knows their number."""
    if not hasattr(os, "memfd_create"):
        return False
    file = os.memfd_create("neatpack")
    try:
        os.close(os.open(f"/proc/{os.getpid()}/fd/{file}", os.O_RDWR))
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def filled(shape: Sequence[int], dtype: torch.dtype, value: float) -> torch.Tensor:
    """The same, with one value all over. Zeros of this process cost nothing until something is written there."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if not value and num_bytes and get_worker_info() is None:
        return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(dtype).view(*shape)
    made = empty(shape, dtype)
    made.numpy()[...] = value
    return made


def is_small(num_bytes: int) -> bool:
    """Cheaper to be sent than to be shared."""
    return num_bytes <= SMALL


def own(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Memory of this process."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if is_small(num_bytes):
        return torch.empty(*shape, dtype=dtype)
    return torch.from_numpy(reused.taken(num_bytes)).view(dtype).view(*shape)


class Slot:
    """A piece of memory, as the worker has it that made it."""

    def __init__(self, number: int, num_bytes: int, token: bytes) -> None:
        self.number, self.num_bytes = number, num_bytes
        self.file = os.memfd_create(f"neatpack-{number}")
        os.ftruncate(self.file, HEADER + num_bytes)
        self.memory = mmap.mmap(self.file, HEADER + num_bytes)
        self.memory[1 : 1 + len(token)] = token
        self.start = np.frombuffer(self.memory, np.uint8).ctypes.data + HEADER
        self.taken_at = 0  # by the count of all
        self._num_taken = 0
        self._is_sent = False
        self._flat: weakref.ref[np.ndarray] | None = None

    @property
    def is_free(self) -> bool:
        """Nobody has it: neither the other process nor this one."""
        return self.memory[0] == FREE and (self._flat is None or self._flat() is None)

    def take(self, num_bytes: int) -> np.ndarray:
        self.memory[0], self._is_sent = TAKEN, False
        self._num_taken += 1
        flat = np.frombuffer(self.memory, np.uint8, num_bytes, HEADER)
        self._flat = weakref.ref(flat)
        weakref.finalize(flat, self._dropped, self._num_taken).atexit = False
        return flat

    def send(self) -> None:
        """From here on the other process says when it is free."""
        self._is_sent = True

    def retire(self) -> None:
        self.memory[0] = RETIRED
        os.close(self.file)

    def _dropped(self, taken: int) -> None:
        """It may be told late, by another thread: when the slot was sent, has come back and is taken again."""
        if taken == self._num_taken and not self._is_sent:
            self.memory[0] = FREE


class Slots:
    """Those of a worker."""

    def __init__(self) -> None:
        self._token = secrets.token_bytes(16)
        self._slots: list[Slot] = []
        self._num_made = self._num_taken = 0
        self._lock = Lock()

    def taken(self, num_bytes: int) -> np.ndarray | None:
        """So many bytes that nobody else uses; None: too many slots are in use."""
        with self._lock:
            free = [slot for slot in self._slots if slot.is_free]
            fitting = [slot for slot in free if slot.num_bytes >= num_bytes]
            # Of equal ones that which was taken last: the others are then seen to be idle.
            chosen = min(fitting, key=lambda slot: (slot.num_bytes, -slot.taken_at), default=None)
            idle = [slot for slot in free if slot is not chosen and self._num_taken - slot.taken_at >= IDLE]
            if chosen is None and not idle and len(self._slots) >= MOST:
                if not free:
                    return None
                idle = [min(free, key=lambda slot: slot.taken_at)]
            for slot in idle:
                slot.retire()
                self._slots.remove(slot)
            chosen = chosen or self._made(num_bytes)
            self._num_taken += 1
            chosen.taken_at = self._num_taken
            return chosen.take(num_bytes)

    def _made(self, num_bytes: int) -> Slot:
        size = math.ceil(num_bytes * 9 / 8 / _GRAIN) * _GRAIN
        self._slots.append(Slot(self._num_made, size, self._token))
        self._num_made += 1
        return self._slots[-1]

    def sent(self, tensor: torch.Tensor) -> "Sent | None":
        """How a tensor travels that lies in a slot; None: it lies elsewhere."""
        with self._lock:
            if (slot := self._slot_of(tensor)) is None:
                return None
            slot.send()
            return Sent(os.getpid(), slot.file, self._token, slot.number, HEADER + slot.num_bytes,
                        tensor.data_ptr() - slot.start, tensor.dtype, tuple(tensor.shape))  # fmt: skip

    def hold(self, tensor: torch.Tensor) -> bool:
        with self._lock:
            return self._slot_of(tensor) is not None

    def _slot_of(self, tensor: torch.Tensor) -> Slot | None:
        first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return next((slot for slot in self._slots if slot.start <= first and last <= slot.start + slot.num_bytes), None)


@lru_cache(maxsize=1)
def slots(_process: int) -> Slots:
    """Of this process: one that was forked has none of its parent's."""
    return Slots()


class Sent(NamedTuple):
    """A tensor in a slot, on its way."""

    process: int
    file: int
    token: bytes
    number: int
    size: int  # of the slot, with its header
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(eq=False)
class _Mapped:
    """A slot, as the training process has it."""

    memory: mmap.mmap
    bytes: weakref.ref[np.ndarray] | None = None  # alive as long as a tensor is that lies there

    def flat(self) -> np.ndarray:
        """All its bytes, one object for all tensors in it; when it dies, the slot is free."""
        known = self.bytes() if self.bytes is not None else None
        if known is not None:
            return known
        flat = np.frombuffer(self.memory, np.uint8, offset=HEADER)
        weakref.finalize(flat, _release, self, os.getpid()).atexit = False
        self.bytes = weakref.ref(flat)
        return flat


# Those that a tensor lies in, by token and number; and by token all of a worker, as long as that lives: mapping memory
# anew for each batch takes as long as reading it.
_used: "weakref.WeakValueDictionary[tuple[bytes, int], _Mapped]" = weakref.WeakValueDictionary()
_kept: dict[bytes, dict[int, _Mapped]] = {}


def received(sent: Sent) -> torch.Tensor:
    num_bytes = math.prod(sent.shape) * sent.dtype.itemsize
    flat = _map(sent).flat()[sent.offset : sent.offset + num_bytes]
    return torch.from_numpy(flat).view(sent.dtype).view(sent.shape)


def _map(sent: Sent) -> _Mapped:
    kept = _kept.get(sent.token, {})
    for number in [number for number, slot in kept.items() if slot.memory[0] == RETIRED]:
        del kept[number]
    slot = _used.get((sent.token, sent.number))
    if slot is None:
        slot = _used[sent.token, sent.number] = _Mapped(_opened(sent))
        if sent.token not in _kept:
            workers = (process for process in multiprocessing.active_children() if process.pid == sent.process)
            if (worker := next(workers, None)) is None:
                return slot
            weakref.finalize(worker, _kept.pop, sent.token, None).atexit = False
            _kept[sent.token] = {}
        _kept[sent.token][sent.number] = slot
    return slot


def _opened(sent: Sent) -> mmap.mmap:
    try:
        file = os.open(f"/proc/{sent.process}/fd/{sent.file}", os.O_RDWR)
    except OSError as error:
        raise LoaderError(
            f"a batch of worker {sent.process}, which has ended or may not be asked: {error}",
            code="worker-crashed",
            process=sent.process,
            is_gone=False,
        ) from error
    try:
        memory = mmap.mmap(file, sent.size)
    finally:
        os.close(file)
    if memory[1 : 1 + len(sent.token)] != sent.token:
        raise LoaderError(
            f"a batch of worker {sent.process}, which has ended: its number is another's now",
            code="worker-crashed",
            process=sent.process,
            is_gone=True,
        )
    return memory


def _release(slot: _Mapped, process: int) -> None:
    if process == os.getpid():  # and not in one that was forked from it, where the same tensor died
        slot.memory[0] = FREE
