"""PackedShards: the packs of one output or of several as a torch dataset, balanced, shuffled and resumable at once."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import tee
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..pipeline.errors import UserError
from ..pipeline.runtime.freed import keep_freed
from .arguments import flag, is_positive, whole
from .batches import NO_LOADER_OF_OURS, PackLoader
from .item import PIXELS, pack_item
from .media import BATCH_KEY
from .mix import Mix, Output, Outputs
from .model_inputs import PackCollater, collater_for, restores_pixels
from .order import CHUNK, Order, rank_share, share_length, worker_items
from .pixels import stored_arrays
from .position import Draws, Start
from .ranks import Ranks, refuse_second_sharding, refuse_skipping
from .reader import ShardReader
from .shared import empty, own, room_of_batch
from .stateful import global_state

logger = logging.getLogger(__name__)


class PackedShards(IterableDataset[dict[str, Any]]):
    """Every pack of an epoch once, over all ranks; rank r gets every world_size-th pack of the epoch's order.

    out          a finished output: a directory, or a URI that pyarrow knows (s3://bucket/out). Several of them:
                 [("coco", out1), ("text", out2)], each pack once an epoch; [("coco", out1, 0.7), ("text", out2, 0.3)],
                 mixed by weight
    rank, world_size  default: asked when an iteration begins, of torch.distributed, else of RANK and WORLD_SIZE
    seed         of the order; (seed, epoch) fix it entirely
    batch_size   packs in a rank's batch, for those who make a DataLoader of their own; `loader` knows it
    drop_last    packs that do not fill a last step over all ranks (fewer than world_size) are left out of the epoch;
                 False: that step is filled up with packs from the epoch's start, which so come twice
    shuffle      False: the plan's own order in every epoch
    pixels       "bf16" or "fp32": restored; "uint8": as stored, for `restore_pixels(batch, device)` on the GPU
    check        "packs": sizes of all shards at once (of more than 4,096 local ones: of each where it is read), and the
                 crc32 of each pack when it is first read; "sizes": all sizes at once, and no crc32; "none": neither;
                 "full": all sizes, and the sha256 of every shard, before the first read
    prefetch     packs read ahead, from remote shards only
    cache, cache_gb  a folder on this node's disk, and its size in GB: remote shards are downloaded whole, once per node
    decode_threads  restore the media of a pack, where they are not stored as u8: default 4 in a process (fewer where
                 ranks of a node have fewer cores each), and none in a loader's worker; 0: none. What comes out does
                 not depend on them

    Iterated again it gives the next epoch. Steps are balanced at every world size that divides the plan's group_size.
    Positions are counted in packs over all ranks, so that a run may resume with another world size.
    """

    def __init__(
        self,
        out: Outputs,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        batch_size: int = 1,
        drop_last: bool = True,
        shuffle: bool = True,
        pixels: str = "bf16",
        check: str = "packs",
        prefetch: int = 4,
        cache: str | Path | None = None,
        cache_gb: float | None = None,
        decode_threads: int | None = None,
    ) -> None:
        if pixels not in PIXELS:
            raise UserError(
                f"pixels is {pixels!r}; it must be one of {', '.join(PIXELS)}",
                code="loader-argument",
                argument="pixels",
                got=pixels,
            )
        self._ranks = Ranks(rank, world_size)
        self.seed = whole("seed", seed)
        self.drop_last, self.shuffle = flag("drop_last", drop_last), flag("shuffle", shuffle)
        self.batch_size = batch_size
        self.pixels, self.prefetch = pixels, whole("prefetch", prefetch)
        if cache_gb is not None and not is_positive(cache_gb):
            raise UserError(
                f"cache_gb is {cache_gb!r}; it must be a number above 0, of 10^9 bytes",
                code="loader-argument",
                argument="cache_gb",
                got=cache_gb,
            )
        self.mix = Mix(out, check=check, cache=cache, cache_gb=cache_gb, decode_threads=decode_threads)
        self.layout = self.reader.layout  # what the media arrays are; `wrap_vlm_collate_for_pp` takes it
        self.stored = stored_arrays(self.layout, self.reader.pixel_tables())
        self._start, self._draws = Start(), Draws(self.mix.num_sources)
        self._loaded = False  # a state, and nothing was iterated since
        self._is_told = False  # the epoch, by set_epoch
        self._skip = 0  # items that this loader worker gave out before the state that it loaded
        self._yielded = 0  # items given out in this process since `_start`
        self.iterated_by = 0  # see PackLoader
        self._for_collater = False  # what iterates from here on is a loader with a collater that restores pixels

    @property
    def reader(self) -> ShardReader:
        """Of the first output; what a manifest says of the family holds for all of them."""
        return self.mix.outputs[0].reader

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int) -> None:
        # None would have DataLoader give out packs that no collater has seen.
        self._batch_size = whole("batch_size", batch_size, 1, "; for packs without batches, iterate PackedShards")

    @property
    def rank(self) -> int:
        return self._ranks.now()[0]

    @property
    def world_size(self) -> int:
        return self._ranks.now()[1]

    # Batches

    def loader(
        self,
        batch_size: int = 1,
        num_workers: int = 0,
        *,
        model: torch.nn.Module | None = None,
        collate_fn: Callable[[list[dict[str, Any]]], Any] | None = None,
        **options: Any,
    ) -> PackLoader:
        """Batches of this rank, for `model(**batch)`: a DataLoader that resumes, and goes on to the next epoch itself.

        model       what the batches are for: attention and arguments are read from it; see `collater`
        collate_fn  another collater, for other batches
        options     of DataLoader: pin_memory, prefetch_factor, persistent_workers, …
        """
        if model is not None and not isinstance(model, torch.nn.Module):
            raise UserError(
                f"model is a {type(model).__name__}; expected the torch.nn.Module that takes the batches",
                code="loader-argument",
                argument="model",
                got=type(model).__name__,
            )
        if collate_fn is not None and not callable(collate_fn):
            raise UserError(
                f"collate_fn is {collate_fn!r}; expected a function of a list of packs",
                code="loader-argument",
                argument="collate_fn",
                got=type(collate_fn).__name__,
            )
        if collate_fn is not None and model is not None:
            raise UserError(
                "collate_fn and model are both given; a collate_fn of your own makes the batch by itself",
                code="option-conflict",
                argument="collate_fn",
                other="model",
            )
        return PackLoader(self, batch_size, num_workers, collate_fn or self.collater(model), **options)

    @contextmanager
    def iterated_for(self, collate_fn: object) -> Iterator[None]:
        """Iterations that begin in here are for this collater alone: one of ours restores pixels into the batch."""
        self._for_collater = restores_pixels(collate_fn)
        try:
            yield
        finally:
            self._for_collater = False

    def collater(self, model: torch.nn.Module | None = None, **options: Any) -> PackCollater:
        """What makes the arguments of `model(**batch)` of packs; options as of `PackCollater`."""
        return collater_for(self.reader.manifest.family, model, **options)

    # The epoch

    @property
    def epoch(self) -> int:
        return self._start.epoch

    @property
    def position(self) -> int:
        """Packs of the epoch, over all ranks, that were consumed before this iteration."""
        return self._start.position

    def set_epoch(self, epoch: int) -> None:
        """Another epoch starts at its beginning; the same epoch goes on where it is (after `load_state_dict`)."""
        if refuse_second_sharding(self):
            self.iterated_by = NO_LOADER_OF_OURS
        self._is_told = True
        epoch = whole("epoch", epoch)
        if self._loaded and epoch < self.epoch:
            raise UserError(
                f"set_epoch({epoch}) after a state of epoch {self.epoch} was loaded would train from there once more; "
                "begin the loop at `packs.epoch`",
                code="loader-position",
                epoch=epoch,
                loaded=self.epoch,
            )
        self._start.begin(epoch, self.position if epoch == self.epoch and not self._start.is_finished else 0)

    def advance(self) -> None:
        """The next epoch, at its beginning: what iterating again does by itself."""
        self._start.restart(self.epoch + 1, 0)

    def restart(self) -> None:
        """This iteration from its beginning, whatever workers that were left behind have read of it."""
        self._start.restart(self.epoch, self.position)

    def __len__(self) -> int:
        """Packs that this rank gets in a whole epoch: trainers that resume count on from where they were."""
        self._check_world()
        return share_length(self.mix.num_packs, 0, self.world_size, drop_last=self.drop_last)

    @property
    def num_left(self) -> int:
        """Packs that this rank gets from `position` to the end of the epoch."""
        self._check_world()
        return share_length(self.mix.num_packs, self.position, self.world_size, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._iterated(self._for_collater)

    def _iterated(self, for_collater: bool) -> Iterator[dict[str, Any]]:
        worker, num_workers = _worker()
        if get_worker_info() is not None:  # a process that does nothing else
            keep_freed()
        if not self._is_told or self.position:
            refuse_skipping(self, self.epoch, self.position)
        iteration = self._start.enter()
        self._loaded, self._skip, self._yielded = False, 0, self._skip
        self._check_world()
        if worker == 0:
            self._tell_what_is_left_out()
        for place, item in self._items(self._places(worker, num_workers), for_collater):
            self._yielded += 1
            yield item if get_worker_info() is None else item | {BATCH_KEY: place.batch}
        self._start.note(iteration, worker, num_workers)

    def order(self) -> np.ndarray:
        """The packs of this epoch, over all ranks: numbers for `item`."""
        return self.lazy_order()[:]

    def lazy_order(self) -> Order:
        """The same, of which parts are computed when they are asked for."""
        return self.mix.order(self.seed, self.epoch, shuffle=self.shuffle, drawn=self._draws)

    def prepare(self) -> None:
        """Find out the shuffle of this epoch before loader workers ask for it, who would all do so at once."""
        self.lazy_order()

    def _places(self, worker: int, num_workers: int) -> Iterator["Place"]:
        """What this process reads from here to the end of the epoch, in order."""
        order, (rank, world_size) = self.lazy_order(), self._ranks.now()
        num_items = share_length(len(order), self.position, world_size, drop_last=self.drop_last)
        last = num_items // self.batch_size * self.batch_size  # from here on a batch is not full
        chunks = worker_items(num_items, self.batch_size, worker, num_workers, given=self._yielded,
                              chunk=max(1, CHUNK // world_size))  # fmt: skip
        for begin, end, mine in chunks:
            packs = rank_share(order, self.position, rank, world_size, begin, end)[mine]
            sizes = np.where(begin + mine < last, self.batch_size, num_items - last).tolist()
            yield from map(Place, *self.mix.find(packs), sizes)

    def _check_world(self) -> None:
        world_size, num_packs = self.world_size, self.mix.num_packs
        if self.drop_last and num_packs < world_size:
            raise UserError(
                f"{num_packs} packs on {world_size} ranks: not one step. Train on fewer ranks, pack into smaller packs "
                "(--pack-size), or let packs come twice (drop_last=False)",
                code="batch-mismatch",
                packs=num_packs,
                world_size=world_size,
            )

    def _tell_what_is_left_out(self) -> None:
        rank, world_size = self._ranks.now()
        left_out = (self.mix.num_packs - self.position) % world_size
        if rank == 0 and left_out and self.drop_last:
            logger.warning(
                "epoch %d: %d of %d packs fill no step of %d ranks and are left out; drop_last=False trains those, "
                "and %d from the epoch's start once more", self.epoch, left_out, self.mix.num_packs, world_size,
                world_size - left_out,
            )  # fmt: skip

    # Resuming

    def state_dict(self) -> dict[str, Any]:
        """Where this iteration is. Without loader workers that is a global position, good for any world size.

        In a loader worker (torchdata's StatefulDataLoader asks there) it is that worker's part of it. With a plain
        DataLoader and workers, only the consumer knows how far it has come: `loader` counts, or `state_at`.
        """
        worker = get_worker_info()
        if worker is None:
            return self._state(self._yielded)
        here = {"world_size": self.world_size, "batch_size": self.batch_size, "num_workers": worker.num_workers}
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position, **self.mix.describe(),
                "yielded": self._yielded, **here}  # fmt: skip

    def state_at(self, num_batches: int) -> dict[str, Any]:
        """The global state after the consumer has trained `num_batches` batches of this iteration."""
        return self._state(min(whole("num_batches", num_batches) * self.batch_size, self.num_left))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with any world size, batch size and number of workers.

        States of torchdata's StatefulDataLoader are taken, too: the loader itself goes on with as many workers as it
        had only, a dataset that is given its state with any.
        """
        if not isinstance(state, Mapping):
            raise UserError(
                f"the state is a {type(state).__name__}; expected what state_dict() gave",
                code="loader-state",
                got=type(state).__name__,
            )
        if get_worker_info() is None:
            state = global_state(state)
        ours = {"seed": self.seed, **self.mix.describe()}
        for key, value in ours.items():
            if state.get(key) != value:
                raise UserError(
                    f"the state is of {key} {state.get(key)}, this dataset has {value}: the orders differ",
                    code="loader-state",
                    key=key,
                    got=state.get(key),
                    expected=value,
                )
        epoch, position = (whole(f"{name} of the state", state.get(name)) for name in ("epoch", "position"))
        if get_worker_info() is not None and (there := state.get("num_workers")) is not None:
            here = self.state_dict()
            if differing := [key for key in ("world_size", "batch_size", "num_workers") if state[key] != here[key]]:
                raise UserError(
                    f"the state of a StatefulDataLoader with {there} workers resumes in the same arrangement only, and "
                    f"{', '.join(f'{key} is {here[key]}, was {state[key]}' for key in differing)}; give it to the "
                    "dataset before the loader is made: packs.load_state_dict(state)",
                    code="loader-state",
                    key=differing[0],
                    workers=there,
                )
        if position and state.get("plan", self.mix.plan) != self.mix.plan and self.rank == 0:
            logger.warning(
                "the state is at position %d of epoch %d of an output that was packed otherwise, with as many packs: "
                "other documents are in them, and in the rest of this epoch some come twice and others not at all. "
                "set_epoch(%d) goes on with the next epoch instead",
                position, epoch, epoch + 1,
            )  # fmt: skip
        self._start.begin(epoch, position)
        self._loaded, self._skip, self._yielded = True, state.get("yielded", 0), 0

    def _state(self, num_items: int) -> dict[str, Any]:
        """After `num_items` of this rank's items; at the end of an epoch, the beginning of the next."""
        epoch, position = self.epoch, self.position + num_items * self.world_size
        if not share_length(self.mix.num_packs, position, self.world_size, drop_last=self.drop_last):
            epoch, position = epoch + 1, 0
        state = {"seed": self.seed, "epoch": epoch, "position": position, **self.mix.describe()}
        # Not before anything was trained: torch.distributed.checkpoint asks a new loader for the keys of the state that
        # it is to load, and states of older releases do not have this one.
        return state | {"plan": self.mix.plan} if position and self.mix.plan else state

    # Packs

    def pack(self, number: int, output: str = "") -> dict[str, Any]:
        """Pack `number` of the output, at random access; of several outputs, that of the one with this name."""
        return self.item(self.mix.number(output, number))

    def item(self, pack: int) -> dict[str, Any]:
        """A pack by its number in `order`."""
        (place,), (number,) = self.mix.find(np.array([pack]))
        output = self.mix.outputs[place]
        return self._item(output, number, output.reader.content(number))

    def _items(self, places: Iterator["Place"], for_collater: bool) -> Iterator[tuple["Place", dict[str, Any]]]:
        """Each output reads ahead of the others, as far as it likes."""
        outputs = self.mix.outputs
        asked, *copies = tee(places, 1 + len(outputs))
        room = room_of_batch() if for_collater else None
        contents = [
            output.reader.contents(_numbers_of(number, copy), self.prefetch, room)
            for number, (output, copy) in enumerate(zip(outputs, copies, strict=True))
        ]
        for place in asked:
            number, content = next(contents[place.output])
            yield place, self._item(outputs[place.output], number, content, for_collater=for_collater)

    def _item(self, output: Output, number: int, content: memoryview, *, for_collater: bool = False) -> dict[str, Any]:
        counts = {"pack": number, **output.reader.counts(number)}
        arrays = output.reader.arrays(number, content, empty if for_collater else own)
        recurrent = self.reader.manifest.family.get("recurrent_layers")
        item = pack_item(
            arrays, counts, self.layout, self.stored, PIXELS[self.pixels], recurrent, for_collater=for_collater
        )
        return item | {"output": output.name} if len(self.mix.outputs) > 1 else item


class Place(NamedTuple):
    """A pack that a process reads."""

    output: int  # among those of the mix
    number: int  # of the pack in its output
    batch: int  # packs in its batch


def _numbers_of(output: int, places: Iterator[Place]) -> Iterator[int]:
    return (place.number for place in places if place.output == output)


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)
