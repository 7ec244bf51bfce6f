"""Packs survive the trip to disk, and plain readers see the same."""

import dataclasses
import io
import json
import tarfile
import zlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as npst
from support.errors import raises

from neatpack.errors import OutputError
from neatpack.format.layout import MediaArray
from neatpack.format.manifest import PLAIN, spelled
from neatpack.format.members import (
    Document,
    Documents,
    Pack,
    _header,
    member_names,
    npy_header,
    pack_key,
    read_array,
    read_pack,
    tar_header,
    write_end,
    write_pack,
)

ARRAYS = {
    "input_ids": np.int32, "labels": np.int32, "position_ids": np.int32, "seq_lens": np.int32,
    "seq_lens_padded": np.int32, "mm_token_type_ids": np.uint8, "image_grid_thw": np.int64, "pixel_values": np.uint8,
    "video_grid_thw": np.int64, "second_per_grid_ts": np.float32, "pixel_values_videos": np.uint8,
}  # fmt: skip
MEMBERS = member_names({name: MediaArray(kinds=("image",), dtype="uint8", row=()) for name in list(ARRAYS)[6:]})

SHAPES = {"position_ids": 2, "image_grid_thw": 2, "pixel_values": 2, "video_grid_thw": 2, "pixel_values_videos": 2}


@st.composite
def packs(draw):
    arrays = {}
    for name, dtype in ARRAYS.items():
        dims = SHAPES.get(name, 1)
        shape = draw(npst.array_shapes(min_dims=dims, max_dims=dims, min_side=0, max_side=40))
        arrays[name] = draw(npst.arrays(dtype, shape))
    documents = draw(
        st.lists(
            st.builds(
                Document, dataset=st.text(), row=st.integers(-1, 2**40), repeat=st.integers(0, 9),
                tokens=st.integers(0, 2**20), visual_tokens=st.integers(0, 2**20), num_images=st.integers(0, 99),
                num_videos=st.integers(0, 9), num_audios=st.integers(0, 9),
            ),
            max_size=5,
        )
    )  # fmt: skip
    return Pack(
        number=draw(st.integers(0, 999_999_999)),
        arrays=arrays,
        documents=tuple(documents),
        fake_image=draw(st.booleans()),
    )


@settings(max_examples=20)  # each of up to four packs, with all arrays there are
@given(st.lists(packs(), max_size=4, unique_by=lambda pack: pack.number))
def test_round_trip(written):
    file = io.BytesIO()
    offset, places = 0, []
    for pack in written:
        offset, _, members = write_pack(file, offset, pack)
        assert offset == file.tell()
        places.append(members)
    write_end(file)
    content = file.getvalue()
    assert len(content) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = {member.name: (member.offset_data, member.size) for member in tar}
    for pack, members in zip(written, places, strict=True):
        named = dict(zip(MEMBERS, members, strict=True))
        assert named == {name: found[f"{pack.number:09d}.{name}"] for name in MEMBERS}
        back = read_pack({name: memoryview(content)[start : start + size] for name, (start, size) in named.items()})
        assert (back.number, back.documents, back.fake_image) == (pack.number, pack.documents, pack.fake_image)
        for name, array in pack.arrays.items():
            assert back.arrays[name].dtype == array.dtype
            assert back.arrays[name].shape == array.shape and back.arrays[name].tobytes() == array.tobytes()
            assert np.load(io.BytesIO(content[slice(named[f"{name}.npy"][0], None)])).tobytes() == array.tobytes()
            # zero-copy: data of every member starts on a 64-byte boundary
            assert (named[f"{name}.npy"][0]) % 512 == 0


@given(st.lists(st.builds(Document, row=st.integers(-1, 2**40), tokens=st.integers(0, 2**20)), max_size=5))
def test_documents_are_the_json_of_python(documents):
    """Written by columns, and one by one: with quotes, line breaks and other scripts in names."""
    pack = Pack(number=3, arrays={"input_ids": np.zeros(7, np.int32)}, documents=documents, fake_image=True)
    sums = {name: sum(getattr(each, name) for each in documents) for name in ("num_images", "num_videos", "num_audios")}
    expected = {"pack": 3, "codec": spelled(PLAIN), "num_tokens": 7, **sums, "fake_image": True,
                "documents": [dataclasses.asdict(each) for each in documents]}  # fmt: skip
    assert _header(pack, PLAIN) == json.dumps(expected, ensure_ascii=False)


@given(st.lists(st.builds(Document), max_size=5), st.lists(st.builds(Document), max_size=2))
def test_documents_by_columns_are_the_documents(documents, more):
    columns = Documents.of(documents)
    assert list(columns) == documents and columns == documents and Documents.of(columns) is columns
    assert len(columns) == len(documents) and list(columns[1:3]) == documents[1:3]
    assert list(columns + more) == documents + more and columns + more != [*documents, *more, None]


def test_what_is_not_an_array_is_refused():
    file = io.BytesIO()
    np.save(file, np.arange(3, dtype=np.int32))
    content = file.getvalue()
    assert read_array(content).tolist() == [0, 1, 2]
    with raises(OutputError, "output-damaged", got=144, expected=140):
        read_array(content + bytes(4))
    with raises(OutputError, "output-damaged", got=139, expected=140):
        read_array(content[:-1])
    with raises(OutputError, "output-damaged", magic=b"PK" + content[2:8]):
        read_array(b"PK" + content[2:])
    with raises(OutputError, "output-damaged", header=content[10:128].replace(b"False", b"True ")):
        read_array(content.replace(b"False", b"True "))


@given(st.integers(0, 10**10), st.sampled_from(["json", "pixel_values.npy"]), st.integers(0, 8**12))
def test_tar_headers_are_those_of_tarfile(pack, member, size):
    info = tarfile.TarInfo(f"{pack_key(pack)}.{member}")
    info.size, info.mode = size, 0o444
    try:
        expected = info.tobuf(format=tarfile.USTAR_FORMAT)
    except ValueError:  # a size that needs another format
        with pytest.raises(ValueError, match="overflow"):
            tar_header(pack, member, size)
    else:
        assert tar_header(pack, member, size) == expected


@given(st.sampled_from(sorted(set(ARRAYS.values()), key=str)), npst.array_shapes(max_dims=4, min_side=0, max_side=99))
def test_npy_headers_are_those_of_numpy(dtype, shape):
    array, file = np.zeros(shape, dtype), io.BytesIO()
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    assert npy_header(array) == file.getvalue()


def test_large_members_are_written_as_small_ones():
    """Small ones are written together, large ones apart: the tar is the same."""
    arrays = {name: np.zeros(3, dtype) for name, dtype in ARRAYS.items()}
    arrays["pixel_values"] = np.arange(1 << 20, dtype=np.uint8).reshape(1024, 1024)
    arrays["pixel_values_videos"] = arrays["pixel_values"][:1]
    pack = Pack(number=3, arrays=arrays, documents=(), fake_image=False)
    file = io.BytesIO()
    end, crc32, places = write_pack(file, 0, pack)
    assert (end, crc32) == (len(file.getvalue()), zlib.crc32(file.getvalue()))
    write_end(file)
    with tarfile.open(fileobj=io.BytesIO(file.getvalue())) as tar:
        assert [(member.offset_data, member.size) for member in tar] == places
        members = {name.name.split(".", 1)[1]: tar.extractfile(name).read() for name in tar}
    found = read_pack(members).arrays
    assert all(np.array_equal(found[name], values) for name, values in arrays.items())
