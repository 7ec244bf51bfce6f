"""The S3 server of the tests is a real one, and the proxy before it fails as it is told to."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException, IncompleteRead, RemoteDisconnected

import pyarrow.fs
import pytest
from faulty_proxy import Proxy, faulty_proxy
from s3_server import PATIENCE, S3, remove_sockets

BIG = bytes(range(256)) * 46_875  # 12 MB: two parts of pyarrow's 10 MB


@pytest.fixture
def proxy(s3) -> Iterator[Proxy]:
    with faulty_proxy(s3) as between:
        yield between


def used(store: S3 | Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pyarrow opens from now on is there; connections and credentials are those of the environment alone."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, text in store.env.items():
        monkeypatch.setenv(name, text)


def opened(s3: S3, key: str) -> tuple[pyarrow.fs.FileSystem, str]:
    return pyarrow.fs.FileSystem.from_uri(s3.uri(key))


# The server


def test_pyarrow_finds_the_server_by_the_standard_chain(s3, monkeypatch):
    used(s3, monkeypatch)
    files, path = opened(s3, "trip/a b/ü+%41.bin")
    with files.open_output_stream(path) as stream:
        stream.write(b"hello world")
    with files.open_input_file(path) as stream:
        assert stream.read_at(3, 6) == b"wor"
    listed = files.get_file_info(pyarrow.fs.FileSelector("bucket/trip", recursive=True))
    assert {info.path: info.size for info in listed} == {"bucket/trip/a b": None, "bucket/trip/a b/ü+%41.bin": 11}
    assert s3.keys("trip/") == ["trip/a b/ü+%41.bin"]
    files.delete_file(path)
    assert s3.request("HEAD", "trip/a b/ü+%41.bin").status == 404


def test_a_wrong_key_is_refused(s3, monkeypatch):
    assert s3.request("PUT", "refused/a", body=b"1").status == 200
    wrong = replace(s3, secret_key="another secret")
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        assert wrong.request(method, "refused/a").status == 403
    assert b"SignatureDoesNotMatch" in wrong.request("GET", "refused/a").body
    assert b"InvalidAccessKeyId" in replace(s3, access_key="nobody").request("GET", "refused/a").body
    assert s3.request("GET", "refused/a").body == b"1"
    used(wrong, monkeypatch)
    files, path = opened(s3, "refused/a")
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        files.get_file_info(path)


def test_a_multipart_upload_is_seen_until_it_is_complete(s3, monkeypatch):
    used(s3, monkeypatch)
    files, path = opened(s3, "parts/big")
    with files.open_output_stream(path) as stream:
        stream.write(BIG)
        assert s3.uploads("parts/") == ["parts/big"]
        assert s3.keys("parts/") == []
    assert s3.uploads("parts/") == []
    answer = s3.request("GET", "parts/big")
    assert answer.body == BIG
    assert answer.headers["etag"].endswith('-2"')


def test_an_upload_can_be_aborted(s3):
    begun = s3.request("POST", "aborted/a", query={"uploads": ""}).body.decode()
    upload = begun.partition("<UploadId>")[2].partition("</UploadId>")[0]
    part = s3.request("PUT", "aborted/a", query={"partNumber": "1", "uploadId": upload}, body=b"1")
    assert part.status == 200
    assert s3.uploads("aborted/") == ["aborted/a"]
    assert s3.request("DELETE", "aborted/a", query={"uploadId": upload}).status == 204
    assert s3.uploads("aborted/") == s3.keys("aborted/") == []


def test_a_conditional_put_keeps_what_is_there(s3):
    assert s3.request("PUT", "once/a", body=b"first", if_none_match="*").status == 200
    assert s3.request("PUT", "once/a", body=b"second", if_none_match="*").status == 412
    assert s3.request("GET", "once/a").body == b"first"


def test_an_etag_is_the_md5_and_can_be_asked_for(s3):
    put = s3.request("PUT", "tagged/a", body=b"hello world")
    assert put.headers["etag"] == s3.request("HEAD", "tagged/a").headers["etag"] == '"5eb63bbbe01eeed093cb22bb8f5acdc3"'
    assert s3.request("GET", "tagged/a", if_match='"0"').status == 412


def test_lists_go_over_pages(s3):
    for number in range(1001):  # a page has 1,000
        assert s3.request("PUT", f"pages/{number:04}").status == 200
    assert s3.keys("pages/") == [f"pages/{number:04}" for number in range(1001)]


# The proxy


def test_pyarrow_round_trip_through_the_proxy(s3, proxy, monkeypatch):
    used(proxy, monkeypatch)
    files, path = opened(s3, "through/big")
    with files.open_output_stream(path) as stream:
        stream.write(BIG)
    with files.open_input_file(path) as stream:
        assert stream.read_at(10, 5) == BIG[5:15]
    assert s3.request("GET", "through/big").body == BIG
    got = [(asked.method, asked.key, asked.range, asked.status) for asked in proxy.requests]
    assert got == [
        ("POST", "through/big", None, 200),
        ("PUT", "through/big", None, 200),
        ("PUT", "through/big", None, 200),
        ("POST", "through/big", None, 200),
        ("HEAD", "through/big", None, 200),
        ("GET", "through/big", "bytes=5-14", 206),
    ]
    assert proxy.num("PUT", "through/*", "partNumber=2&uploadId") == 1


@pytest.mark.parametrize(("kind", "code"), [("503", b"SlowDown"), ("500", b"InternalError"), ("403", b"AccessDenied")])
def test_a_status_is_answered_as_often_as_told(s3, proxy, kind, code):
    s3.request("PUT", f"status/{kind}", body=b"1")
    rule = proxy.fail(kind, method="GET", key="status/*", times=2)
    answers = [proxy.s3.request("GET", f"status/{kind}") for _ in range(3)]
    assert [answer.status for answer in answers] == [int(kind), int(kind), 200]
    assert code in answers[0].body
    assert rule.hits == 2
    assert [(asked.status, asked.fault) for asked in proxy.requests] == [(int(kind), kind)] * 2 + [(200, None)]


def test_only_what_the_patterns_say_fails(proxy):
    proxy.fail("503", method="PUT", key="named/a*", query="partNumber=2")
    asks = [("PUT", "named/a1", "2"), ("PUT", "named/b1", "2"), ("PUT", "named/a1", "1"), ("GET", "named/a1", "2")]
    got = [proxy.s3.request(method, key, query={"partNumber": part}).status for method, key, part in asks]
    assert got[0] == 503
    assert 503 not in got[1:]
    proxy.heal()
    assert proxy.s3.request("PUT", "named/a1").status == 200


def test_a_connection_is_cut_before_the_answer(s3, proxy):
    proxy.fail("cut", method="PUT", key="cut/*", times=1)
    with pytest.raises((RemoteDisconnected, ConnectionError)):
        proxy.s3.request("PUT", "cut/a", body=b"1")
    assert s3.keys("cut/") == []
    assert proxy.s3.request("PUT", "cut/a", body=b"1").status == 200
    assert [asked.status for asked in proxy.requests] == [None, 200]


def test_an_answer_is_lost_though_the_server_did_it(s3, proxy):
    proxy.fail("lost", method="PUT", key="lost/*")
    with pytest.raises((RemoteDisconnected, ConnectionError)):
        proxy.s3.request("PUT", "lost/a", body=b"1")
    assert s3.keys("lost/") == ["lost/a"]


def test_a_request_that_is_cut_in_the_middle_leaves_no_object(s3, proxy):
    proxy.fail("half request", key="halved/*")
    with pytest.raises((RemoteDisconnected, ConnectionError)):
        proxy.s3.request("PUT", "halved/a", body=BIG)
    proxy.heal()
    assert proxy.s3.request("PUT", "halved/b", body=BIG).status == 200  # the server is well
    assert s3.keys("halved/") == ["halved/b"]


def test_an_answer_is_cut_in_the_middle(s3, proxy):
    s3.request("PUT", "torn/a", body=b"hello world")
    proxy.fail("half answer", method="GET")
    with pytest.raises(IncompleteRead) as raised:
        proxy.s3.request("GET", "torn/a")
    assert raised.value.partial == b"hello"


def test_a_stall_ends_after_its_time(s3, proxy):
    s3.request("PUT", "slow/a", body=b"hello world")
    proxy.fail("stall", times=1, seconds=0.3)
    before = time.monotonic()
    assert proxy.s3.request("GET", "slow/a").body == b"hello world"
    assert time.monotonic() - before >= 0.3


def test_a_stall_ends_with_the_proxy(s3):
    def ask(through: S3) -> None:
        with suppress(OSError, HTTPException):
            through.request("HEAD", "slow/b")

    with faulty_proxy(s3) as between:
        rule = between.fail("stall", seconds=1000)
        asking = threading.Thread(target=ask, args=(between.s3,), daemon=True)
        asking.start()
        while rule.hits == 0:
            time.sleep(0.01)
    asking.join(PATIENCE)
    assert not asking.is_alive()


def test_a_trickle_has_its_rate(s3, proxy):
    s3.request("PUT", "trickle/a", body=bytes(100))
    proxy.fail("trickle", times=1, rate=200)
    before = time.monotonic()
    assert proxy.s3.request("GET", "trickle/a").body == bytes(100)
    assert time.monotonic() - before >= 0.4  # ten pieces of ten bytes, every 50 ms


def test_a_share_is_drawn_by_the_seed_and_not_by_the_order(s3):
    def failed(keys: list[str], seed: int) -> set[str]:
        with faulty_proxy(s3) as proxy:
            proxy.fail("503", method="HEAD", share=0.5, seed=seed)
            return {key for key in keys if proxy.s3.request("HEAD", key).status == 503}

    keys = [f"share/{number}" for number in range(20)]
    first = failed(keys, 1)
    assert 0 < len(first) < 20
    assert failed(keys[::-1], 1) == first != failed(keys, 2)


def test_an_upload_by_pyarrow_that_is_cut_for_good_leaves_no_object(s3, proxy, monkeypatch):
    """But the upload stays: pyarrow does not abort it."""
    used(proxy, monkeypatch)
    retries = pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=2)
    # Made by its class, it does not look at AWS_ENDPOINT_URL.
    files = pyarrow.fs.S3FileSystem(retry_strategy=retries, endpoint_override=proxy.s3.endpoint)
    rule = proxy.fail("half request", key="broken/*", query="partNumber=2&uploadId")
    with pytest.raises(OSError, match="broken/big"), files.open_output_stream("bucket/broken/big") as stream:
        stream.write(BIG)
    assert rule.hits == 2
    assert s3.keys("broken/") == []
    assert s3.uploads("broken/") == ["broken/big"]


def test_a_server_ends_with_the_process_that_started_it(s3, tmp_path):
    """Also when that one is killed; what stays is the folder."""
    code = """if True:
        import os, signal, sys
        from pathlib import Path
        from s3_server import s3_server
        with s3_server(Path(sys.argv[1])) as s3:
            print(s3.endpoint, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=os.path.dirname(__file__), capture_output=True, text=True
    )
    there = replace(s3, endpoint=done.stdout.strip())
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            there.request("GET")
        except ConnectionRefusedError:
            remove_sockets(tmp_path / "server0")
            return
        except (OSError, HTTPException):
            pass  # it ends just now
    pytest.fail("the server goes on")
