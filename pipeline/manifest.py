"""The manifest of an output: the one place where it is written, read and checked.

OUT/manifest.json is written last, so its existence means that the output is done. It has the digests of all other
files, and its own: a flipped byte anywhere is found. Who changes a file on purpose, and the digests with it, finds that
every name and number is checked, too: no name leads out of OUT, no number asks for memory that no file has.

Light on purpose: a training machine reads it without transformers, Ray, pyarrow or any decoder.
"""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import __version__
from .identity import Identity, fields_from_json
from .runtime.storage import inside, parse_json, write_whole
from .typed import check_types

FORMAT = 5  # of everything in OUT but work/; raise it when a reader of the older format would fail or misread
FILE = "manifest.json"
INDEX = "index.parquet"
FETCHED = "fetched.parquet"  # only of an output with downloads in it
MEDIA = "stats/media.parquet"
REMEDY = "run `neatpack verify`, and pack again what is broken"
_SHA256 = re.compile("[0-9a-f]{64}")
_FILES = re.compile(
    r"(index|fetched)\.parquet|(image|video)_table\.npy|stats/[a-z]+\.parquet|ledger/[0-9]+(-[0-9]+)?\.parquet"
)
_NUMBERS = {"pack_size": 1 << 31, "align": 1 << 31, "group_size": 1 << 24}  # of the config: what readers reckon with


class OutputError(ValueError):
    """An output that cannot be read: says what was found, what was expected and the remedy."""


class ShardError(OutputError):
    """A shard or pack that is not what was written. `shard` names the file, `pack` the number, where it is one pack."""

    def __init__(self, message: str, shard: str, pack: int | None = None) -> None:
        super().__init__(message)
        self.shard, self.pack = shard, pack

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.shard, self.pack)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry:
    name: str  # under OUT/shards, see `shard_name`
    bytes: int
    sha256: str
    first_pack: int
    num_packs: int


