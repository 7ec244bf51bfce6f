"""The same rows from every kind of data file, documents in every form, and images by URL: as tables."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import assert_verified
from support.data import picture
from support.errors import raises
from support.outputs import read_ledger
from support.packed import tiny_config

from neatpack import UserError, run_pack

pytestmark = pytest.mark.net

ROWS = [
    {"messages": [{"role": "user", "content": f"<image>What is {n}?"}, {"role": "assistant", "content": f"It is {n}."}],
     "images": [f"{n}.png"]}
    for n in range(5)
]  # fmt: skip
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def write_arrow(path: Path, make: Callable[..., Any]) -> None:
    table = pa.Table.from_pylist(ROWS)
    with make(path, table.schema) as writer:
        writer.write_table(table)


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for number, row in enumerate(ROWS):
            content = json.dumps(row | {"images": [str(path.parent / row["images"][0])]}).encode()
            member = tarfile.TarInfo(f"{number}.json")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


FILES: dict[str, Callable[[Path], object]] = {
    "a.jsonl": lambda path: path.write_bytes(LINES),
    "a.ndjson": lambda path: path.write_bytes(b"\xef\xbb\xbf" + LINES),
    "a.json": lambda path: path.write_text(json.dumps(ROWS, indent=1)),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES[:400]) + gzip.compress(LINES[400:])),
    "a.jsonl.bz2": lambda path: path.write_bytes(bz2.compress(LINES)),
    "a.jsonl.xz": lambda path: path.write_bytes(lzma.compress(LINES)),
    "a.jsonl.zst": lambda path: path.write_bytes(pa.compress(LINES, codec="zstd", asbytes=True)),
    "a.parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2),
    "a.arrow": lambda path: write_arrow(path, pa.ipc.new_file),
    "b.arrow": lambda path: write_arrow(path, pa.ipc.new_stream),
    "a.tar": write_tar,
    "a.tar.gz": lambda path: write_tar(path),
}
# Row, status and visual tokens: images of 40, 60, 80, 100 and 120 pixels by 60.
EXPECTED = [(0, "packed", 6), (1, "packed", 4), (2, "packed", 6), (3, "packed", 8), (4, "packed", 8)]
REJECTED = {"a.tar.gz": "data-format"}


def pack(folder: Path, meta: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    """Pack; return the ledger of a verified output."""
    (folder / "meta.json").write_text(json.dumps({"a": {"media_dir": ".", "media_prefixes": [str(folder)], **meta}}))
    run_pack(tiny_config(folder / "meta.json", folder / "out", max_skipped=1.0, **config))
    assert_verified(folder / "out")
    return read_ledger(folder / "out")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        picture(tmp_path / f"{number}.png", 40 + 20 * number, 60, seed=number)
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_rows_are_the_same_from_every_kind_of_file(folder: Path, name: str) -> None:
    FILES[name](folder / name)
    if name in REJECTED:
        with raises(UserError, REJECTED[name]):
            pack(folder, {"file_name": name})
        return
    lines = pack(folder, {"file_name": name})
    assert [(line["row"], line["status"], line["visual_tokens"]) for line in lines] == EXPECTED


DOCUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"text": "A long story."}, ""),
    "text and image": ({"text": "A story.", "images": ["0.png"]}, ""),
    "caption": ({"caption": "A cat.", "url": "0.png"}, ""),
    "interleaved": ({"texts": ["Look:", None, "Well."], "images": [None, "0.png", None]}, ""),
    "lengths differ": ({"texts": ["Look:"], "images": [None, "0.png"]}, "bad_row"),
    "both at one place": ({"texts": ["Look:"], "images": ["0.png"]}, "bad_row"),
    "neither": ({"texts": [None], "images": [None]}, "bad_row"),
    "sentences": ({"text_list": ["A.", "B."], "image_info": [{"image_name": "0.png", "matched_text_index": 1}]}, ""),
    "no such sentence": ({"text_list": ["One."], "image_info": [{"image_name": "0.png", "matched_text_index": 7}]},
                         "bad_row"),
    "parts": ({"content": [{"type": "text", "text": "Look: "}, {"type": "image", "image": "0.png"}]}, ""),
    "number": ({"text": 7}, "bad_row"),
    "half a pair": ({"text": "\ud800"}, "bad_row"),
    "only an image": ({"images": ["0.png"]}, "no_target"),
}  # fmt: skip


@pytest.mark.parametrize(("row", "reason"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_documents(folder: Path, row: dict[str, Any], reason: str) -> None:
    (folder / "a.jsonl").write_text(json.dumps(row) + "\n")
    (line,) = pack(folder, {"file_name": "a.jsonl", "format": "document"})
    assert (line["reason"], line["status"]) == (reason, "skipped" if reason else "packed"), line["detail"]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/moved.png":
            self.send_response(302)
            self.send_header("Location", "/0.png")
            self.end_headers()
        elif self.path == "/busy.png":
            self.send_error(403)
        else:
            super().do_GET()


def test_images_by_url(folder: Path) -> None:
    """Downloaded where it is allowed; each that cannot be had costs its row."""
    with ThreadingHTTPServer(("127.0.0.1", 0), lambda *given: Quiet(*given, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_address[1]}"
        names = ("0.png", "moved.png", "gone.png", "busy.png", "meta.json")
        rows = [ROWS[0] | {"images": [f"http://{host}/{name}"]} for name in names]
        (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines = pack(folder, {"file_name": "a.jsonl"}, allow_http=True, allow_hosts=("127.0.0.1",))
        assert [line["reason"] for line in lines] == ["", "", "missing_media", "missing_media", "bad_media"]
        server.shutdown()
    assert len({line["visual_tokens"] for line in lines[:2]}) == 1
    for number, config in enumerate(({}, {"allow_http": True})):  # not asked for, and a private address
        meta = {"file_name": "a.jsonl"}
        (folder / str(number)).mkdir()
        (folder / str(number) / "a.jsonl").write_text((folder / "a.jsonl").read_text())
        assert {line["reason"] for line in pack(folder / str(number), meta, **config)} == {"missing_media"}
