"""PackedShards: the packs of one output or of several, balanced, shuffled and resumable at once."""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import tee
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from neatpack.errors import UserError
from neatpack.format.output import OutputReader

from .arguments import flag, is_positive, whole
from .item import PIXELS, pack_item
from .loader import PackLoader
from .mix import Mix, Outputs
from .model_inputs import PackCollater, collater_for, restores_pixels
from .order import CHUNK, Order, rank_share, share_length
from .pixels import read_pixel_tables, stored_arrays
from .ranks import Ranks

logger = logging.getLogger(__name__)


class LocatedPack(NamedTuple):
    """A pack of a rank, on its way to be read by a thread."""

    output: int  # among those of the mix
    number: int  # of the pack in its output
    file: BinaryIO | None  # its shard, where a cache has it


class PackedShards:
    """Every pack of an epoch once, over all ranks; rank r gets every world_size-th pack of the epoch's order.

    Iterating again gives the next epoch. Steps are balanced at every world size that divides the plan's group_size.
    Positions count packs over all ranks, so a run may resume with another world size.

    Args:
        out: a finished output: a directory, or a URI that pyarrow knows (s3://bucket/out). Several outputs:
            [("coco", out1), ("text", out2)], each pack once per epoch; [("coco", out1, 0.7), ("text", out2, 0.3)],
            mixed by weight.
        rank: of this process. Default: asked when an iteration begins, of torch.distributed, else of RANK.
        world_size: likewise, of torch.distributed or WORLD_SIZE.
        seed: of the order; (seed, epoch) determine it entirely.
        drop_last: packs that do not fill a last step over all ranks (fewer than world_size) are left out of the epoch.
            False fills that step with packs from the epoch's start, which then come twice.
        shuffle: False gives the plan's own order in every epoch.
        pixels: "bf16" or "fp32": restored; "uint8": as stored, for `restore_pixels(batch, device)` on the GPU.
        check: "packs": sizes of all shards at once (of more than 4,096 local ones: of each where it is read), and the
            crc32 of each pack when it is first read; "sizes": all sizes at once, and no crc32; "none": neither;
            "full": all sizes, and the sha256 of every shard, before the first read.
        cache: a folder on this node's disk: remote shards are downloaded whole, once per node.
        cache_gb: its size in GB.
    """

    def __init__(
        self,
        out: Outputs,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        drop_last: bool = True,
        shuffle: bool = True,
        pixels: str = "bf16",
        check: str = "packs",
        cache: str | Path | None = None,
        cache_gb: float | None = None,
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
        self.pixels = pixels
        if cache_gb is not None and not is_positive(cache_gb):
            raise UserError(
                f"cache_gb is {cache_gb!r}; it must be a number above 0, of 10^9 bytes",
                code="loader-argument",
                argument="cache_gb",
                got=cache_gb,
            )
        self.mix = Mix(out, check=check, cache=cache, cache_gb=cache_gb)
        self.layout = self.reader.layout  # what the media arrays are; `wrap_vlm_collate_for_pp` takes it
        self.stored = stored_arrays(self.layout, read_pixel_tables(self.reader))
        self.epoch = 0
        self.position = 0  # packs of the epoch, over all ranks, that were consumed before this iteration
        self.read_by = 0  # number of the loader that began an iteration last
        self._num_given = 0  # packs of this iteration that this rank was given
        self._is_loaded = False  # a state was loaded, and nothing was iterated since
        self._shuffles: dict[tuple[int, int], int] = {}  # by source and pass, which of the drawn shuffles is taken

    @property
    def reader(self) -> OutputReader:
        """The first output; what its manifest says of the family holds for all of them."""
        return self.mix.outputs[0].reader

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
        pin_memory: bool = False,
        prefetch_factor: int = 2,
    ) -> PackLoader:
        """Return batches of this rank for `model(**batch)`, epoch after epoch, from any position.

        Args:
            batch_size: packs per batch.
            num_workers: threads that read, restore and collate batches ahead; 0: each batch when it is asked for.
            model: what the batches are for: attention and arguments are read from it; see `collater`.
            collate_fn: another collater, for other batches. Threads call it at the same time.
            pin_memory: put batches into page-locked memory, for fast copies to the GPU.
            prefetch_factor: batches per thread that are made ahead.
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
        collate_fn = collate_fn or self.collater(model)
        for output in self.mix.outputs:
            output.reader.check_decoder()
        return PackLoader(
            self, batch_size, num_workers, collate_fn, pin_memory=pin_memory, prefetch_factor=prefetch_factor
        )

    def collater(self, model: torch.nn.Module | None = None, **options: Any) -> PackCollater:
        """Return the collater that makes the arguments of `model(**batch)` of packs; options as of `PackCollater`."""
        return collater_for(self.reader.manifest.family, model, **options)

    # The epoch

    def set_epoch(self, epoch: int) -> None:
        """Start another epoch at its beginning; the same epoch goes on where it is (after `load_state_dict`)."""
        epoch = whole("epoch", epoch)
        if self._is_loaded and epoch < self.epoch:
            raise UserError(
                f"set_epoch({epoch}) after a state of epoch {self.epoch} was loaded would train from there once more; "
                "begin the loop at `packs.epoch`",
                code="loader-position",
                epoch=epoch,
                loaded=self.epoch,
            )
        if epoch != self.epoch:
            self._move_to(epoch, 0)

    def _move_to(self, epoch: int, position: int) -> None:
        self.epoch, self.position, self._num_given = epoch, position, 0

    def start_next_epoch(self) -> None:
        """Move to the beginning of the next epoch: what iterating again does by itself."""
        self._move_to(self.epoch + 1, 0)

    def __len__(self) -> int:
        """Packs that this rank gets in a whole epoch: trainers that resume count from where they were."""
        return self._count_packs(0)

    @property
    def num_left(self) -> int:
        """Packs that this rank gets from `position` to the end of the epoch."""
        return self._count_packs(self.position)

    def _count_packs(self, position: int) -> int:
        self._check_world()
        return share_length(self.mix.num_packs, position, self.world_size, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._num_given = 0
        for located in self.locate_packs():
            self._num_given += 1
            yield self.read_pack(located)
        self.start_next_epoch()

    def __getitem__(self, index: Any) -> Any:
        raise UserError(
            "PackedShards has no items by index: a DataLoader or trainer would draw them at random and shard them a "
            "second time. Use packs.loader(...), or give it IndexedPacks(out)",
            code="trainer-unsupported",
            by="index",
        )

    def order(self) -> np.ndarray:
        """Return the packs of this epoch, over all ranks: numbers for `item`."""
        return self.lazy_order()[:]

    def lazy_order(self) -> Order:
        """Return the same order, whose parts are computed when they are sliced."""
        return self.mix.order(self.seed, self.epoch, shuffle=self.shuffle, drawn=self._shuffles)

    def locate_packs(self) -> Iterator[LocatedPack]:
        """List the packs of this rank from the position to the end of the epoch; caches download ahead of them."""
        self._is_loaded = False
        self._warn_of_dropped_packs()
        first, *others = tee(self._numbers(), 1 + len(self.mix.outputs))
        opened = [
            output.reader.open_ahead(number for place, number in copy if place == output_place)
            for output_place, (output, copy) in enumerate(zip(self.mix.outputs, others, strict=True))
        ] if any(output.reader.has_cache for output in self.mix.outputs) else []  # fmt: skip
        for place, number in first:
            yield LocatedPack(place, number, next(opened[place])[1] if opened else None)

    def _numbers(self) -> Iterator[tuple[int, int]]:
        """Output and number of each pack of this rank, in order."""
        order, (rank, world_size), position = self.lazy_order(), self._ranks.now(), self.position
        num_packs, step = self.num_left, max(1, CHUNK // world_size)
        for begin in range(0, num_packs, step):
            packs = rank_share(order, position, rank, world_size, begin, min(begin + step, num_packs))
            yield from zip(*self.mix.find(packs), strict=True)

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

    def _warn_of_dropped_packs(self) -> None:
        rank, world_size = self._ranks.now()
        num_dropped = (self.mix.num_packs - self.position) % world_size
        if rank == 0 and num_dropped and self.drop_last:
            logger.warning(
                "epoch %d: %d of %d packs fill no step of %d ranks and are left out; drop_last=False trains those, "
                "and %d from the epoch's start once more", self.epoch, num_dropped, self.mix.num_packs, world_size,
                world_size - num_dropped,
            )  # fmt: skip

    # Resuming

    def state_dict(self) -> dict[str, Any]:
        """Return where this iteration is: a position over all ranks, good for any world size."""
        return self.state_after(self._num_given)

    def state_after(self, num_packs: int) -> dict[str, Any]:
        """Return the state after this rank consumed so many packs of this iteration; after the last, the next epoch.

        All ranks have the same state.
        """
        position = self.position + min(whole("num_packs", num_packs), self.num_left) * self.world_size
        epoch, position = (self.epoch, position) if self._count_packs(position) else (self.epoch + 1, 0)
        state = {"seed": self.seed, "epoch": epoch, "position": position, **self.mix.describe()}
        # Not before anything was trained: torch.distributed.checkpoint asks a new loader for the keys of the state that
        # it is to load, and states of older releases lack this one.
        return state | {"plan": self.mix.plan} if position and self.mix.plan else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with any world size, batch size and number of threads."""
        if not isinstance(state, Mapping):
            raise UserError(
                f"the state is a {type(state).__name__}; expected what state_dict() gave",
                code="loader-state",
                got=type(state).__name__,
            )
        self.check_order(state)
        epoch, position = (whole(f"{name} of the state", state.get(name)) for name in ("epoch", "position"))
        if position and state.get("plan", self.mix.plan) != self.mix.plan and self.rank == 0:
            logger.warning(
                "the state is at position %d of epoch %d of an output that was packed otherwise, with as many packs: "
                "other documents are in them, and in the rest of this epoch some come twice and others not at all. "
                "set_epoch(%d) goes on with the next epoch instead",
                position, epoch, epoch + 1,
            )  # fmt: skip
        self._move_to(epoch, position)
        self._is_loaded = True

    def describe_order(self) -> dict[str, Any]:
        """Return what the orders of all epochs depend on."""
        return {"seed": self.seed, **self.mix.describe()}

    def check_order(self, state: Mapping[str, Any]) -> None:
        """Raise UserError for a state of another order."""
        for key, value in self.describe_order().items():
            if state.get(key) != value:
                raise UserError(
                    f"the state is of {key} {state.get(key)}, this dataset has {value}: the orders differ",
                    code="loader-state",
                    key=key,
                    got=state.get(key),
                    expected=value,
                )

    # Packs

    def pack(self, number: int, output: str = "") -> dict[str, Any]:
        """Read pack `number` of the output, at random access; of several outputs, that of the one with this name."""
        return self.item(self.mix.number(output, number))

    def item(self, pack: int) -> dict[str, Any]:
        """Read a pack by its number in `order`."""
        (place,), (number,) = self.mix.find(np.array([pack]))
        return self.read_pack(LocatedPack(place, number, self.mix.outputs[place].reader.open(number)))

    def read_pack(self, located: LocatedPack, *, for_collater: bool = False) -> dict[str, Any]:
        """Read a pack, in any thread.

        Args:
            located: which one.
            for_collater: only a collater of neatpack gets the item, and restores the pixels itself, into the batch.
        """
        output, number = self.mix.outputs[located.output], located.number
        reader = output.reader
        arrays = reader.arrays(number, reader.read(number, located.file))
        counts = {"pack": number, **reader.counts(number)}
        recurrent = self.reader.manifest.family.get("recurrent_layers")
        item = pack_item(
            arrays, counts, self.layout, self.stored, PIXELS[self.pixels], recurrent, for_collater=for_collater
        )
        return item | {"output": output.name} if len(self.mix.outputs) > 1 else item

    def read_batch(self, located: list[LocatedPack], collate_fn: Callable[[list[dict[str, Any]]], Any]) -> Any:
        """Read and collate packs, in any thread."""
        for_collater = restores_pixels(collate_fn)
        return collate_fn([self.read_pack(each, for_collater=for_collater) for each in located])
