"""URIs in messages: no user, password, query or fragment reaches a ledger, log or report."""

import time
from pathlib import Path

import pytest
from helpers import TinyData, assert_verified, tiny_config

from neatpack.pipeline.cli import main
from neatpack.pipeline.config import UserError, place_of
from neatpack.pipeline.ingest.media import shown
from neatpack.pipeline.records import MAX_DETAIL, MediaError, MediaRef, Skip
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger
from neatpack.storage.clients import Unreachable
from neatpack.storage.location import Location
from neatpack.storage.uris import redact_uri, without_secrets

# Each hides the word "secret" somewhere else.
SECRETS = [
    "https://O'Neil:secret@host/a.png",
    'https://O"Neil:secret@host/a.png',
    "https://user:my secret word@host/a.png",
    "https://user:pa/secret@host/a.png",
    "https://user:12/secret@host/a.png",
    "https://user:pa?secret@host/a.png",
    "https://user:pa#secret@host/a.png",
    "https://us@er:secret/x@host/a.png",
    "https://user:p@ss:secret@host/a.png",
    "https://host/a.png#token=secret",
    "https://host/a.png?token=secret",
    "https://host/a.png?x='&token=secret word",
    "https://host/a b.png?token=secret",
    "https://host:80/a.png?mail=a@b&token=secret",
    "https://host?secret",
    "https://host#secret",
    "https://secret?x@host/a.png",
    "s3://AKIA:secret/with/slashes@bucket/a.png",
    "s3://bucket/a.png?endpoint_override=secret",
    "gs://secret@bucket/a.png",
    "ftp+ssl://me:secret@[::1]:21/a.png",
    "https://host/a;jsessionid=secret",
    "https://host/a;jsessionid=secret/b.png?x=1",
    "https://host;jsessionid=secret",
    "https://host;x=a:secret@b",
    "https:////user:secret@host/a.png",
    "https:///secret@host/a.png",
    "file:////user:secret@host/a.png",
    "x://user:secret@host/a.png",
    "https://host/x/https://user:secret@other/a.png",
]
# Not written with a scheme and //. A row that names them asks for a file of that name.
IRREGULAR = [
    "//user:secret@host/x",
    "//secret@host/x",
    "//user:my secret word@host/x",
    "//host/x?token=secret",
    "https:user:secret@host",
    "https:user:my secret word@host",
    "HTTPS:user:se/secret@host",
    "https:/user:secret@host",
    "https:/host/a.png?token=secret",
    "http:host/a;jsessionid=secret",
    "s3:AKIA:secret@bucket/a.png",
    "ftp:user:secret@host",
    "jdbc:x://user:secret@host",
    "jdbc:x://user:my secret word@host",
    "jdbc:sqlserver://host;user=x;password=secret",
    "1x://user:secret@host/a.png",
    "://user:secret@host/a.png",
    "user:secret@host/a.png",
    "user:'secret'@host/a.png",
    "dir/user:secret@host",
    ":secret@host",
    "C:user:secret@host",
    "C:/user:secret@host",
    "https:\\\\user:secret@host",
    "/media/https:user:secret@host/a.png",
    "/media/https:/user:secret@host/a.png",
    "/media/user:secret@host/a.png",
]


@pytest.mark.parametrize("uri", SECRETS)
def test_redacted_uri_has_no_secret(uri: str) -> None:
    assert "secret" not in redact_uri(uri)
    assert "secret" not in MediaRef(kind="image", path=uri).shown
    assert redact_uri(uri).startswith(uri[: uri.index("://") + 3]), "the scheme is shown"


@pytest.mark.parametrize("uri", IRREGULAR)
def test_secret_of_what_is_no_uri_is_hidden(uri: str) -> None:
    found = [redact_uri(uri), MediaRef(kind="image", path=uri).shown, shown(uri), shown({"url": uri}),
             Skip(reason="bad_row", detail=f"{uri!r} is outside of media_dir").detail]  # fmt: skip
    assert not [text for text in found if "secret" in text]
    assert [redact_uri(text) for text in found[:2]] == found[:2]


