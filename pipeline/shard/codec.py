"""Pack <-> members of a tar: .npy arrays and one .json, byte-deterministic, readable by any webdataset reader.

Every pack of an output has the same members, in the same order, and JSON of one schema: an absent medium is an empty
array. Members start on 512-byte boundaries and .npy headers are padded to 64: a mapped tar is a zero-copy store.
"""

import dataclasses
import io
import json
import math
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..records import Document, Pack
from ..runtime.storage import Sink

# Arrays of every pack; those of its media, which its family declares, come after them.
TEXT_ARRAYS = ("input_ids", "labels", "position_ids", "seq_lens", "seq_lens_padded", "mm_token_type_ids")
DOCUMENT = tuple(field.name for field in dataclasses.fields(Document))
_BLOCK = tarfile.BLOCKSIZE


def member_names(media: Iterable[str]) -> tuple[str, ...]:
    """The members of every pack of an output whose family has these media arrays."""
    return (*(f"{name}.npy" for name in (*TEXT_ARRAYS, *media)), "json")


def pack_key(number: int) -> str:
    return f"{number:09d}"


def write_pack(file: Sink, offset: int, pack: Pack) -> tuple[int, list[tuple[int, int]]]:
    """Append a pack to a tar that ends at `offset`; the new end, and (offset, size) of every member in order."""
    places = []
    for member, head, body in _members(pack):
        size = len(head) + len(body)
        info = tarfile.TarInfo(f"{pack_key(pack.number)}.{member}")
        info.size, info.mode = size, 0o444
        file.write(info.tobuf(format=tarfile.USTAR_FORMAT))
        file.write(head)
        file.write(body)
        file.write(bytes(-size % _BLOCK))
        places.append((offset + _BLOCK, size))
        offset += _BLOCK + size + -size % _BLOCK
    return offset, places


def write_end(file: Sink) -> None:
    file.write(bytes(2 * _BLOCK))


def read_pack(members: Mapping[str, bytes | memoryview]) -> Pack:
    """A pack from the contents of its members."""
    header = json.loads(bytes(members["json"]))
    return Pack(
        number=header["pack"],
        arrays={name.removesuffix(".npy"): read_array(member) for name, member in members.items() if name != "json"},
        documents=tuple(_document(document) for document in header["documents"]),
        fake_image=header["fake_image"],
    )


def _document(values: dict[str, Any]) -> Document:
    return Document(**values | {"targets": tuple((start, stop) for start, stop in values["targets"])})


# As numpy writes it: {'descr': '<i4', 'fortran_order': False, 'shape': (3, 8192), }
_NPY_HEADER = re.compile(rb"\{'descr': '([<|][a-z]\d+)', 'fortran_order': False, 'shape': \(([\d, ]*)\), \}\s*")


def read_array(content: bytes | memoryview) -> np.ndarray:
    """The array of an .npy file, without copying it. numpy's own reader parses the header as Python, which is slow."""
    start = 10 + int.from_bytes(content[8:10], "little")
    dtype, shape, size = _array_type(bytes(content[:start]))
    if start + size != len(content):
        raise ValueError(f"an .npy file of {len(content)} bytes, whose header says {start} + {size}")
    return np.ndarray(shape, dtype, content, start)  # half the time of frombuffer and reshape


@lru_cache(maxsize=4096)  # the packs of an output have few headers: lengths differ by documents and media only
def _array_type(head: bytes) -> tuple[np.dtype, tuple[int, ...], int]:
    if head[:8] != b"\x93NUMPY\x01\x00":
        raise ValueError("not an .npy file of version 1.0")
    header = _NPY_HEADER.fullmatch(head, 10)
    if header is None:
        raise ValueError(f"an .npy header of another kind: {head[10:]!r}")
    dtype, shape = np.dtype(header[1].decode()), tuple(int(side) for side in header[2].split(b",") if side.strip())
    return dtype, shape, dtype.itemsize * math.prod(shape)


def _members(pack: Pack) -> Iterator[tuple[str, bytes, bytes | memoryview]]:
    for name, values in pack.arrays.items():
        array = np.ascontiguousarray(values)
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
        # A memoryview of an empty array cannot be cast.
        yield f"{name}.npy", head.getvalue(), array.data.cast("B") if array.size else b""
    yield "json", b"", json.dumps(_header(pack), ensure_ascii=False).encode()


def _header(pack: Pack) -> dict[str, Any]:
    return {
        "pack": pack.number,
        "codec": "u8",
        "num_tokens": len(pack.arrays["input_ids"]),
        "num_images": sum(document.num_images for document in pack.documents),
        "num_videos": sum(document.num_videos for document in pack.documents),
        "num_audios": sum(document.num_audios for document in pack.documents),
        "fake_image": pack.fake_image,
        # not dataclasses.asdict, which copies deeply and takes as long as the rest of the document
        "documents": [{name: getattr(document, name) for name in DOCUMENT} for document in pack.documents],
    }
