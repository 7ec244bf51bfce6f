"""Pack <-> members of a tar: .npy arrays and one .json, byte-deterministic, readable by any webdataset reader.

Every pack of an output has the same members, in the same order, and JSON of one schema: an absent medium is an empty
array. Members start on 512-byte boundaries and .npy headers are padded to 64: a mapped tar is a zero-copy store.
"""

import json
import math
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, NamedTuple, overload

import numpy as np
from zlib_ng import zlib_ng

from neatpack.errors import OutputError, fields_of
from neatpack.format.layout import DTYPES, Form, Layout, Misfit, layout_of
from neatpack.format.manifest import PLAIN, Codecs, Manifest, spelled
from neatpack.format.pixels import PixelDecoder, stored_names
from neatpack.pipeline.typed import check_types
from neatpack.storage.files import Sink, parse_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """The source of one document of a pack, and its share of it. A fake image has dataset "" and row -1."""

    dataset: str
    row: int
    repeat: int
    id: str  # what the row calls itself, or ""
    form: Form
    loss: str  # what the row asks of its assistant turns
    targets: tuple[tuple[int, int], ...]  # spans [start, stop) of its labels that are not -100
    tokens: int
    visual_tokens: int
    num_images: int
    num_videos: int
    num_audios: int


class Documents(Sequence[Document]):
    """Documents by columns, the fields of `Document`: a pack may have hundreds, and an object for each takes longer
    than all else that is done with it. Targets are lists of [start, stop]."""

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.columns = columns

    @classmethod
    def of(cls, documents: Sequence[Document]) -> "Documents":
        if isinstance(documents, Documents):
            return documents
        columns = {field.name: [getattr(each, field.name) for each in documents] for field in fields(Document)}
        return cls(columns | {"targets": [[[start, stop] for start, stop in each.targets] for each in documents]})

    def __add__(self, more: Sequence[Document]) -> "Documents":
        other = Documents.of(more).columns
        return Documents({name: [*values, *other[name]] for name, values in self.columns.items()})

    def __len__(self) -> int:
        return len(self.columns["row"])

    @overload
    def __getitem__(self, at: int) -> Document: ...
    @overload
    def __getitem__(self, at: slice) -> "Documents": ...
    def __getitem__(self, at: int | slice) -> "Document | Documents":
        if isinstance(at, slice):
            return Documents({name: values[at] for name, values in self.columns.items()})
        values = {name: column[at] for name, column in self.columns.items()}
        return Document(**values | {"targets": tuple((start, stop) for start, stop in values["targets"])})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # its columns are lists


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """One training sequence: documents end to end, each padded to the alignment, in the layout that goes to disk."""

    number: int
    arrays: dict[str, np.ndarray]
    documents: Sequence[Document]
    fake_image: bool


# Arrays of every pack; those of its media, which its family declares, come after them.
TEXT_ARRAYS = {"input_ids": "int32", "labels": "int32", "position_ids": "", "seq_lens": "int32",
               "seq_lens_padded": "int32", "mm_token_type_ids": "uint8"}  # fmt: skip  # "": as the family says
DOCUMENT = tuple(field.name for field in fields(Document))
_TEXTS = ("dataset", "id", "form", "loss")  # of which: the others are numbers, and lists of them, as Python writes them
_DOCUMENT = "{" + ", ".join(f'"{name}": %s' for name in DOCUMENT) + "}"
_as_json = json.JSONEncoder(ensure_ascii=False).encode
BLOCK = tarfile.BLOCKSIZE
END = 2 * BLOCK  # zeros that end a tar
LARGE = 1 << 18  # bytes of a member that are not worth copying, to be written together with others
MAX_SIZE, MAX_PACK = 8**11 - 1, 10**9 - 1  # that have eleven octal digits, and nine decimal ones


def member_names(media: Layout, codecs: Codecs = PLAIN) -> tuple[str, ...]:
    """The members of every pack of an output whose family has these media arrays."""
    return (*(f"{name}.npy" for name in (*TEXT_ARRAYS, *stored_names(media, codecs))), "json")


def members_of(manifest: Manifest) -> tuple[str, ...]:
    """The same of a finished output. Raises ValueError where its family is none."""
    return member_names(layout_of(manifest.family), manifest.pixels.codec)


def pack_key(number: int) -> str:
    return f"{number:09d}"


class Written(NamedTuple):
    """A pack in a tar."""

    end: int
    crc32: int  # of its bytes
    members: list[tuple[int, int]]  # offset and size of each, in order


