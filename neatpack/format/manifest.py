"""The manifest of an output: the one place where it is written, read and checked.

OUT/manifest.json is written last, so its existence means that the output is done. It has the digests of all other
files, and its own: a flipped byte anywhere is found. Who changes a file on purpose, and the digests with it, finds that
every name and number is checked, too: no name leads out of OUT, no number asks for memory that no file has.

Light on purpose: a training machine reads it without transformers, Ray, pyarrow or any decoder.
"""

import dataclasses
import hashlib
import json
import os
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, overload

import neatpack
from neatpack.errors import OutputError, fields_of
from neatpack.pipeline.typed import check_types
from neatpack.storage.files import parse_json, read_inside, write_whole
from neatpack.storage.location import Location, NoBucket, PathLike
from neatpack.storage.uris import SCHEME

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

U8, ZSTD, SOURCE = "u8", "zstd", "source"
Codecs = Mapping[str, str]  # by kind of medium
CODECS = (U8, ZSTD, SOURCE)
KINDS: dict[str, tuple[str, ...]] = {"image": CODECS, "video": (U8, ZSTD)}  # by kind of medium, what it may be
PLAIN: dict[str, str] = dict.fromkeys(KINDS, U8)


def fingerprint(*parts: Any) -> str:
    """Twenty hex digits that change whenever any part changes; parts are JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:20]


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Holds JSON values only: one that was written and read again equals the one in memory."""

    inputs: dict[str, dict[str, Any]]  # by data set: what shapes its rows, `content` (a digest), `rows` (how many)
    processor: str  # fingerprint of the processor, as the family sees it
    config: dict[str, Any]  # the keys that shape the result, not where it lies or what computes it
    versions: dict[str, str]
    code: dict[str, str | int]

    @property
    def fingerprint(self) -> str:
        return fingerprint({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    @property
    def num_rows(self) -> int:
        return sum(int(entry["rows"]) for entry in self.inputs.values())

    def differences(self, new: "Identity") -> list[str]:
        """What differs in `new`, in words: "config.pack_size: 8192 -> 4096"."""
        return differences(self.to_json(), new.to_json())

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> "Identity":
        """Raises ValueError where `value` is not an identity, as in records of an older neatpack."""
        identity = cls(**fields_from_json(cls, value, "identity"))
        check_types(identity, "identity")
        return identity


def fields_from_json(kind: "type[DataclassInstance]", found: Any, name: str = "") -> dict[str, Any]:
    """The fields of a record from JSON; keys that it does not know are left out. A ValueError says what is wrong."""
    where = f"{name}: " if name else ""
    names = [field.name for field in dataclasses.fields(kind)]
    if not isinstance(found, dict):
        raise OutputError(
            f"{where}expected an object of {', '.join(names)}, got {str(found)[:60]}",
            code="output-damaged",
            key=name,
        )
    if lacking := [each for each in names if each not in found]:
        raise OutputError(f"{where}lacks {', '.join(lacking)}", code="output-damaged", key=name, missing=list(lacking))
    return {name: found[name] for name in names}


def differences(old: Any, new: Any) -> list[str]:
    """What differs in two JSON values, in words."""
    return [f"{where}: {was} -> {is_}" for where, was, is_ in changes(old, new)]


def changes(old: Any, new: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    """What differs in two JSON values: where ("config.pack_size"), the old value and the new one."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in [*old, *(key for key in new if key not in old)]:
            found += changes(old.get(key), new.get(key), f"{where}.{key}" if where else key)
        return found
    return [] if old == new else [(where, old, new)]


def spelled(codecs: Codecs) -> str:
    """As `parse_codecs` takes it, in one way only; as short as can be for one codec: u8."""
    codecs = {kind: codecs[kind] for kind in KINDS}
    if len(set(codecs.values())) == 1:
        return codecs["image"]
    return ",".join(f"{kind}={codec}" for kind, codec in codecs.items())


def checked_codecs(found: Any, name: str) -> dict[str, str]:
    """Of a file of unknown origin. Raises ValueError."""
    if not isinstance(found, dict) or found.keys() != KINDS.keys():
        raise OutputError(
            f"{name}: expected a codec of {' and '.join(KINDS)}, got {str(found)[:60]}", code="output-damaged", key=name
        )
    for kind, codec in found.items():
        if codec not in KINDS[kind]:
            raise OutputError(
                f"{name}.{kind}: {codec!r} is unknown; known: {', '.join(KINDS[kind])}",
                code="output-damaged",
                key=f"{name}.{kind}",
            )
    return {kind: found[kind] for kind in KINDS}


# Of everything in OUT but work/. From 8 on, every later neatpack reads it: raise it where a reader of the older format
# would fail or misread, add its number to READ and an output of it to tests/fixtures.
FORMAT = 8
READ = (FORMAT,)
FILE = "manifest.json"
MOST_BYTES = 1 << 30  # of it: those of four million shards
INDEX = "index.parquet"
LOADER_INDEX = "index.arrow"  # of the same packs, what the loader reads
SOURCES = "sources.json"  # where the rows came from
FETCHED = "fetched.parquet"  # only of an output with downloads in it
MEDIA = "stats/media.parquet"
REMEDY = "run `neatpack verify`, and pack again what is broken"
_SHA256 = re.compile("[0-9a-f]{64}")
_FILES = re.compile(
    r"(index|fetched)\.parquet|index\.arrow|sources\.json|(image|video)_table\.npy|stats/[a-z]+\.parquet|"
    r"ledger/[0-9]+(-[0-9]+)?\.parquet"
)
_NUMBERS = {"pack_size": 1 << 31, "align": 1 << 31, "group_size": 1 << 24}  # of the config: what readers reckon with
_INT64 = 1 << 63
_LEAST_PACK = 1 << 8  # bytes of a pack in its shard: a member has a header of 512


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry:
    name: str  # under OUT/shards, see `shard_name`
    bytes: int
    sha256: str
    first_pack: int
    num_packs: int


_as_json = json.JSONEncoder(ensure_ascii=False).encode
_SHARD_KEYS = ("name", "bytes", "sha256", "first_pack", "num_packs")
_values_of, _values_in = attrgetter(*_SHARD_KEYS), itemgetter(*_SHARD_KEYS)


class Shards(Sequence[ShardEntry]):
    """The shards of an output, as 40 bytes each: there may be hundreds of thousands, in every process of a training.

    Their names and first packs follow from those before.
    """

    def __init__(self, entries: Iterable[ShardEntry] = ()) -> None:
        self.bytes, self.firsts, self._sha256 = array("q"), array("q", [0]), bytearray()
        for number, entry in enumerate(entries):
            if not _is_sound(_values_of(entry), number, self.firsts[-1]):
                raise _shard_error(entry, number, self.firsts[-1])
            self._append(entry.bytes, entry.sha256, entry.num_packs)

    def taken(self, found: dict[str, Any]) -> "dict[str, Any] | Shards":
        """For json.loads: an object that is the next shard is added here, and this stands in its place.

        So 150,000 of them take 6 MB and not 80, and half a second instead of four.
        """
        try:
            values = _values_in(found)
        except KeyError:
            return found
        if not _is_sound(values, len(self), self.firsts[-1]):
            return found
        self._append(found["bytes"], found["sha256"], found["num_packs"])
        return self

    def check(self, found: Any) -> None:
        """Raises ValueError where the shards of a manifest, as they were read, are not those that were taken."""
        entries = found if isinstance(found, list) else [found]
        for number, entry in enumerate(entries):
            if entry is not self:  # the first that cannot be
                read = ShardEntry(**fields_from_json(ShardEntry, entry, f"shards[{number}]"))
                raise _shard_error(read, number, self.firsts[number])
        if len(entries) != len(self):
            raise OutputError(
                f"shards: {len(entries)}, but there are {len(self) - len(entries)} elsewhere",
                code="output-damaged",
                key="shards",
                got=len(entries),
            )

    @property
    def num_packs(self) -> int:
        """Of all of them. `firsts` has the first pack of each, and this last."""
        return self.firsts[-1]

    def _append(self, size: int, sha256: str, num_packs: int) -> None:
        self.bytes.append(size)
        self.firsts.append(self.firsts[-1] + num_packs)
        self._sha256 += bytes.fromhex(sha256)

    def as_json(self) -> list[str]:
        """Each, with the keys of a ShardEntry: 2 us, where json takes 15 and a dict to begin with."""
        sha256, packs = self._sha256.hex(), pairwise(self.firsts)
        return [
            f'{{"name": "{shard_name(number)}", "bytes": {size}, "sha256": "{sha256[64 * number : 64 * number + 64]}", '
            f'"first_pack": {first}, "num_packs": {end - first}}}'
            for number, (size, (first, end)) in enumerate(zip(self.bytes, packs, strict=True))
        ]

    def __len__(self) -> int:
        return len(self.bytes)

    @overload
    def __getitem__(self, number: int) -> ShardEntry: ...
    @overload
    def __getitem__(self, number: slice) -> "list[ShardEntry]": ...
    def __getitem__(self, number: int | slice) -> "ShardEntry | list[ShardEntry]":
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(f"shard {number} of {len(self)}")
        number %= len(self)
        first, end = self.firsts[number : number + 2]
        sha256 = self._sha256[32 * number : 32 * number + 32].hex()
        return ShardEntry(
            name=shard_name(number), bytes=self.bytes[number], sha256=sha256, first_pack=first, num_packs=end - first
        )

    def __iter__(self) -> Iterator[ShardEntry]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shards):
            return NotImplemented
        return (self.bytes, self.firsts, self._sha256) == (other.bytes, other.firsts, other._sha256)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Shards({list(self)!r})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pixels:
    """How stored bytes become pixels again."""

    codec: dict[str, str]  # of images and of videos: see pipeline/codecs.py
    resize: str  # what resized the pictures: "torch", "pil" or "processor"
    tables: dict[str, str]  # image or video -> the .npy file that says what each stored byte stands for
    rule: dict[str, Any] | None = None  # how pictures of the codec `source` are rendered: see families/restore.py


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
    skipped_tokens: dict[str, int]  # of skipped samples by reason, as far as they were measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    neatpack: str = neatpack.__version__  # the version that wrote it
    fingerprint: str  # of the identity
    identity: Identity
    family: dict[str, Any]  # what readers need to know of the model family: see Family.described
    pixels: Pixels
    counts: Counts
    shards: Shards
    files: dict[str, str]  # sha256 of every other file of the output
    warnings: tuple[str, ...] = ()  # about the data: what rows hold and nothing reads, and the like

    def to_json(self) -> dict[str, Any]:
        return self._values() | {"shards": list(map(json.loads, self.shards.as_json()))}

    def _values(self) -> dict[str, Any]:
        """As JSON has them, but for the shards."""
        values = dataclasses.asdict(dataclasses.replace(self, shards=Shards()))
        return {"format": FORMAT, **values}

    def write(self, out: Location) -> None:
        with write_whole(out / FILE) as file:
            file.write(signed(self._values() | {"shards": self.shards}))

    @classmethod
    def read(cls, out: PathLike) -> "Manifest":
        """The manifest of an output. Raises OutputError where it is missing or not one of ours."""
        try:
            content = read_inside(out, FILE, MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            raise missing_manifest(str(out)) from None
        except OSError as error:
            raise OutputError(
                f"{out}/{FILE}: cannot be read: {error.strerror or error}",
                code="output-damaged",
                out=str(out),
                file=FILE,
            ) from error
        return cls.parse(content, str(out))

    @classmethod
    def parse(cls, content: bytes, out: str) -> "Manifest":
        """The manifest from its bytes, wherever they come from; `out` (a directory or a URI) is for messages."""
        where = f"{out}/{FILE}"
        shards = Shards()
        try:
            found = parse_json(content, shards.taken)
        except ValueError as error:  # broken JSON, or not UTF-8
            raise OutputError(
                f"{where}: not JSON: {error}; pack again", code="output-damaged", out=out, file=FILE, key="json"
            ) from None
        if not isinstance(found, dict) or found.get("format") not in READ:
            got = found.get("format") if isinstance(found, dict) else f"of a JSON {type(found).__name__}"
            raise OutputError(
                f"{where}: format {got}, made by {_maker(found)}; this is neatpack {neatpack.__version__}, which reads "
                f"format {', '.join(map(str, READ))}. Run the same pack command again",
                code="output-format",
                out=out,
                file=FILE,
                got=got,
            )
        if not _is_signed(content, found.get("digest")):
            raise OutputError(
                f"{where}: damaged or edited, for its digest is not that of its content; pack again",
                code="output-damaged",
                out=out,
                file=FILE,
                key="digest",
            )
        try:
            values = fields_from_json(cls, found)
            values["identity"] = Identity.from_json(values["identity"])
            values["pixels"] = _pixels_from_json(values["pixels"])
            values["counts"] = _counts_from_json(values["counts"])
            values["warnings"] = _warnings_from_json(values["warnings"])
            shards.check(values["shards"])
            values["shards"] = shards
            manifest = cls(**values)
            _check(manifest)
        except ValueError as error:
            raise OutputError(
                f"{where}: {error}; pack again", code="output-damaged", out=out, file=FILE, **fields_of(error)
            ) from None
        return manifest


def _maker(found: Any) -> str:
    """Return which neatpack says that it wrote a manifest."""
    version = found.get("neatpack") if isinstance(found, dict) else None
    return f"neatpack {version[:20]}" if isinstance(version, str) and version.isascii() else "another program"


def shard_name(number: int) -> str:
    return f"pack-{number:06d}.tar"


def signed(found: dict[str, Any]) -> bytes:
    """A manifest as it is on disk, a line for each shard. Its last key is the sha256 of the file without that value."""
    keys = [f" {_as_json(key)}: {_indented(value)}" for key, value in (found | {"digest": ""}).items()]
    content = ("{\n" + ",\n".join(keys) + "\n}\n").encode()
    return content[: -len(_tail(""))] + _tail(hashlib.sha256(content).hexdigest())


def _indented(value: Any) -> str:
    """Of a list a line for each of its elements."""
    if isinstance(value, Shards | list):
        lines = value.as_json() if isinstance(value, Shards) else map(_as_json, value)
        return "[\n  " + ",\n  ".join(lines) + "\n ]" if value else "[]"
    return json.dumps(value, indent=1, ensure_ascii=False).replace("\n", "\n ")


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
    if manifest.shards.num_packs * _LEAST_PACK > sum(manifest.shards.bytes):
        raise OutputError(
            f"shards: {manifest.shards.num_packs} packs in {sum(manifest.shards.bytes)} bytes",
            code="output-damaged",
            key="shards",
        )
    for name, digest in manifest.files.items():
        if not _FILES.fullmatch(name) or not _SHA256.fullmatch(digest):
            raise OutputError(
                f"files: {name!r} with the sha256 {digest!r} is no file of an output",
                code="output-damaged",
                key="files",
                name=name,
            )
    for kind, name in manifest.pixels.tables.items():
        if name != f"{kind}_table.npy":
            raise OutputError(
                f"pixels.tables.{kind}: expected {kind}_table.npy, got {name!r}",
                code="output-damaged",
                key=f"pixels.tables.{kind}",
                got=name,
            )
    if (manifest.pixels.codec["image"] == SOURCE) != (manifest.pixels.rule is not None):
        raise OutputError(
            f"pixels.rule: {str(manifest.pixels.rule)[:60]}, with pixels.codec {manifest.pixels.codec}",
            code="output-damaged",
            key="pixels.rule",
        )
    needed = {INDEX, LOADER_INDEX, SOURCES, *manifest.pixels.tables.values()}
    if absent := needed - manifest.files.keys():
        raise OutputError(
            f"files: lacks {', '.join(sorted(absent))}", code="output-damaged", key="files", missing=sorted(absent)
        )
    for name, end in _NUMBERS.items():
        value = manifest.identity.config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < end:
            raise OutputError(
                f"identity.config.{name}: expected a whole number above 0 and below {end}, got {value!r}",
                code="output-damaged",
                key=f"identity.config.{name}",
                got=value,
            )
    axes, dtype = (manifest.family.get(name) for name in ("position_axes", "position_dtype"))
    if axes not in (1, 3) or dtype not in ("int32", "float32"):
        raise OutputError(f"family: positions of {axes!r} axes and type {dtype!r}", code="output-damaged", key="family")
    for name, entry in manifest.identity.inputs.items():
        if not isinstance(rows := entry.get("rows"), int) or rows < 0:
            raise OutputError(
                f"identity.inputs.{name}.rows: expected how many there are, got {rows!r}",
                code="output-damaged",
                key=f"identity.inputs.{name}.rows",
                got=rows,
            )


def _is_sound(values: tuple[Any, ...], number: int, first_pack: int) -> bool:
    """As `_shard_error`, for values from JSON, and fast."""
    name, size, sha256, first, num_packs = values
    is_named = name == shard_name(number) and isinstance(sha256, str) and _SHA256.fullmatch(sha256) is not None
    are_whole = type(size) is int and type(first) is int and type(num_packs) is int
    return is_named and are_whole and 0 <= size < _INT64 and first == first_pack and 0 < num_packs < _INT64 - first


def _shard_error(shard: ShardEntry, number: int, first_pack: int) -> OutputError:
    """Return what is wrong with an entry after others with `first_pack` packs. Raises OutputError for wrong types."""
    where = f"shards[{number}]"
    check_types(shard, where)
    key, words = where, f": {shard.bytes} bytes, {shard.num_packs} packs from {shard.first_pack} on"
    if shard.name != shard_name(number):
        key, words = f"{where}.name", f": expected {shard_name(number)}, got {shard.name!r}"
    elif not _SHA256.fullmatch(shard.sha256):
        key, words = f"{where}.sha256", f": expected 64 hex digits, got {shard.sha256!r}"
    return OutputError(key + words, code="output-damaged", key=key)


def _pixels_from_json(found: Any) -> Pixels:
    values = fields_from_json(Pixels, found, "pixels")
    return Pixels(**values | {"codec": checked_codecs(values["codec"], "pixels.codec")})


def _counts_from_json(found: Any) -> Counts:
    return Counts(**fields_from_json(Counts, found, "counts"))


def _warnings_from_json(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list):
        raise OutputError(
            f"warnings: expected a list of texts, got {str(found)[:60]}", code="output-damaged", key="warnings"
        )
    return tuple(found)


def missing_manifest(out: str) -> OutputError:
    """The error for an output without a manifest; for a path that is none, what is there instead. Called where the
    manifest was not found, by the error that said so."""
    expected = "expected the OUT of a finished `neatpack pack`"
    if not SCHEME.match(out):
        if not os.path.isdir(out):
            what = "is a file" if os.path.exists(out) else "no such directory"
            return OutputError(
                f"{out}: {what}; {expected}", code="output-missing", out=out, is_file=os.path.exists(out)
            )
        above = os.path.dirname(os.path.abspath(out))
        if os.path.isfile(os.path.join(above, FILE)):
            return OutputError(
                f"{out}: is a part of an output; {expected}, which is {above}",
                code="output-missing",
                out=out,
                above=above,
            )
    elif isinstance(error := sys.exception(), NoBucket):
        return OutputError(f"{out}: {error.strerror}", code="output-missing", out=out)
    return OutputError(
        f"{out}/{FILE}: missing, so packing has not finished; run pack again", code="output-missing", out=out, file=FILE
    )
