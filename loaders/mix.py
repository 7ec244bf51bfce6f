"""Several outputs read as one: which packs an epoch has, and where each lies."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..pipeline.identity import differences
from ..pipeline.manifest import Manifest, OutputError
from .order import Source, apportioned, mixed_order, shares
from .reader import ShardReader

Outputs = str | Path | Sequence[tuple[str, str | Path] | tuple[str, str | Path, float]]


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    reader: ShardReader


class Mix:
    """One output, or several: [("coco", out1, 0.7), ("text", out2, 0.3)].

    A pack is known by one number: its own in its output, plus where the numbers of that output begin.
    Without weights an epoch has every pack of every output once, or as often as it was packed for (--repeat-at-load).
    With weights it is as long, an output's share of its packs is its weight, and each output goes through passes of its
    own: see `mixed_order`.
    """

    def __init__(
        self, out: Outputs, *, check: str = "packs", cache: str | Path | None = None, cache_gb: float | None = None
    ) -> None:
        listed = _listed(out)
        names, weights = [name for name, _, _ in listed], [weight for *_, weight in listed if weight is not None]
        readers = [ShardReader(where, check=check, cache=cache, cache_gb=cache_gb) for _, where, _ in listed]
        for name, reader in zip(names[1:], readers[1:], strict=True):
            _check_agreement(names[0], readers[0].manifest, name, reader.manifest)
        self.outputs = [Output(name, reader) for name, reader in zip(names, readers, strict=True)]
        sizes = [sum(_repeated(reader).values()) for reader in readers]
        per_epoch = shares(sizes, weights) if weights else sizes
        ends = np.cumsum([int(reader.packs[-1]) + 1 if len(reader.packs) else 0 for reader in readers])
        self._firsts = np.concatenate([[0], ends[:-1]])
        self._sources = [
            source
            for reader, count, first in zip(readers, per_epoch, self._firsts.tolist(), strict=True)
            for source in _sources(reader, count, first)
        ]
        self.num_packs = sum(per_epoch)

    def describe(self) -> dict[str, Any]:
        """What the order depends on besides seed and epoch: packs, and of several outputs what each gives."""
        if len(self._sources) == 1:
            return {"num_packs": self.num_packs}
        mix = [[self.find([source.first])[0][0].name, len(source.packs), source.per_epoch] for source in self._sources]
        return {"num_packs": self.num_packs, "mix": mix}

    def order(self, seed: int, epoch: int, *, shuffle: bool) -> np.ndarray:
        return mixed_order(self._sources, seed, epoch, shuffle=shuffle)

    def find(self, packs: Sequence[int]) -> tuple[list[Output], list[int]]:
        """The output of each pack, and its number there."""
        places = np.searchsorted(self._firsts, packs, side="right") - 1
        return [self.outputs[place] for place in places], (np.asarray(packs) - self._firsts[places]).tolist()

    def number(self, output: str, pack: int) -> int:
        """By what number `find` finds a pack of an output."""
        names = [known.name for known in self.outputs]
        if output not in names:
            raise ValueError(f"output {output!r} is unknown; there are {', '.join(map(repr, names))}")
        return pack + int(self._firsts[names.index(output)])


def _repeated(reader: ShardReader) -> dict[float, int]:
    """How often packs come in an epoch, and how many that makes: 10 packs 2.5 times are 25."""
    times, counts = np.unique(reader.times, return_counts=True)
    return {float(each): round(each * count) for each, count in zip(times, counts, strict=True)}


def _sources(reader: ShardReader, per_epoch: int, first: int) -> list[Source]:
    """The packs of an output by how often they come. Those of one kind lie together, in groups of their own."""
    repeated = _repeated(reader)
    sources = []
    for times, count in zip(repeated, apportioned(per_epoch, list(repeated.values()) or [1]), strict=False):
        mine = np.flatnonzero(reader.times == times)
        begin = int(reader.packs[mine[0]]) if len(repeated) > 1 else 0
        loads = (reader.visual_tokens[mine], reader.tokens[mine])
        sources.append(Source(packs=reader.packs[mine] - begin, group_size=reader.group_size, loads=loads,
                              per_epoch=count, first=first + begin))  # fmt: skip
    return sources


def _listed(out: Outputs) -> list[tuple[str, str | Path, float | None]]:
    """Name, place and weight of every output; either all have a weight, or none."""
    if isinstance(out, str | Path):
        return [("", out, None)]
    if not out or {len(entry) for entry in out} not in ({2}, {3}):
        raise ValueError(
            f"outputs are {out!r}; expected [(name, out), …] or, all of them with a weight, [(name, out, weight), …]"
        )
    listed = [(entry[0], entry[1], entry[2] if len(entry) == 3 else None) for entry in out]
    if len({name for name, *_ in listed}) < len(listed):
        raise ValueError(f"outputs are named {', '.join(name for name, *_ in listed)}; give each another name")
    if any(weight is not None and not weight > 0 for *_, weight in listed):
        raise ValueError(
            f"weights are {[weight for *_, weight in listed]}; each must be above 0, so leave out what is not wanted"
        )
    return listed


def _check_agreement(name: str, manifest: Manifest, other_name: str, other: Manifest) -> None:
    """Packs of another model family, or of another processor, are not for the same model."""
    ours, theirs = ({"family": m.family, "processor": m.identity.processor, "pixels": asdict(m.pixels)}
                    for m in (manifest, other))  # fmt: skip
    if ours != theirs:
        # The processor's fingerprint says that it differs; how it was set says why.
        told = differences(ours | {"config": manifest.identity.config}, theirs | {"config": other.identity.config})
        raise OutputError(
            f"outputs {name!r} and {other_name!r} are not for one model: {'; '.join(told)}; pack them with one "
            "processor and the same settings of it"
        )