def write_pack(
    file: Sink,
    offset: int,
    pack: Pack,
    stored: Mapping[str, np.ndarray] | None = None,
    codecs: Codecs = PLAIN,
) -> Written:
    """Append a pack to a tar that ends at `offset`.

    `stored`: its arrays as a `PixelEncoder` of these codecs encodes them; None: as they are.
    """
    crc32 = 0

    def write(data: bytes | memoryview) -> None:
        nonlocal crc32
        crc32 = zlib_ng.crc32(data, crc32)
        file.write(data)

    places = []
    small: list[bytes | memoryview] = []  # written together: a pack of text has 36 pieces of a few KB
    for member, head, body in _members(pack, pack.arrays if stored is None else stored, codecs):
        size = len(head) + len(body)
        small += [tar_header(pack.number, member, size), head]
        if len(body) < LARGE:
            small.append(body)
        else:
            write(b"".join(small))
            write(body)
            small.clear()
        small.append(bytes(-size % BLOCK))
        places.append((offset + BLOCK, size))
        offset += BLOCK + size + -size % BLOCK
    write(b"".join(small))
    return Written(offset, crc32, places)


def tar_header(pack: int, member: str, size: int) -> bytes:
    """As tarfile writes it, which takes 15 times as long: only number, size and the sum of all bytes differ."""
    if size > MAX_SIZE or pack > MAX_PACK:
        return _tar_header(f"{pack_key(pack)}.{member}", size)
    (head, middle, tail, total), (key, of_key), octal = _header_of(member), _key_of(pack), b"%011o" % size
    return b"".join([key, head, octal, middle, b"%06o\0 " % (total + of_key + sum(octal)), tail])


def _tar_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o444
    return info.tobuf(format=tarfile.USTAR_FORMAT)


@lru_cache(maxsize=4)  # a pack has one for all its members
def _key_of(pack: int) -> tuple[bytes, int]:
    """And the sum of its bytes."""
    key = pack_key(pack).encode()
    return key, sum(key)


@lru_cache(maxsize=256)
def _header_of(member: str) -> tuple[bytes, bytes, bytes, int]:
    """What is the same in all headers of a member: behind the number, the size and the sum; and the sum of these.

    The sum is reckoned with spaces in its own place.
    """
    whole = _tar_header(f"{pack_key(0)}.{member}", 0)
    head, middle, tail = whole[9:124], whole[135:148], whole[156:]
    return head, middle, tail, sum(head) + sum(middle) + sum(tail) + 8 * ord(" ")


def split_members(content: memoryview, pack: int, names: Sequence[str]) -> dict[str, memoryview]:
    """Return the members of a pack as views of its bytes. Raise OutputError where it is not made of these members."""
    members, start = {}, 0
    for name in names:
        header = bytes(content[start : start + BLOCK])
        size = int(header[124:135], 8) if header[124:135].isdigit() else -1
        begin, end = start + BLOCK, start + BLOCK + size
        start = end + -size % BLOCK
        if size < 0 or header != tar_header(pack, name, size) or start > len(content) or any(content[end:start]):
            raise OutputError(f"{name}: its header in the tar, or its padding, is not as written", member=name)
        members[name] = content[begin:end]
    if start != len(content):
        raise OutputError(f"{len(content)} bytes, its members have {start}", got=len(content), expected=start)
    return members


def write_end(file: Sink) -> None:
    file.write(bytes(END))


def read_pack(members: Mapping[str, bytes | memoryview], pixels: PixelDecoder | None = None) -> Pack:
    """A pack from the contents of its members. Raises ValueError where they are not those of a pack.

    `pixels`: of its output; None: it is known to have them as they are.
    """
    arrays = read_arrays(members)
    codecs = PLAIN
    if pixels is not None:
        arrays, codecs = pixels.restore(arrays), pixels.codecs
    header = parse_json(bytes(members["json"]))
    try:
        documents = tuple(_document(document) for document in header["documents"])
        pack = Pack(number=header["pack"], arrays=arrays, documents=documents, fake_image=header["fake_image"])
        expected = parse_json(_header(pack, codecs).encode(errors="surrogatepass"))
        is_ours = list(header) == list(expected) and header == expected
    except (TypeError, KeyError) as error:
        raise OutputError(f"json: {type(error).__name__}: {error}", code="output-damaged", member="json") from None
    if not is_ours:
        raise OutputError("json: does not fit its documents and arrays", code="output-damaged", member="json")
    return pack


def read_arrays(members: Mapping[str, bytes | memoryview]) -> dict[str, np.ndarray]:
    """The arrays of a pack, as views. Raises ValueError that names the member."""
    arrays = {}
    for name, member in members.items():
        if name != "json":
            try:
                arrays[name.removesuffix(".npy")] = read_array(member)
            except ValueError as error:
                raise OutputError(f"{name}: {error}", code="output-damaged", member=name, **fields_of(error)) from None
    return arrays


