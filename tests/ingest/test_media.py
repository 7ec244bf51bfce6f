"""Every spelling of a medium: paths, URIs, base64 in columns and parts."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from format_rows import ANSWER, PNG, TEXT_OF_PNG, dataset, spoken
from support.errors import assert_skipped

from neatpack.pipeline.ingest.conversation import from_conversation, to_conversation
from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.media.inline import LastLine, pointed
from neatpack.pipeline.media.open import open_media
from neatpack.pipeline.records import Example, MediaRef, Skip


def first_medium(*parts: Any, **columns: Any) -> MediaRef | Skip:
    content: Any = list(parts) or "<image>"
    example = spoken({"role": "user", "content": content}, ANSWER, **columns)
    return example if isinstance(example, Skip) else example.media[0]


# Spelling in a column -> the path of the reference.
PATHS = {
    "cat.jpg": "/media/cat.jpg",
    "/far/cat.jpg": "/far/cat.jpg",
    "file:///far/my%20cat%23.jpg": "/far/my cat#.jpg",
    "file://localhost/far/cat.jpg": "/far/cat.jpg",
    "file:/far/my%20cat.jpg": "/far/my cat.jpg",
    "s3://bucket/cat.jpg": "s3://bucket/cat.jpg",
    "gs://bucket/a b.jpg": "gs://bucket/a b.jpg",
    "https://x.org/cat.jpg?size=1": "https://x.org/cat.jpg?size=1",
    "C:\\cats\\cat.jpg": "/media/C:\\cats\\cat.jpg",
    "A" * 100: "/media/" + "A" * 100,  # base64's alphabet, but of no known kind
    "//server/" + "pictures/" * 8 + "cat": "//server/" + "pictures/" * 8 + "cat",  # bytes that an MP3 may begin with
    "iVBORw0KGgo": "/media/iVBORw0KGgo",  # a PNG's beginning, but too short for one
}


@pytest.mark.parametrize(("given", "path"), PATHS.items(), ids=[given[:30] for given in PATHS])
def test_paths_and_uris(given: str, path: str) -> None:
    expected = MediaRef(kind="image", path=path)
    assert first_medium(images=[given]) == first_medium(images=given) == first_medium(images={"url": given}) == expected
    for part in (
        {"type": "image", "image": given},
        {"type": "image", "url": given},
        {"type": "image", "path": given},
        {"type": "image", "image_url": given},
        {"type": "image_url", "image_url": given},
        {"type": "image_url", "image_url": {"url": given, "detail": "high"}},
        {"type": "input_image", "image_url": given, "detail": "low"},
        {"type": "image_url", "value": given},
    ):
        assert first_medium(part) == expected, part


@pytest.mark.parametrize("given", ["ftp://x/cat.jpg", "hdfs2://x/cat.jpg", "FTP://x/cat.jpg"])
def test_other_schemes_are_never_glued_to_a_folder(given: str) -> None:
    skip = first_medium(images=[given])
    known = "file, s3, gs, gcs, abfs, abfss, hdfs, http, https, data"
    assert_skipped(skip, "bad_row", "'images'", given.partition("://")[0] + "://", known)
    for other in ("file://host/cat.jpg", "file://[", "file:///%ff.jpg"):
        assert isinstance(first_medium(images=[other]), Skip)


# Row with a picture as text -> where in the row.
WRITTEN: dict[str, tuple[dict[str, Any], str]] = {
    "base64": ({"images": [TEXT_OF_PNG]}, "/images/0"),
    "one entry": ({"images": TEXT_OF_PNG}, "/images"),
    "with line breaks": ({"images": [TEXT_OF_PNG[:76] + "\n" + TEXT_OF_PNG[76:]]}, "/images/0"),
    "without padding": ({"images": [TEXT_OF_PNG.rstrip("=")]}, "/images/0"),
    "data URI": ({"images": [f"data:image/png;base64,{TEXT_OF_PNG}"]}, "/images/0"),
    "bytes": ({"images": [{"bytes": TEXT_OF_PNG, "path": "a.png"}]}, "/images/0/bytes"),
    "base64 of an object": ({"images": {"base64": TEXT_OF_PNG}}, "/images/base64"),
}


@pytest.mark.parametrize(("columns", "place"), WRITTEN.values(), ids=WRITTEN)
def test_pictures_as_text_of_a_column(columns: dict[str, Any], place: str) -> None:
    assert first_medium(**columns) == MediaRef(kind="image", path="", inside=place, held=PNG)
    assert LastLine().bytes_at(0, json.dumps(columns).encode, place) == PNG


DATA = f"data:image/png;base64,{TEXT_OF_PNG}"
PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"type": "image", "image": TEXT_OF_PNG}, "/image"),
    "base64": ({"type": "image", "base64": TEXT_OF_PNG}, "/base64"),
    "image_url": ({"type": "image_url", "image_url": {"url": DATA}}, "/image_url/url"),
    "image_url as text": ({"type": "image_url", "image_url": DATA}, "/image_url"),
    "a sound": ({"type": "input_audio", "input_audio": {"data": TEXT_OF_PNG, "format": "wav"}}, "/input_audio/data"),
    "a video": ({"type": "video_url", "video_url": {"url": DATA}}, "/video_url/url"),
    "a video that is sampled": ({"type": "video", "video": DATA, "fps": 2}, "/video"),
}


@pytest.mark.parametrize(("part", "place"), PARTS.values(), ids=PARTS)
def test_media_as_text_of_a_part(part: dict[str, Any], place: str) -> None:
    """Also where the messages are a text themselves: it is found again by the line alone."""
    turns = [{"role": "user", "content": [{"type": "input_text", "text": "Who?"}, part]}, ANSWER]
    for messages in (turns, json.dumps(turns)):
        row = {"messages": messages}
        example = convert(row, dataset("messages"))
        assert isinstance(example, Example), example
        (ref,) = example.media
        assert (ref.path, ref.inside, ref.held) == ("", f"/messages/0/content/1{place}", PNG)
        assert ref.sampling.fps == part.get("fps")
        assert LastLine().bytes_at(0, json.dumps(row).encode, ref.inside) == PNG
        online = from_conversation(to_conversation(example))
        assert isinstance(online, Example)
        assert online.media[0].held == PNG and not online.media[0].inside
        assert online.media[0].sampling == ref.sampling


def test_a_picture_in_a_line_is_read_again_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    line = json.dumps({"images": [TEXT_OF_PNG]}).encode()
    file.write_bytes(b"{}\n" + line + b"\n")
    ref = MediaRef(kind="image", path=str(file), offset=3, length=len(line), inside="/images/0")
    with open_media(ref) as opened:
        assert opened.read() == PNG


def test_pointers_go_into_texts_that_are_json() -> None:
    assert pointed({"a": '[{"b/c": 5}]'}, "/a/0/b~1c") == 5
    for nowhere in ({"a": "plain"}, {"a": "7"}, {"a": {}}):
        with pytest.raises((LookupError, TypeError, ValueError)):
            pointed(nowhere, "/a/0")


HEADS = {
    "JPEG": b"\xff\xd8\xff\xe0", "GIF": b"GIF89a", "BMP": b"BM\x99\0\0\0\0\0\0\0", "TIFF": b"II*\0", "TIFF 2": b"MM\0*",
    "WebP": b"RIFF\0\0\0\0WEBP", "MP4": b"\0\0\0\x18ftypmp42", "WebM": b"\x1a\x45\xdf\xa3", "MP3": b"ID3\3",
    "Ogg": b"OggS", "FLAC": b"fLaC",
}  # fmt: skip


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_kinds_of_files_that_base64_is_told_by(head: bytes) -> None:
    content = head + bytes(range(100))
    assert first_medium(images=[base64.b64encode(content).decode()]).held == content
    sound = b"\xff\xfb" + bytes(4000)
    assert first_medium(images=[base64.b64encode(sound).decode()]).held == sound


def test_bytes_in_memory() -> None:
    for spelled in (PNG, {"bytes": PNG}, bytearray(PNG)):
        assert first_medium(images=[spelled]) == MediaRef(kind="image", path="(image in memory)", held=PNG)


@pytest.mark.parametrize(
    "given",
    [f"data:image/png;base64,{TEXT_OF_PNG}?", {"bytes": TEXT_OF_PNG + "?"}, "data:image/png;base64", "B" * 5000,
     [[TEXT_OF_PNG]], {"link": TEXT_OF_PNG}],
    ids=["a stray character", "of bytes", "no comma", "no known kind", "nested", "unknown key"],
)  # fmt: skip
def test_what_is_no_base64_is_skipped_and_not_quoted(given: Any) -> None:
    skip = first_medium(images=[given])
    assert isinstance(skip, Skip)
    wanted = "missing_media" if given == "B" * 5000 else "bad_row" if isinstance(given, list) or "link" in given else ""
    assert skip.reason == (wanted or "bad_media")
    assert "'images'" in skip.detail
    assert TEXT_OF_PNG[:20] not in skip.detail and "BBBB" not in skip.detail
