"""PackedShards: the packs of an output as a torch dataset, balanced, shuffled and resumable at once."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..pipeline.records import TOKEN_TYPES
from .media import LAYOUT_KEY, document_numbers
from .order import epoch_order, rank_share, share_length, worker_share
from .pixels import STORED_KEY, restored, stored_arrays
from .reader import ShardReader

PIXELS = {"bf16": torch.bfloat16, "fp32": torch.float32, "uint8": None}


class PackedShards(IterableDataset[dict[str, Any]]):
    """Every pack of an epoch once, over all ranks; rank r gets every world_size-th pack of the epoch's order.

    out          a finished output: a directory, or a URI that pyarrow knows (s3://bucket/out)
    rank, world_size  default: those of torch.distributed, or 0 of 1
    seed         of the order; (seed, epoch) fix it entirely
    batch_size   packs in a rank's batch: give the DataLoader's, so that several workers keep the rank's order
    drop_last    packs that do not fill a last step over all ranks (fewer than world_size) are left out of the epoch;
                 False: that step is filled up with packs from the epoch's start, which so come twice
    shuffle      False: the plan's own order in every epoch
    pixels       "bf16" or "fp32": restored; "uint8": as stored, for `restore_pixels(batch, device)` on the GPU
    check        "none", "sizes" or "full" (sha256 of every shard) before the first read
    prefetch     packs read ahead, from remote shards only

    Steps are balanced at every world size that divides the plan's group_size. Positions are counted in packs over all
    ranks, so that a run may resume with another world size: see `state_dict`, `state_at` and `load_state_dict`.
    """

    def __init__(
        self,
        out: str | Path,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        batch_size: int = 1,
        drop_last: bool = True,
        shuffle: bool = True,
        pixels: str = "bf16",
        check: str = "sizes",
        prefetch: int = 4,
    ) -> None:
        if pixels not in PIXELS:
            raise ValueError(f"pixels is {pixels!r}; it must be one of {', '.join(PIXELS)}")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
        self.rank, self.world_size = rank_and_world(rank, world_size)
        self.reader = ShardReader(out, check=check)
        self.seed, self.batch_size, self.drop_last, self.shuffle = seed, batch_size, drop_last, shuffle
        self.pixels, self.prefetch = pixels, prefetch
        self.layout = self.reader.layout  # what the media arrays are; `wrap_vlm_collate_for_pp` takes it
        self.stored = stored_arrays(self.layout, self.reader.pixel_tables())
        # Epoch and position in shared memory: a worker that lives on (persistent_workers) sees a new epoch too.
        self._start = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._yielded = 0  # items given out in this process since `_start`
        self._finished = False

    # The epoch

    @property
    def epoch(self) -> int:
        return int(self._start[0])

    @property
    def position(self) -> int:
        """Packs of the epoch, over all ranks, that were consumed before this iteration."""
        return int(self._start[1])

    def set_epoch(self, epoch: int) -> None:
        """Another epoch starts at its beginning; the same epoch goes on where it is (after `load_state_dict`)."""
        if epoch != self.epoch:
            self._begin(epoch, 0)

    def __len__(self) -> int:
        """Packs that this rank gets from `position` to the end of the epoch."""
        return share_length(len(self.reader.packs), self.position, self.world_size, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._finished:  # a second pass without set_epoch: the same epoch again, from its start
            self._begin(self.epoch, 0)
        worker, num_workers = _worker()
        share = self._share()
        mine = share[worker_share(len(share), self.batch_size, worker, num_workers)]
        for item in self._items(mine[self._yielded :].tolist()):
            self._yielded += 1
            yield item
        self._finished = True

    def _share(self) -> np.ndarray:
        reader = self.reader
        loads = (reader.visual_tokens, reader.tokens)
        order = reader.packs
        if self.shuffle:
            order = epoch_order(order, reader.group_size, self.seed, self.epoch, loads)
        return rank_share(order, self.position, self.rank, self.world_size, drop_last=self.drop_last)

    # Resuming

    def state_dict(self) -> dict[str, int]:
        """Where this iteration is. Without loader workers that is a global position, good for any world size.

        In a loader worker (torchdata's StatefulDataLoader asks there) it is that worker's part of it, which resumes in
        the same arrangement of ranks and workers only. With a plain DataLoader and workers, only the consumer knows
        how far it has come: `state_at(batches trained)`.
        """
        _, num_workers = _worker()
        if get_worker_info() is None:
            return self._state(self.position + self._yielded * self.world_size)
        return self._state(self.position) | {"yielded": self._yielded} | self._arrangement(num_workers)

    def state_at(self, num_batches: int) -> dict[str, int]:
        """The global state after the consumer has trained `num_batches` batches of this iteration."""
        items = min(num_batches * self.batch_size, len(self))
        return self._state(self.position + items * self.world_size)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a state; a global one may come from another world size, batch size or number of workers."""
        ours = self._state(0)
        for key in ("seed", "num_packs"):
            if state[key] != ours[key]:
                raise ValueError(f"the state is of {key} {state[key]}, this dataset has {ours[key]}: the orders differ")
        if "yielded" in state:
            _, num_workers = _worker()
            here = self._arrangement(num_workers)
            there = {key: state[key] for key in here}
            if get_worker_info() is None or there != here:
                raise ValueError(
                    f"the state of a loader worker resumes in the same arrangement only: it is of {there}, this is "
                    f"{here}; save `state_at(batches trained)` to resume in another"
                )
            # The worker's own copy: the consumer's dataset, which shares `_start`, must not move with it.
            self._start = self._start.clone()
        self._begin(state["epoch"], state["position"])
        self._yielded = state.get("yielded", 0)

    def _begin(self, epoch: int, position: int) -> None:
        self._start[0], self._start[1] = epoch, position
        self._yielded, self._finished = 0, False

    def _state(self, position: int) -> dict[str, int]:
        return {"seed": self.seed, "epoch": self.epoch, "position": position, "num_packs": len(self.reader.packs)}

    def _arrangement(self, num_workers: int) -> dict[str, int]:
        return {"world_size": self.world_size, "batch_size": self.batch_size, "num_workers": num_workers}

    # Packs

    def pack(self, number: int) -> dict[str, Any]:
        """Pack `number` of the output, at random access."""
        return self._item(number, self.reader.content(number))

    def _items(self, numbers: list[int]) -> Iterator[dict[str, Any]]:
        if self.reader.is_local or not self.prefetch:
            yield from map(self.pack, numbers)
            return
        ahead: deque[tuple[int, Future[memoryview]]] = deque()
        pool = ThreadPoolExecutor(self.prefetch)
        try:
            for number in numbers:
                ahead.append((number, pool.submit(self.reader.content, number)))
                if len(ahead) > self.prefetch:
                    first, content = ahead.popleft()
                    yield self._item(first, content.result())
            for first, content in ahead:
                yield self._item(first, content.result())
        finally:
            pool.shutdown(cancel_futures=True)

    def _item(self, number: int, content: memoryview) -> dict[str, Any]:
        """Pixels as stored are a view of the shard until the collater copies them into the batch.

        The other arrays are small and copied, as the integers that torch wants: code that masks labels in place must
        not find them masked in the next epoch. numpy copies them: torch.tensor takes three times as long.
        """
        arrays, header = self.reader.arrays(number, content)
        pixels = {name: torch.from_numpy(arrays.pop(name)) for name in self.stored}
        tensors = {name: torch.from_numpy(array.astype(_dtype(array))) for name, array in arrays.items()}
        item: dict[str, Any] = {
            "pack": number,
            **tensors,
            "attention_mask": document_numbers(tensors["seq_lens_padded"]),
            **{f"n_{kind}s": header[f"num_{kind}s"] for kind in TOKEN_TYPES},
            LAYOUT_KEY: self.layout,
        }
        dtype = PIXELS[self.pixels]
        if dtype is None:
            return item | pixels | {STORED_KEY: self.stored}
        return item | {name: restored(rows, self.stored[name], dtype) for name, rows in pixels.items()}


def _dtype(array: np.ndarray) -> type[np.float32 | np.int64]:
    return np.float32 if array.dtype.kind == "f" else np.int64


def rank_and_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is None and world_size is None:
        running = torch.distributed.is_available() and torch.distributed.is_initialized()
        return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if running else (0, 1)
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise ValueError(f"rank={rank}, world_size={world_size}: give both, with 0 <= rank < world_size, or neither")
    return rank, world_size


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)
