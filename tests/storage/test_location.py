"""Objects of a store, used like paths: against a real S3 server, whole and behind a proxy that lets requests fail."""

import errno
import multiprocessing
import os
import pickle
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from faulty_proxy import Proxy, faulty_proxy
from s3_server import S3
from support.errors import raises

from neatpack.errors import OutputError, UserError
from neatpack.pipeline.ingest.files import glob_to_regex
from neatpack.pipeline.runtime.faults import code_of, sentence
from neatpack.storage import clients, location
from neatpack.storage.clients import Unreachable
from neatpack.storage.files import inside, local_copy, read_into, sha256_of, write_whole
from neatpack.storage.location import Location, NoBucket
from neatpack.storage.ranges import read_ranges


def use(env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are made once in a process, by the environment that there is then."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    for made in (clients.connect, location._has_bucket):
        made.cache_clear()


@pytest.fixture
def folder(s3: S3, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Location:
    """Of this test's own, in the bucket."""
    use(s3.env, monkeypatch)
    monkeypatch.setattr(clients, "BACKOFF", 0.0)
    monkeypatch.setattr(clients, "PATIENCE", 3.0)
    return Location.parse(s3.uri(f"objects-{abs(hash(request.node.name))}"))


@pytest.fixture
def proxy(s3: S3, folder: Location, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with faulty_proxy(s3) as proxy:
        use(proxy.env, monkeypatch)
        yield proxy


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("text", ["/data/a b.json", "data/%41?#", "/", ".", "/data/s3://bucket/x"])
def test_path_is_read_as_it_is_written(text: str) -> None:
    place = Location.parse(text)
    assert place.is_local and place.uri == str(place) == os.fspath(place) == str(place.path) == str(Path(text))
    assert Location.parse(place.uri) == place == Location.parse(Path(text)) == pickle.loads(pickle.dumps(place))


def test_path_object_is_never_read_as_a_uri() -> None:
    assert Location.parse(Path("s3://bucket/x")).key == "s3:/bucket/x"


def test_file_uri_is_a_path() -> None:
    assert Location.parse("file:///data/a%20b.json").path == Path("/data/a b.json")


def test_uri_survives_being_written_as_text() -> None:
    found = Location.parse("s3://bucket/out//shards/?region=x")
    assert found == Location("s3", "bucket", "out//shards", "region=x")
    assert found.uri == "s3://bucket/out//shards?region=x" and str(found) == "s3://bucket/out//shards"
    assert Location.parse(found.uri) == found and Location.parse(found) is found
    assert pickle.loads(pickle.dumps(found)) == found


def test_object_is_no_path_of_this_machine() -> None:
    with pytest.raises(TypeError, match="^s3://bucket/x"):
        os.fspath(Location.parse("s3://me:secret@bucket/x"))


def test_a_scheme_that_nobody_knows_is_named() -> None:
    with raises(UserError, "uri-invalid", scheme="gopher"):
        Location.parse("gopher://bucket/x")
    with raises(UserError, "uri-invalid", scheme="https"):  # a web server is no store
        Location.parse("https://bucket/x")


@pytest.mark.parametrize("text", ["s3://bucket/out", "/data/out"])
def test_names_are_pathlibs(text: str) -> None:
    out = Location.parse(text)
    assert (out / "shards" / "a.b.tar").uri == f"{text}/shards/a.b.tar"
    file = out / "a.b.tar"
    assert (file.name, file.stem, file.suffix, file.parent) == ("a.b.tar", "a.b", ".tar", out)
    assert str(file.with_suffix(".json")) == f"{text}/a.b.json" and file.with_name("c") == out / "c"
    assert file.is_under(out) and out.is_under(out) and file.is_under(file.root)
    assert not (out.parent / "out2").is_under(out) and not out.is_under(file)
    assert not file.is_under(Location.parse("gs://bucket")) and file.relative_to(out) == "a.b.tar"
    assert sorted([out / "b", out / "a"])[0] == out / "a"
    assert (out / "a/../b").resolve() == (out / "b").resolve()


def test_names_at_the_root() -> None:
    bucket = Location.parse("s3://bucket")
    assert bucket.name == "bucket" and bucket.parent == bucket and (bucket / "a").parent == bucket
    assert Location.parse("/").parent == Location.parse("/") and Location.parse("a").parent.key == "."
    assert Location.parse("/data") / "/other" == Location.parse("/other")  # as a path does
    assert bucket / "/other" == bucket / "other"


def test_passwords_and_options_are_not_shown() -> None:
    assert str(Location.parse("s3://me:secret@bucket/x?endpoint_override=host")) == "s3://bucket/x"
    error = Unreachable("s3://me:secret@bucket/x: busy")
    assert "secret" not in str(error) and str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_option_that_s3_does_not_know() -> None:
    with raises(UserError, "option-unknown", store="s3://bucket/", option="regoin"):
        Location.parse("s3://bucket/x?regoin=eu").read_bytes()


@pytest.mark.parametrize(
    ("pattern", "found", "other"),
    [
        ("a/*.jsonl", "a/x.jsonl", "a/b/x.jsonl"),
        ("a/**/*.jsonl", "a/b/c/x.jsonl", "b/x.jsonl"),
        ("a/**/*.jsonl", "a/x.jsonl", "a/x.json"),
        ("a/?[0-9].x", "a/b7.x", "a/bb.x"),
        ("a.b", "a.b", "aXb"),
    ],
)
def test_patterns(pattern: str, found: str, other: str) -> None:
    import re

    assert re.fullmatch(glob_to_regex(pattern), found) and not re.fullmatch(glob_to_regex(pattern), other)


def test_no_name_leads_out_of_an_output() -> None:
    out = Location.parse("s3://bucket/out")
    assert inside(out, "shards/a.tar") == out / "shards" / "a.tar"
    for name in ("../x", "/x", "a/../../x", "", "a//b"):
        with raises(OutputError, "output-damaged", path=name, escapes=True):
            inside(out, name)


# ---------------------------------------------------------------- a real store


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A folder on disk, or in the store."""
    return Location.parse(tmp_path / "folder") if request.param == "disk" else request.getfixturevalue("folder")


def put(file: Location, content: bytes) -> None:
    with write_whole(file) as target:
        target.write(content)


def test_what_exists(place: Location) -> None:
    assert not place.exists() and place.sizes() == {} and place.files() == []
    put(place / "a b ü.txt", b"123")
    put(place / "deep" / "c.json", b"{}")
    assert (place / "a b ü.txt").is_file() and place.is_dir() and not place.is_file()
    assert (place / "a b ü.txt").stat().st_size == 3 and (place / "a b ü.txt").read_text() == "123"
    assert [path.name for path in sorted(place.iterdir())] == ["a b ü.txt", "deep"]
    assert place.glob("*.json") == [] and place.glob("*ü*") == [place / "a b ü.txt"]
    assert place.sizes() == place.sizes(["a b ü.txt", "absent"]) == {"a b ü.txt": 3}
    assert [(file.relative_to(place), size) for file, size, _ in place.files()] == [
        ("a b ü.txt", 3),
        ("deep/c.json", 2),
    ]
    assert (place / "a b ü.txt").read_range(9, 1) == b"23"
    place.remove()
    assert not place.exists()
    place.remove()
    (place / "a").unlink(missing_ok=True)


def test_link_to_a_folder_is_removed_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    Location.parse(tmp_path / "link").remove()
    assert not (tmp_path / "link").exists() and (tmp_path / "kept/file").exists()


def test_missing_file_is_named_as_on_disk(place: Location) -> None:
    for ask in (place.read_bytes, place.stat, place.unlink, place.open):
        with pytest.raises(FileNotFoundError) as caught:
            ask()
        assert caught.value.errno == errno.ENOENT and str(place) in str(caught.value)


def test_missing_bucket_is_a_missing_file(folder: Location) -> None:
    with pytest.raises(FileNotFoundError):
        Location.parse("s3://nobucket/x").read_bytes()


def test_a_bucket_that_is_not_there_is_told_as_such(folder: Location) -> None:
    for ask in (
        lambda place: place.read_bytes(),
        lambda place: place.write_bytes(b"x"),
        lambda place: place.write_bytes(bytes(6 << 20)),  # in parts
    ):
        with pytest.raises(NoBucket) as caught:
            ask(Location.parse("s3://absent-bucket/a/b.bin"))
        assert sentence(caught.value).startswith("s3://absent-bucket/a/b.bin: ")
        assert code_of(caught.value) == "data-missing"
    assert not Location.parse("s3://absent-bucket/a").has_bucket and folder.has_bucket
    with pytest.raises(FileNotFoundError) as found:  # and a missing object is not told as a missing bucket
        (folder / "absent").read_bytes()
    assert not isinstance(found.value, NoBucket)


def test_wrong_credentials_are_no_missing_file(folder: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a").write_bytes(b"1")
    use({"AWS_SECRET_ACCESS_KEY": "wrong"}, monkeypatch)
    with pytest.raises(PermissionError) as caught:
        (folder / "a").read_bytes()
    assert caught.value.strerror == "Permission denied" and "wrong" not in str(caught.value)


def test_written_whole_or_not_at_all(folder: Location, s3: S3) -> None:
    big = os.urandom(12 << 20)  # more than one part of a multipart upload
    with write_whole(folder / "big") as file:
        file.write(big)
        assert not (folder / "big").exists()
    assert (folder / "big").read_bytes() == big and s3.uploads(folder.key) == []
    with pytest.raises(RuntimeError), write_whole(folder / "half") as file:
        file.write(b"half")
        raise RuntimeError
    assert not (folder / "half").exists()
    with write_whole(folder / "empty"):
        pass
    assert (folder / "empty").read_bytes() == b""


def test_read_from_any_place(folder: Location) -> None:
    content = bytes(range(256)) * 1000
    (folder / "a").write_bytes(content)
    with (folder / "a").open(buffer=1000) as file:
        assert file.read(3) == content[:3] and file.seek(-5, os.SEEK_END) and file.read() == content[-5:]
        buffer = memoryview(bytearray(300))
        assert read_into(file, buffer, 200) == 300 and bytes(buffer) == content[200:500]
        assert read_into(file, buffer, len(content) - 10) == 10
    assert sha256_of(folder / "a", 3, 700) == sha256_of_bytes(content[3:700])
    with local_copy(folder / "a") as copy:
        assert copy.read_bytes() == content and copy.name == "a"
    assert not copy.exists()


def sha256_of_bytes(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def test_ranges_that_lie_together_are_one_request(folder: Location, proxy: Proxy) -> None:
    content = os.urandom(400_000)
    for name in "ab":
        (folder / name).write_bytes(content)
    proxy.requests.clear()
    which, at = np.array([1, 0] * 4), np.repeat([0, 300_000, 120, 50], 2)
    found = read_ranges([folder / "a", folder / "b"], which, at, np.full(8, 100))
    assert [bytes(each) for each in found] == [content[start : start + 100] for start in at]
    asked = Counter(request.range for request in proxy.requests if request.method == "GET")
    assert asked == {"bytes=0-219": 2, "bytes=300000-300099": 2}
    assert (folder / "a").read_range(50, len(content) - 5) == content[-5:]


def _read_in_child(file: Location, pipe: "multiprocessing.connection.Connection") -> None:  # type: ignore[name-defined]
    pipe.send(file.read_bytes())


def test_a_forked_process_has_a_client_of_its_own(folder: Location) -> None:
    (folder / "a").write_bytes(b"here")
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_read_in_child, args=(folder / "a", there))
    child.start()
    assert here.poll(60) and here.recv() == b"here"
    child.join()


# ---------------------------------------------------------------- a store that fails


@pytest.mark.parametrize("kind", ["503", "500", "cut", "half answer"])
def test_what_says_nothing_about_the_object_is_tried_again(folder: Location, proxy: Proxy, kind: str) -> None:
    content = os.urandom(100_000)
    (folder / "a").write_bytes(content)
    rule = proxy.fail(kind, method="GET", key=f"{folder.key}/a", times=4)  # type: ignore[arg-type]
    assert (folder / "a").read_bytes() == content
    assert rule.hits == 4


@pytest.mark.parametrize("times", [1, 4, 12])
def test_removing_a_folder_survives_lost_answers(folder: Location, proxy: Proxy, times: int) -> None:
    """The store has removed it, and the next try finds nothing."""
    for name in ("a", "b"):
        (folder / "gone" / name).write_bytes(b"here")
    rule = proxy.fail("lost", method="POST", times=times)
    (folder / "gone").remove()
    assert rule.hits and not (folder / "gone" / "a").exists() and not (folder / "gone" / "b").exists()


def test_a_stalled_answer_is_asked_for_again(folder: Location, proxy: Proxy) -> None:
    (folder / "a").write_bytes(b"here")
    rule = proxy.fail("stall", method="GET", key=f"{folder.key}/a", times=1, seconds=60)
    assert (folder / "a").read_bytes() == b"here"
    assert rule.hits == 1


@pytest.mark.parametrize("kind", ["503", "cut", "lost", "half request"])
@pytest.mark.parametrize("size", [1000, 12 << 20])
def test_an_upload_that_fails_is_made_again(folder: Location, proxy: Proxy, s3: S3, kind: str, size: int) -> None:
    content = os.urandom(size)
    rule = proxy.fail(kind, method="P*", key=f"{folder.key}/a", times=3)  # type: ignore[arg-type]
    with write_whole(folder / "a") as file:
        file.write(content)
    assert (folder / "a").read_bytes() == content
    assert rule.hits == 3


def test_a_store_that_stays_away_is_unreachable(folder: Location, proxy: Proxy) -> None:
    (folder / "a").write_bytes(b"here")
    proxy.fail("503", method="HEAD")
    with raises(Unreachable, "store-unreachable", shown=str(folder / "a")):
        (folder / "a").read_bytes()


def _write_and_die(file: Location) -> None:
    file.write_bytes(os.urandom(30 << 20))


def test_a_killed_upload_leaves_no_object(folder: Location, proxy: Proxy, s3: S3) -> None:
    proxy.fail("stall", method="PUT", key=f"{folder.key}/a", query="partNumber=3*", seconds=600)
    child = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(folder / "a",))
    child.start()
    while not any("partNumber=1" in request.query for request in proxy.requests):
        assert child.is_alive()
        child.join(0.05)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert not (folder / "a").exists()
    assert s3.uploads(folder.key) == [f"{folder.key}/a"]  # which a rule of the bucket aborts: see docs/STORAGE.md


def test_an_object_that_is_gone_while_it_is_read(folder: Location) -> None:
    (folder / "a").write_bytes(b"here, for a moment")
    opened = (folder / "a").open_object()
    (folder / "a").unlink()
    with pytest.raises(FileNotFoundError):
        opened.read_at(4, 0)


def test_parts_that_fail_for_good_publish_nothing(folder: Location, proxy: Proxy) -> None:
    proxy.fail("503", method="PUT", query="partNumber=2*")
    with pytest.raises(Unreachable):
        (folder / "a").write_bytes(os.urandom(25 << 20))
    assert not (folder / "a").exists()


# ---------------------------------------------------------------- other stores, through fsspec


def test_a_scheme_of_fsspec() -> None:
    """Its file system in memory: the same calls through another client."""
    folder = Location.parse("memory://bucket/things")
    with write_whole(folder / "a.txt") as file:
        file.write(b"12345")
    assert folder.sizes() == {"a.txt": 5} and (folder / "a.txt").read_bytes() == b"12345"
    assert (folder / "a.txt").read_range(2, 1) == b"23"
    with pytest.raises(FileNotFoundError):
        (folder / "b.txt").read_bytes()
    folder.remove()
    assert not (folder / "a.txt").exists()