_OF_SHARD = dataclasses.fields(ShardEntry)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pixels:
    """How stored bytes become pixels again."""

    codec: str
    resize: str  # what resized the pictures: "torch", "pil" or "processor"
    tables: dict[str, str]  # image or video -> the .npy file that says what each stored byte stands for


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What an output holds, in figures. samples = packed + all of skipped."""

    rows: int  # of the input
    samples: int  # rows times their repetitions; a row that is sampled out, or of the other split, counts once
    packed: int
    skipped: dict[str, int]  # by reason
    fitted: dict[str, int]  # packed ones that were "truncated" or "shrunk" to fit
    packs: int
    tokens: int
    visual_tokens: int
    target_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    neatpack: str = __version__  # the version that wrote it
    fingerprint: str  # of the identity
    identity: Identity
    family: dict[str, Any]  # what readers need to know of the model family: see Family.described
    pixels: Pixels
    counts: Counts
    shards: tuple[ShardEntry, ...]
    files: dict[str, str]  # sha256 of every other file of the output

    def to_json(self) -> dict[str, Any]:
        shards = [{field.name: getattr(shard, field.name) for field in _OF_SHARD} for shard in self.shards]
        return {"format": FORMAT, **dataclasses.asdict(dataclasses.replace(self, shards=()))} | {"shards": shards}

    def write(self, out: Path) -> None:
        with write_whole(out / FILE) as file:
            file.write(signed(self.to_json()))

    @classmethod
    def read(cls, out: Path) -> "Manifest":
        """The manifest of a local output. Raises OutputError where it is missing or not one of ours."""
        try:
            content = inside(out, FILE).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise missing_manifest(str(out)) from None
        except ValueError as error:
            raise OutputError(str(error)) from None
        except OSError as error:
            raise OutputError(f"{out}/{FILE}: cannot be read: {error.strerror}") from error
        return cls.parse(content, str(out))

    @classmethod
    def parse(cls, content: bytes, out: str) -> "Manifest":
        """The manifest from its bytes, wherever they come from; `out` (a directory or a URI) is for messages."""
        where = f"{out}/{FILE}"
        try:
            found = parse_json(content)
        except ValueError as error:  # broken JSON, or not UTF-8
            raise OutputError(f"{where}: not JSON: {error}; pack again") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            got = found.get("format") if isinstance(found, dict) else f"of a JSON {type(found).__name__}"
            raise OutputError(
                f"{where}: format {got}, this neatpack ({__version__}) reads format {FORMAT}; "
                "use the neatpack that made it, or pack again"
            )
        if not _is_signed(content, found.get("digest")):
            raise OutputError(f"{where}: damaged or edited, for its digest is not that of its content; pack again")
        try:
            values = fields_from_json(cls, found)
            values["identity"] = Identity.from_json(values["identity"])
            values["pixels"] = Pixels(**fields_from_json(Pixels, values["pixels"], "pixels"))
            values["counts"] = Counts(**fields_from_json(Counts, values["counts"], "counts"))
            entries = values["shards"] if isinstance(values["shards"], list) else [values["shards"]]
            values["shards"] = tuple(
                ShardEntry(**fields_from_json(ShardEntry, entry, f"shards[{number}]"))
                for number, entry in enumerate(entries)
            )
            manifest = cls(**values)
            _check(manifest)
        except ValueError as error:
            raise OutputError(f"{where}: {error}; pack again") from None
        return manifest


def shard_name(number: int) -> str:
    return f"pack-{number:06d}.tar"


def signed(found: dict[str, Any]) -> bytes:
    """A manifest as it is on disk. Its last key is the sha256 of the file with that value empty."""
    content = (json.dumps(found | {"digest": ""}, indent=1, ensure_ascii=False) + "\n").encode()
    return content[: -len(_tail(""))] + _tail(hashlib.sha256(content).hexdigest())


def _is_signed(content: bytes, digest: Any) -> bool:
    tail = _tail(str(digest))
    unsigned = content.removesuffix(tail) + _tail("")
    return content.endswith(tail) and hashlib.sha256(unsigned).hexdigest() == digest


def _tail(digest: str) -> bytes:
    return f' "digest": "{digest}"\n}}\n'.encode("utf-8", "surrogatepass")


def _check(manifest: Manifest) -> None:
    """Types, names and numbers. Raises ValueError."""
    check_types(manifest)
    check_types(manifest.pixels, "pixels")
    check_types(manifest.counts, "counts")
    for number, shard in enumerate(manifest.shards):
        where = f"shards[{number}]"
        check_types(shard, where)
        if shard.name != shard_name(number):
            raise ValueError(f"{where}.name: expected {shard_name(number)}, got {shard.name!r}")
        if not _SHA256.fullmatch(shard.sha256):
            raise ValueError(f"{where}.sha256: expected 64 hex digits, got {shard.sha256!r}")
        if min(shard.bytes, shard.num_packs - 1, shard.first_pack) < 0:
            raise ValueError(f"{where}: {shard.bytes} bytes, {shard.num_packs} packs from {shard.first_pack} on")
    for name, digest in manifest.files.items():
        if not _FILES.fullmatch(name) or not _SHA256.fullmatch(digest):
            raise ValueError(f"files: {name!r} with the sha256 {digest!r} is no file of an output")
    for kind, name in manifest.pixels.tables.items():
        if name != f"{kind}_table.npy":
            raise ValueError(f"pixels.tables.{kind}: expected {kind}_table.npy, got {name!r}")
    if absent := {INDEX, *manifest.pixels.tables.values()} - manifest.files.keys():
        raise ValueError(f"files: lacks {', '.join(sorted(absent))}")
    for name, end in _NUMBERS.items():
        value = manifest.identity.config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < end:
            raise ValueError(f"identity.config.{name}: expected a whole number above 0 and below {end}, got {value!r}")
    axes, dtype = (manifest.family.get(name) for name in ("position_axes", "position_dtype"))
    if axes not in (1, 3) or dtype not in ("int32", "float32"):
        raise ValueError(f"family: positions of {axes!r} axes and type {dtype!r}")
    for name, entry in manifest.identity.inputs.items():
        if not isinstance(rows := entry.get("rows"), int) or rows < 0:
            raise ValueError(f"identity.inputs.{name}.rows: expected how many there are, got {rows!r}")


def missing_manifest(out: str) -> OutputError:
    """The error for an output without a manifest."""
    return OutputError(f"{out}/{FILE}: missing, so packing has not finished; run pack again")
