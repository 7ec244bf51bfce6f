"""Several outputs read as one: which packs an epoch has, and where each lies."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from neatpack.errors import OutputError, UserError
from neatpack.format.manifest import Manifest, changes, differences
from neatpack.format.output import OutputReader

from .arguments import is_positive
from .cache import ShardCache
from .order import Drawn, Order, Source, lazy_order, shares, spread_group_size
from .pixels import load_renderer

Outputs = str | Path | Sequence[tuple[str, str | Path] | tuple[str, str | Path, float]]


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    reader: OutputReader


class Mix:
    """One output, or several: [("coco", out1, 0.7), ("text", out2, 0.3)].

    A pack is known by one number: its own in its output, plus where the numbers of that output begin.
    Without weights an epoch has every pack of every output once.
    With weights it is as long, an output's share of its packs is its weight, and each output goes through passes of its
    own: see `lazy_order`.
    """

    def __init__(
        self,
        out: Outputs,
        *,
        check: str = "packs",
        cache: str | Path | None = None,
        cache_gb: float | None = None,
    ) -> None:
        listed = _listed(out)
        names, weights = [name for name, _, _ in listed], [weight for *_, weight in listed if weight is not None]
        make_cache = _cache_maker(cache, cache_gb)
        readers = [OutputReader(where, load_renderer, check=check, make_cache=make_cache) for _, where, _ in listed]
        for name, reader in zip(names[1:], readers[1:], strict=True):
            _check_agreement(names[0], readers[0].manifest, name, reader.manifest)
        self.outputs = [Output(name, reader) for name, reader in zip(names, readers, strict=True)]
        sizes = [reader.num_packs for reader in readers]
        per_epoch = shares(sizes, weights) if weights else sizes
        ends = np.cumsum([reader.num_packs for reader in readers])
        self._firsts = np.concatenate([[0], ends[:-1]])
        self._sources = [
            _make_source(reader, count, first)
            for reader, count, first in zip(readers, per_epoch, self._firsts.tolist(), strict=True)
        ]
        self.num_packs = sum(per_epoch)

    def describe(self) -> dict[str, Any]:
        """What the order depends on besides seed and epoch: packs, and of several outputs what each gives."""
        if len(self._sources) == 1:
            return {"num_packs": self.num_packs}
        firsts, _ = self.find(np.array([source.first for source in self._sources], np.int64))
        mix = [[self.outputs[output].name, len(source.packs), source.per_epoch]
               for output, source in zip(firsts, self._sources, strict=True)]  # fmt: skip
        return {"num_packs": self.num_packs, "mix": mix}

    @cached_property
    def plan(self) -> str:
        """A digest of the packs' loads, which stands for their documents. The same for any codec of pixels."""
        digest = hashlib.sha256()
        for output in self.outputs:
            for load in output.reader.loads():
                digest.update(load.data)
        return digest.hexdigest()[:16]

    def order(self, seed: int, epoch: int, *, shuffle: bool, drawn: Drawn) -> Order:
        return lazy_order(self._sources, seed, epoch, shuffle=shuffle, drawn=drawn)

    def find(self, packs: np.ndarray) -> tuple[list[int], list[int]]:
        """The output of each pack, as its place among `outputs`, and the pack's number there."""
        places = np.searchsorted(self._firsts, packs, side="right") - 1
        return places.tolist(), (packs - self._firsts[places]).tolist()

    def number(self, output: str, pack: int) -> int:
        """By what number `find` finds a pack of an output."""
        names = [known.name for known in self.outputs]
        if output not in names:
            raise UserError(
                f"output {output!r} is unknown; there are {', '.join(map(repr, names))}",
                code="mixture-invalid",
                output=output,
            )
        return pack + int(self._firsts[names.index(output)])


def _make_source(reader: OutputReader, per_epoch: int, first: int) -> Source:
    keeps_spread = has_copies(reader.manifest)
    group_size = spread_group_size(reader.group_size, reader.num_packs) if keeps_spread else reader.group_size
    return Source(
        packs=range(reader.num_packs),
        group_size=group_size,
        loads=reader.loads,
        per_epoch=per_epoch,
        first=first,
        keeps_spread=keeps_spread,
    )


def has_copies(manifest: Manifest) -> bool:
    """Return whether rows come several times and are spread over the packs: then an epoch keeps them so."""
    return manifest.counts.samples > manifest.counts.rows


def _cache_maker(folder: str | Path | None, gb: float | None) -> Callable[[], ShardCache] | None:
    if (folder is None) != (gb is None):
        raise UserError(
            f"cache={folder!r}, cache_gb={gb!r}: give both, or neither",
            code="loader-argument",
            argument="cache",
            cache=folder,
            cache_gb=gb,
        )
    return None if folder is None or gb is None else partial(ShardCache, folder, int(gb * 1e9))


def _listed(out: Outputs) -> list[tuple[str, str | Path, float | None]]:
    """Name, place and weight of every output; either all have a weight, or none."""
    if isinstance(out, str | Path):
        return [("", out, None)]
    expected = "expected [(name, out), …] or, all of them with a weight, [(name, out, weight), …]"
    if not _is_list(out) or not all(map(_is_list, out)):
        raise UserError(
            f"outputs are {out!r}; expected the place of one; for several, {expected}",
            code="mixture-invalid",
            outputs=out,
        )
    if not out or {len(entry) for entry in out} not in ({2}, {3}):
        raise UserError(f"outputs are {out!r}; {expected}", code="mixture-invalid", outputs=out)
    if odd := [entry for entry in out if not isinstance(entry[0], str) or not isinstance(entry[1], str | Path)]:
        raise UserError(
            f"an output is {odd[0]!r}; its name must be a text, and its place a path or a URI",
            code="mixture-invalid",
            outputs=odd[0],
        )
    listed = [(entry[0], entry[1], entry[2] if len(entry) == 3 else None) for entry in out]
    if len({name for name, *_ in listed}) < len(listed):
        raise UserError(
            f"outputs are named {', '.join(name for name, *_ in listed)}; give each another name",
            code="mixture-invalid",
            names=[name for name, *_ in listed],
        )
    if any(weight is not None and not is_positive(weight) for *_, weight in listed):
        raise UserError(
            f"weights are {[weight for *_, weight in listed]}; each must be above 0, so leave out what is not wanted",
            code="mixture-invalid",
            weights=[weight for *_, weight in listed],
        )
    return listed


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _restored_as(manifest: Manifest) -> dict[str, Any]:
    """What pixels are; how they are stored may differ."""
    return {name: value for name, value in asdict(manifest.pixels).items() if name not in ("codec", "rule")}


def _check_agreement(name: str, manifest: Manifest, other_name: str, other: Manifest) -> None:
    """Packs of another model family, or of another processor, are not for the same model."""
    ours, theirs = ({"family": m.family, "processor": m.identity.processor, "pixels": _restored_as(m)}
                    for m in (manifest, other))  # fmt: skip
    if ours != theirs:
        # The processor's fingerprint says that it differs; how it was set says why.
        old, new = ours | {"config": manifest.identity.config}, theirs | {"config": other.identity.config}
        told = differences(old, new)
        raise OutputError(
            f"outputs {name!r} and {other_name!r} are not for one model: {'; '.join(told)}; pack them with one "
            "processor and the same settings of it",
            code="mixture-invalid",
            names=[name, other_name],
            differing=[where for where, *_ in changes(old, new)],
        )