def test_no_output_of_a_run_has_a_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """As a path, as the path of an object, and as a key that nothing reads: in OUT, in what is printed and logged."""
    named = [each for uri in SECRETS + IRREGULAR for each in (uri, {"path": uri, "bytes": None}, {uri: uri})]
    rows = TinyData(tmp_path)
    for each in named:
        rows.row([("user", "<image>What?"), ("assistant", "That.")], images=[each])
    rows.row([("user", "What?"), ("assistant", "That.")])
    run_pack(tiny_config(rows.write(), tmp_path / "out", max_skipped=1.0))
    assert main(["skipped", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("missing_media") > len(named) // 2
    assert "secret" not in printed.out + printed.err + caplog.text
    lines = read_ledger(tmp_path / "out", assert_verified(tmp_path / "out")).to_pylist()
    assert [line["status"] for line in lines] == ["skipped"] * len(named) + ["packed"]
    assert not [line["detail"] for line in lines if "secret" in str(line)]


@pytest.mark.parametrize("uri", [uri for uri in SECRETS + IRREGULAR if " " not in uri])
@pytest.mark.parametrize("around", ["{}", "{}: no such object", "cannot read '{}'", 'cannot read "{}", sorry', "({})"])
def test_secret_in_the_text_of_a_library_is_removed(uri: str, around: str) -> None:
    text = around.format(uri)
    assert "secret" not in without_secrets(text)
    assert "secret" not in str(MediaError("bad_media", text))
    assert "secret" not in Skip(reason="bad_media", detail=text).detail
    assert "secret" not in str(Unreachable(text))


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/dir/a b.png",
        "https://host:8080/a@b.png",
        "https://[2001:db8::1]:443/a.png",
        "hdfs://name:8020/user/a.jsonl",
        "/media/what?#@.png",
        "C:/a@b.png",
        "C:\\a@b.png",
        "images/a@2x.png",
        "images/12:30.png",
        "/media/a;b@c.png",
        "//server/share/a.png",
        "file:///media/a@2x.png",
        "hdfs:///user/a@b.png",
    ],
)
def test_uri_without_secrets_is_shown_as_far_as_it_is_clear(text: str) -> None:
    # host:port and a path with @ could be user:password with a slash: hidden
    assert redact_uri(text) == ("https://…" if text == "https://host:8080/a@b.png" else text)


def test_redacted_text_stays_as_it_is() -> None:
    for uri in SECRETS:
        assert redact_uri(redact_uri(uri)) == redact_uri(uri)
        once = without_secrets(f"{redact_uri(uri)}: not found")
        assert once == f"{redact_uri(uri)}: not found"


@pytest.mark.parametrize("length", [100, 299, 1199, 1201, 5000])
def test_detail_that_is_cut_shows_no_half_of_a_password(length: int) -> None:
    for detail in (
        f"https://user:{'secret' * length}@host/a.png",
        f"{'x' * length} https://{'secret' * 1000}:pw@host/",
        f"https:user:{'secret' * length}@host/a.png",
        f"{'x' * length} //user:{'secret' * 1000}@host",
        f"{'x' * length} user:{'secret' * 1000}@host",
    ):
        found = Skip(reason="bad_row", detail=detail).detail
        assert "secret" not in found and len(found) <= MAX_DETAIL


@pytest.mark.parametrize(
    "unit",
    ["x", "x://", "x://a:b@", "'x://", "\"x://'", "a.b+c-", "://", "x://a:b ", "@ x://u:p ", "//", "// ", "'//",
     "//a:b@c ", "https:", "https:a@b ", "a:b@c ", "a:b@'", ":", "@", ":@'\"", "s3:;", "\\"],
    ids=repr,
)  # fmt: skip
def test_redaction_takes_linear_time(unit: str) -> None:
    """The CPU time of a text of twice the length; quadratic would be four times. 1 MB took an hour."""

    def seconds(times: int) -> float:
        text = unit * (times // len(unit))
        start = time.process_time()
        without_secrets(text)
        redact_uri(text)
        return time.process_time() - start

    small = large = float("inf")
    for _ in range(5):  # a busy machine may make one measurement longer
        small, large = min(small, seconds(250_000)), min(large, seconds(1_000_000))
        if large < 0.05 or large / small < 10:
            return
    pytest.fail(f"{large / small:.1f} times as long: 4 is linear, 16 quadratic")


@pytest.mark.parametrize("uri", ["s3://user:secret@bucket/out", "s3://user:se/cret@bucket/out"])
def test_password_in_a_flag_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(UserError) as caught:
        place_of("--out", uri)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "a?endpoint_override=127.0.0.1:9&scheme=http",
        "100%",
        "a%3Fb",
        "a%253Fb",
        "a#b",
        "a b",
        "a\nb\x7f",
        "a/../b",
        "ü?",
    ],
)
def test_object_name_survives_being_written_as_text(key: str) -> None:
    found = Location("s3", "bucket", f"dir/{key}", "region=x")
    assert Location.parse(found.uri) == found
    assert found.root == Location("s3", "bucket", "", "region=x")
    assert str(found).isprintable()


def test_object_name_is_taken_as_it_is_written() -> None:
    assert Location.parse("s3://bucket/my%20file #1.jpg") == Location("s3", "bucket", "my%20file #1.jpg")
