"""Media as text in a row, and read again from its line."""

import base64
import json

import pytest
from helpers import picture
from support.errors import raises_media_error

from neatpack.pipeline.media.inline import LastLine, bytes_of_text, pointed, pointer
from neatpack.pipeline.media.open import open_media
from neatpack.pipeline.records import MediaRef


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("data:image/png;base64,aGVsbG8=", b"hello"),
        ("DATA:;BASE64,aGVs\nbG8", b"hello"),
        ("data:text/plain,a%20b", b"a b"),
        ("aGVsbG8=", b"hello"),
    ],
)
def test_bytes_of_a_text(text, content):
    assert bytes_of_text(text) == content


@pytest.mark.parametrize("text", ["data:image/png;base64", "data:;base64,a?b", "not base64!"])
def test_texts_that_are_none(text):
    with pytest.raises(ValueError, match="base64|comma"):
        bytes_of_text(text)


def test_pointers():
    value = {"a/b": [{"~": 5}]}
    assert pointer("a/b", 0, "~") == "/a~1b/0/~0"
    assert pointed(value, pointer("a/b", 0, "~")) == 5
    assert pointed(value, "") == value


def test_a_medium_is_read_again_from_its_line(tmp_path):
    content = picture(tmp_path / "a.png", 8, 8).read_bytes()
    lines = [{"id": 1}, {"images": [f"data:image/png;base64,{base64.b64encode(content).decode()}"]}]
    texts = [json.dumps(line).encode() + b"\n" for line in lines]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(texts))
    there = {"kind": "image", "path": str(tmp_path / "rows.jsonl"), "offset": len(texts[0]), "length": len(texts[1])}
    with open_media(MediaRef(**there, inside="/images/0")) as file:
        assert file.read() == content
    for wrong in ("/images/1", "/pictures/0", "/images"):
        with raises_media_error("bad_media", str(tmp_path / "rows.jsonl")):
            open_media(MediaRef(**there, inside=wrong))
    with pytest.raises(ValueError, match="/a"):
        LastLine().bytes_at(0, lambda: b"{", "/a")
