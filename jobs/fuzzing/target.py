"""What a target of the fuzzer is, and damage that any file can take."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

# Damages the files in a folder, and says how in words; "": there was nothing to damage.
Mutator = Callable[[Path, random.Random], str]
# What a reader made of a damaged folder: one of FINE, or in words what it should not have done.
Verdicts = dict[str, str]
FOUND, HARMLESS = "found", "harmless"
FITS = "fits"  # edited so that it fits, digests and all: another content, which nobody can tell from a sound one
FINE = (FOUND, HARMLESS, FITS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Files, ways to damage them, and readers that must not fall for it.

    `examine` gets the sound folder, the damaged one, and the name of the mutator; exceptions that it lets out, and time
    and memory beyond the limits, are failures.
    """

    make: Callable[[Path], Path]  # in an empty folder: the sound files; the same ones each time
    mutators: Mapping[str, Mutator]
    examine: Callable[[Path, Path, str], Verdicts]

    def only(self, begin: str) -> "Target":
        """With those mutators whose names begin so."""
        return replace(self, mutators={name: each for name, each in self.mutators.items() if name.startswith(begin)})


def flip(path: Path, rng: random.Random) -> str:
    """One bit of one byte."""
    content = bytearray(path.read_bytes())
    if not content:
        return ""
    place, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
    content[place] ^= bit
    path.write_bytes(content)
    return f"{path.name}: byte {place} ^ {bit}"


def truncate(path: Path, rng: random.Random) -> str:
    content = path.read_bytes()
    if not content:
        return ""
    size = rng.randrange(len(content))
    path.write_bytes(content[:size])
    return f"{path.name}: {size} of {len(content)} bytes"


def extend(path: Path, rng: random.Random) -> str:
    more = rng.choice([b"\0", b" ", b"\n", rng.randbytes(512), bytes(1024)])
    path.write_bytes(path.read_bytes() + more)
    return f"{path.name}: {len(more)} bytes more"


def blank(path: Path, rng: random.Random) -> str:
    """A block of zeros, as a file system leaves that lost one."""
    content = bytearray(path.read_bytes())
    size = min(len(content), rng.choice([16, 512, 4096]))
    place = rng.randrange(len(content) - size + 1)
    content[place : place + size] = bytes(size)
    path.write_bytes(content)
    return f"{path.name}: {size} zeros at {place}"


def exchange_blocks(path: Path, rng: random.Random) -> str:
    """Two blocks of a disk that changed places."""
    content, size = bytearray(path.read_bytes()), rng.choice([512, 4096])
    if len(content) < 2 * size:
        return ""
    one, other = sorted(rng.sample(range(len(content) // size), 2))
    one, other = one * size, other * size
    content[one : one + size], content[other : other + size] = content[other : other + size], content[one : one + size]
    path.write_bytes(content)
    return f"{path.name}: blocks of {size} at {one} and {other}"


def remove(path: Path, _rng: random.Random) -> str:
    path.unlink()
    return f"{path.name}: removed"


def becomes_folder(path: Path, _rng: random.Random) -> str:
    path.unlink()
    path.mkdir()
    return f"{path.name}: a folder"


DAMAGE: dict[str, Mutator] = {
    "flip": flip,
    "truncate": truncate,
    "extend": extend,
    "blank": blank,
    "exchange blocks": exchange_blocks,
    "remove": remove,
    "becomes a folder": becomes_folder,
}