def text_problem(arrays: Mapping[str, np.ndarray], position_axes: int, position_dtype: str) -> Misfit:
    """What is wrong with types and lengths of the arrays that every pack has; "" if nothing is."""
    length, documents = len(arrays["input_ids"]), len(arrays["seq_lens"])
    of_documents = ("seq_lens", "seq_lens_padded")
    for name, dtype in TEXT_ARRAYS.items():
        array = arrays[name]
        shape: tuple[int, ...] = (documents if name in of_documents else length,)
        if name == "position_ids" and position_axes == 3:
            shape = (3, length)
        if array.shape != shape or array.dtype != (dtype or position_dtype):
            expected = f"{shape} of {dtype or position_dtype}"
            return Misfit(f"{name} has shape {array.shape} of {array.dtype}, expected {expected}", name)
    lengths, padded = (arrays[name].astype(np.int64) for name in of_documents)
    if padded.sum() != length or (lengths < 0).any() or (padded < 0).any():
        told = f"{lengths.tolist()[:8]} tokens, {padded.tolist()[:8]} with padding"
        return Misfit(f"documents of {told}, in a pack of {length}", "seq_lens")
    return Misfit()


def _document(values: dict[str, Any]) -> Document:
    document = Document(**values | {"targets": tuple((start, stop) for start, stop in values["targets"])})
    check_types(document, "json: documents")
    return document


# As numpy writes it: {'descr': '<i4', 'fortran_order': False, 'shape': (3, 8192), }
_NPY_HEADER = re.compile(rb"\{'descr': '([<|][a-z]\d+)', 'fortran_order': False, 'shape': \(([\d, ]{0,99})\), \}\s*")
_DTYPES = {np.dtype(name).str: np.dtype(name) for name in DTYPES}
_SIDE = 1 << 40  # longer than any file of ours: what numpy cannot hold is refused before it is asked for


def read_array(content: bytes | memoryview) -> np.ndarray:
    """The array of an .npy file, without copying it. numpy's own reader parses the header as Python, which is slow."""
    start = 10 + int.from_bytes(content[8:10], "little")
    dtype, shape, size = _array_type(bytes(content[:start]))
    if start + size != len(content):
        raise OutputError(
            f"an .npy file of {len(content)} bytes, whose header says {start} + {size}",
            code="output-damaged",
            got=len(content),
            expected=start + size,
        )
    return np.ndarray(shape, dtype, content, start)  # half the time of frombuffer and reshape


@lru_cache(maxsize=4096)  # the packs of an output have few headers: lengths differ by documents and media only
def _array_type(head: bytes) -> tuple[np.dtype, tuple[int, ...], int]:
    if head[:8] != b"\x93NUMPY\x01\x00":
        raise OutputError("not an .npy file of version 1.0", code="output-damaged", magic=head[:8])
    header = _NPY_HEADER.fullmatch(head, 10)
    if header is None:
        raise OutputError(f"an .npy header of another kind: {head[10:]!r}", code="output-damaged", header=head[10:])
    dtype, shape = _DTYPES.get(header[1].decode()), tuple(int(side) for side in header[2].split(b",") if side.strip())
    if dtype is None or len(shape) > 8 or max(shape, default=0) > _SIDE:
        raise OutputError(
            f"an array of {header[1].decode()} {shape}; packs hold {', '.join(DTYPES)}",
            code="output-damaged",
            dtype=header[1].decode(),
            shape=shape,
        )
    return dtype, shape, dtype.itemsize * math.prod(shape)


def npy_header(array: np.ndarray) -> bytes:
    """Of version 1.0 and C order, as numpy writes it (with room for the first side to grow), in a tenth of the time."""
    return _npy_header(array.dtype.str, array.shape)


@lru_cache(maxsize=4096)
def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    said = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    said += " " * (21 - len(str(shape[0])))
    said += " " * (-(10 + len(said) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(said).to_bytes(2, "little") + said.encode("latin1")


def _members(
    pack: Pack, stored: Mapping[str, np.ndarray], codecs: Codecs
) -> Iterator[tuple[str, bytes, bytes | memoryview]]:
    for name, values in stored.items():
        array = np.ascontiguousarray(values)
        # A memoryview of an empty array cannot be cast.
        yield f"{name}.npy", npy_header(array), array.data.cast("B") if array.size else b""
    yield "json", b"", _header(pack, codecs).encode()


def _header(pack: Pack, codecs: Codecs) -> str:
    """The JSON of a pack, as json.dumps writes it. Its documents are written here, in a third of the time."""
    columns = dict(Documents.of(pack.documents).columns)
    values = {
        "pack": pack.number,
        "codec": spelled(codecs),
        "num_tokens": len(pack.arrays["input_ids"]),
        **{name: sum(columns[name]) for name in ("num_images", "num_videos", "num_audios")},
        "fake_image": pack.fake_image,
        "documents": [],
    }
    for name in _TEXTS:
        columns[name] = list(map(encode_basestring, columns[name]))
    lines = [_DOCUMENT % line for line in zip(*(columns[name] for name in DOCUMENT), strict=True)]
    return f"{_as_json(values)[:-2]}{', '.join(lines)}]}}"
