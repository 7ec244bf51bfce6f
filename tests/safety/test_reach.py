"""Rows that name hosts, buckets and endpoints of their own: nobody is contacted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import assert_verified, picture, tiny_config
from listener import Listener, listening, put_credentials
from object_store import serving

from neatpack.pipeline.ingest.media_paths import MediaFolders, resolve_path
from neatpack.pipeline.media.ahead import ahead
from neatpack.pipeline.records import Skip
from neatpack.pipeline.run import run_pack, run_split
from neatpack.pipeline.shard.verify import read_ledger
from neatpack.storage.location import Location


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    put_credentials(monkeypatch)
    ahead.forget()
    with listening() as found:
        yield found


def hostile_uris(address: str) -> list[str]:
    """The attacks of the issue, and others of their kind."""
    options = f"endpoint_override={address}&scheme=http"
    return [
        f"s3://bucket/x.jpg?{options}",
        f"S3://bucket/x.jpg?{options}",
        f"s3://key:secret@bucket/x.jpg?{options}",
        f"s3://bucket/media/x.jpg?{options}",
        f"s3://bucket/media/x.jpg%3F{options}?{options}",
        f"gs://bucket/x.jpg?{options}",
        f"gcs://anonymous@bucket/x.jpg?{options}",
        f"hdfs://{address}/x.jpg",
        f"abfs://container@{address}/x.jpg",
        f"abfss://{address}/x.jpg?account_key=a2V5",
        f"http://{address}/x.jpg",
        f"https://{address}/x.jpg",
        f"ftp://{address}/x.jpg",
        f"sftp://{address}/x.jpg",
        f"file://{address}/x.jpg",
        f"s3a://bucket/x.jpg?{options}",
        f"hf://datasets/{address}/x.jpg",
        f"zip://x.jpg::http://{address}/a.zip",
        f"smb://{address}/x.jpg",
        f"s3+http://{address}/x.jpg",
        f"oss://{address}/x.jpg",
        f"viewfs://{address}/x.jpg",
        f"reference://{address}/x.jpg",
        f"rtsp://{address}/x.jpg",
        "local:///etc/hostname",
        "s3://any-bucket/key",
        "s3://bucket-2/media/x.jpg",
    ]


def message(image: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "That."}]
    return {"messages": turns, "images": [image]}


def ledger_of(folder: Path, entry: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    (folder / "meta.json").write_text(json.dumps({"d": entry}))
    run_pack(tiny_config(folder / "meta.json", folder / "out", max_skipped=1.0, **config))
    lines = read_ledger(folder / "out", assert_verified(folder / "out")).to_pylist()
    assert [line["row"] for line in lines] == list(range(len(lines)))
    return lines


@pytest.mark.parametrize("media_dir", [".", None])
def test_row_that_names_an_endpoint_contacts_nobody(tmp_path: Path, listener: Listener, media_dir: str | None) -> None:
    uris = hostile_uris(listener.address)
    picture(tmp_path / "good.png", 40, 60)
    rows = [*map(message, uris), message("good.png")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    entry = {"file_name": "rows.jsonl"} | ({"media_dir": media_dir} if media_dir else {})
    *bad, good = ledger_of(tmp_path, entry)
    assert listener.num_connections == 0
    assert good["status"] == "packed"
    found = {uri: (line["reason"], line["detail"]) for uri, line in zip(uris, bad, strict=True)}
    for uri, (reason, detail) in found.items():
        scheme = uri.partition(":")[0].lower()
        if scheme in ("http", "https"):
            assert reason == "missing_media" and "--allow-http" in detail
        elif scheme in (
            "ftp",
            "sftp",
            "file",
            "s3a",
            "hf",
            "zip",
            "smb",
            "s3+http",
            "oss",
            "viewfs",
            "reference",
            "rtsp",
            "local",
        ):
            assert reason == "bad_row"
        else:
            assert (reason, "--media-prefix" in detail) == ("missing_media", True), (uri, detail)
        assert "?" not in detail and "secret" not in detail


def test_relative_path_with_a_query_is_the_name_of_an_object(tmp_path: Path, listener: Listener) -> None:
    """Below a media_dir in a store: the store of media_dir is asked, for just this key."""
    options = f"endpoint_override={listener.address}&scheme=http"
    names = [
        f"a.png?{options}",
        f"a.png%3F{options}",
        f"a.png#?{options}",
        f"a.png%00?{options}",
        f"a.png\n?{options}",
        f"//{listener.address}/a.png?{options}",
        f"x://{listener.address}/a.png",
        "?",
        "100% b.png",
    ]
    media = tmp_path / "bucket" / "media"
    for name in names[:1] + names[-2:]:
        picture(tmp_path / "one.png", 40, 60).rename(tmp_path / "two.png")
        target = media / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((tmp_path / "two.png").read_bytes())
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(message(name)) for name in names))
    with serving(tmp_path / "bucket") as store:
        lines = ledger_of(tmp_path, {"file_name": "rows.jsonl", "media_dir": store.plain_uri("media")})
        asked = {key for _, key in store.requests}
    assert listener.num_connections == 0
    found = {name: line["status"] for name, line in zip(names, lines, strict=True)}
    assert [name for name in names if found[name] == "packed"] == [names[0], "?", "100% b.png"], lines
    assert all(key.startswith("media/") or not key.strip("/bucket") for key in asked), asked


def test_store_is_not_asked_for_a_name_that_it_cannot_have(tmp_path: Path, listener: Listener) -> None:
    """S3 answers 400 to a key above 1,024 bytes. 21 such rows looked like a store that fails, and ended the run."""
    names = [
        "a/" * 600 + "x.png",
        "ü/" * 400 + "x.png",
        "a\nb.png",
        "a\0.png",
        "a\x7f.png",
        "STORE/" + "b/" * 600 + "x.png",
    ]
    picture(tmp_path / "bucket" / "media" / "good.png", 40, 60)
    with serving(tmp_path / "bucket") as store:
        rows = [message(name.replace("STORE", "s3://bucket/media")) for name in [*names * 5, "good.png"]]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        *bad, good = ledger_of(tmp_path, {"file_name": "rows.jsonl", "media_dir": store.plain_uri("media")})
        assert {key for _, key in store.requests if "good.png" not in key} <= {"", "/", "bucket"}, store.requests
    assert {line["reason"] for line in bad} == {"missing_media"} and good["status"] == "packed"


@pytest.mark.parametrize(
    "name",
    ["simplecache::http://{}/x", "filecache::s3://bucket/x", "concat:http://{}/x|b", "tcp:{}", "s3:bucket/x",
     "http:/{}/x", "~/x.png", "~root/x.png", "$HOME/x.png", "-", "pipe:0", "good.png\0.jpg", "proc/self/environ"],
)  # fmt: skip
def test_name_that_other_programs_take_for_an_address_is_a_path(name: str, tmp_path: Path, listener: Listener) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(message(name.format(listener.address))))
    (line,) = ledger_of(tmp_path, {"file_name": "rows.jsonl"})
    assert line["reason"] == "missing_media" and listener.num_connections == 0, line


@pytest.mark.slow
def test_names_of_a_listing_are_names(tmp_path: Path, listener: Listener) -> None:
    """A folder of data in a store, in which somebody has put objects with odd names."""
    options = f"endpoint_override={listener.address}&scheme=http"
    data = tmp_path / "bucket" / "data"
    data.mkdir(parents=True)
    text = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}
    for name in ("a.jsonl", f"x?{options}&y=.jsonl", "50%25.jsonl", "z#.jsonl"):
        (data / name).write_text(json.dumps(text) + "\n")
    with serving(tmp_path / "bucket") as store:
        lines = ledger_of(tmp_path, {"file_name": store.plain_uri("data")})
    assert listener.num_connections == 0
    assert [line["status"] for line in lines] == ["packed"] * 4


@pytest.mark.parametrize("kind", ["frames", "parquet", "tar", "arrow", "csv", "cell", "range"])
def test_every_format_has_the_same_bounds(kind: str, tmp_path: Path, listener: Listener) -> None:
    uri = f"s3://bucket/x.jpg?endpoint_override={listener.address}&scheme=http"
    rows: list[dict[str, Any]] = [message(uri), message("/etc/hostname")]
    if kind == "frames":
        turns = [{"role": "user", "content": "<video>What?"}, {"role": "assistant", "content": "That."}]
        rows = [{"messages": turns, "videos": [[uri, uri]]}, {"messages": turns, "videos": [["/etc/a.png", "b.png"]]}]
    if kind in ("cell", "range"):
        more: dict[str, Any] = {"cell": "0/0/image/bytes"} if kind == "cell" else {"offset": 0, "length": 10}
        rows = [message({"path": name} | more) for name in (uri, "/etc/hostname")]
    name = {"parquet": "rows.parquet", "tar": "rows.tar", "arrow": "rows.arrow", "csv": "rows.csv"}.get(
        kind, "rows.jsonl"
    )
    write_rows(tmp_path / name, rows)
    lines = ledger_of(tmp_path, {"file_name": name})
    assert listener.num_connections == 0
    assert [line["reason"] for line in lines] == ["missing_media"] * 2, lines
    assert all("--media-prefix" in line["detail"] for line in lines)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".arrow":
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".csv":
        lines = ['"{}","{}"'.format(*(json.dumps(row[key]).replace('"', '""') for key in row)) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]))
    elif path.suffix == ".tar":
        import io
        import tarfile

        with tarfile.open(path, "w") as tar:
            for number, row in enumerate(rows):
                content = json.dumps(row).encode()
                member = tarfile.TarInfo(f"{number}.json")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))


STORE = "s3://bucket/dir?endpoint_override=host:1&scheme=http"


@pytest.mark.parametrize(
    ("uri", "key"),
    [
        ("s3://bucket/dir/a.png", "dir/a.png"),
        ("S3://bucket/dir/a.png", "dir/a.png"),
        ("s3://bucket/dir/./b/../a.png", "dir/a.png"),
        ("s3://bucket/dir/a%3Fb#c d.png", "dir/a%3Fb#c d.png"),
        ("s3://bucket/dir2/a.png", None),
        ("s3://bucket/dir/../a.png", None),
        ("s3://bucket/dir/../../bucket/dir/a.png?", None),
        ("s3://bucket/dir/a.png?region=x", None),
        ("s3://bucket/dir/a.png?", None),
        ("s3://bucket-2/dir/a.png", None),
        ("s3://me@bucket/dir/a.png", None),
        ("s3://me:key@bucket/dir/a.png", None),
        ("s3://Bucket/dir/a.png", None),
        ("s3:///bucket/dir/a.png", None),
        ("gs://bucket/dir/a.png", None),
    ],
)
def test_store_of_a_row_is_one_that_the_user_names(uri: str, key: str | None) -> None:
    """Its endpoint is that of media_dir."""
    found = resolve_path(uri, MediaFolders(search=(STORE,), bounds=(STORE,)))
    if key is None:
        assert isinstance(found, Skip) and found.reason == "missing_media" and "--media-prefix" in found.detail
    else:
        assert isinstance(found, str)
        assert Location.parse(found) == Location("s3", "bucket", key, "endpoint_override=host:1&scheme=http")
        assert Location.parse(found).uri == found


def test_prefix_allows_a_store_and_a_folder(tmp_path: Path, listener: Listener) -> None:
    picture(tmp_path / "bucket" / "pics" / "a.png", 40, 60)
    (tmp_path / "data").mkdir()
    rows = [message(name) for name in ("s3://bucket/pics/a.png", f"{tmp_path}/bucket/pics/a.png")]
    (tmp_path / "data" / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with serving(tmp_path / "bucket") as store:
        entry = {"file_name": "rows.jsonl", "media_prefixes": [store.plain_uri("pics")]}
        config = {"media_prefixes": (str(tmp_path / "bucket" / "pics"),)}
        lines = ledger_of(tmp_path / "data", entry, **config)
        assert [line["status"] for line in lines] == ["packed"] * 2, lines
        # What `split` writes has the same bounds.
        run_split(tiny_config(tmp_path / "data" / "meta.json", tmp_path / "split", holdout=0.5, **config))
        for part in ("train", "holdout"):
            meta, out = tmp_path / "split" / part / "meta.json", tmp_path / f"packed-{part}"
            run_pack(tiny_config(meta, out, max_skipped=1.0))
            assert {line["reason"] for line in read_ledger(out, assert_verified(out)).to_pylist()} <= {""}
