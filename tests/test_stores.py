"""Whole runs from and to an object store: the bytes are those of a run on disk, whatever fails on the way."""

import dataclasses
import errno
import io
import itertools
import json
import os
import signal
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faulty_proxy import Proxy, Request, faulty_proxy
from packing import packing
from places import DEMO_PROCESSOR
from s3_server import S3
from support.buckets import StorePath, create_bucket
from support.commands import main
from support.data import TinyData, clip, mixed_rows, picture
from support.errors import numbers_in, prints_code
from support.outputs import files_of
from support.packed import tiny_config

from neatpack import PackConfig, PackedShards, run_pack

pytestmark = [pytest.mark.slow, pytest.mark.net]

NUMBERS = itertools.count()

SOURCES = "sources.json"  # tells where data lie, and so differs
ASKED = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "That."}]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines with pictures and a video beside them, parquet and a tar with pictures inside."""
    folder = tmp_path_factory.mktemp("data")
    rows = mixed_rows(TinyData(folder), 20, 8)
    clip(folder / "clip.mp4")
    rows.row([("user", "<video>What?"), ("assistant", "A clip.")], videos=["clip.mp4"])
    rows.row([("user", "<image>What?"), ("assistant", "Nothing.")], images=["gone.png"])
    rows.write()
    pictures = [picture(folder / "in" / f"{i}.jpg", 60 + i, 80).read_bytes() for i in range(3)]
    table = pa.table({"messages": [ASKED] * 3, "images": [[{"bytes": each, "path": None}] for each in pictures]})
    pq.write_table(table, folder / "more.parquet")
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for number, each in enumerate(pictures):
            said = json.dumps({"messages": ASKED}).encode()
            for name, content in ((f"{number}.jpg", each), (f"{number}.json", said)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    meta = {
        "lines": {"file_name": "rows.jsonl", "media_dir": "."},
        "parquet": {"file_name": "*.parquet"},
        "tar": {"file_name": "shard.tar"},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run on disk gives."""
    out = tmp_path_factory.mktemp("local") / "out"
    run_pack(tiny_config(data / "meta.json", out, max_skipped=1.0))
    return without_sources(files_of(out))


@pytest.fixture
def proxy(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Of a bucket that no other test has. Waits before further tries are cut short."""
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.02)))
    with faulty_proxy(create_bucket(s3, f"stores-{next(NUMBERS)}-{os.getpid()}")) as proxy:
        for name, value in proxy.env.items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def bucket(proxy: Proxy, s3: S3, data: Path) -> StorePath:
    """A folder in the bucket, with the data in it and nothing else. The tests themselves go past the proxy."""
    folder = StorePath(dataclasses.replace(s3, bucket=proxy.s3.bucket), "here")
    for file in data.rglob("*"):
        if file.is_file():
            (folder / "data" / str(file.relative_to(data))).write_bytes(file.read_bytes())
    proxy.requests.clear()
    return folder


def without_sources(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return files of an output without what says where its data lie: sources.json and its digest in the manifest."""
    del files[SOURCES]
    manifest = json.loads(files["manifest.json"])
    del manifest["files"][SOURCES], manifest["digest"]
    return files | {"manifest.json": json.dumps(manifest).encode()}


def config_in(bucket: StorePath, **overrides: Any) -> PackConfig:
    local = tiny_config(Path("meta"), Path("out"), max_skipped=1.0)
    return dataclasses.replace(local, meta=(bucket / "data" / "meta.json").uri, out=(bucket / "out").uri, **overrides)


def stored(bucket: StorePath) -> dict[str, bytes]:
    """As `files_of`, of a store."""
    out = bucket / "out"
    names = {file.relative_to(out): file for file in out.files()}
    is_kept = {name for name in names if not name.startswith("work/") and "report.html" not in name}
    return without_sources({name: file.read_bytes() for name, file in names.items() if name in is_kept})


def about(requests: list[Request], *methods: str) -> list[str]:
    return [request.key for request in requests if request.method in methods]


def test_from_and_to_a_store_as_on_disk(bucket: StorePath, proxy: Proxy, expected: Mapping[str, bytes]) -> None:
    packed = run_pack(config_in(bucket))
    assert packed.manifest.counts.skipped == {"missing_media": 1}
    assert stored(bucket) == expected
    media = [key for key in about(proxy.requests, "GET") if key.endswith((".png", ".mp4"))]
    assert 9 <= len(media) <= 2 * 9 + 8  # once to measure, once to render; a video by ranges

    before = len(proxy.requests)
    assert run_pack(config_in(bucket)).already_done
    again = proxy.requests[before:]
    out = (bucket / "out").key
    assert {key for key in about(again, "PUT", "POST") if not key.endswith("/")} == {f"{out}/work/lock"}
    read = {key.removeprefix(f"{out}/") for key in about(again, "GET") if key.startswith(f"{out}/")}
    assert not any(name.startswith(("shards/", "work/measured/", "work/plans/", "work/done/")) for name in read)
    assert not any(key.endswith((".png", ".mp4")) for key in about(again, "GET"))
    assert proxy.s3.uploads(bucket.key) == []


def test_everything_reads_it(bucket: StorePath, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The commands, and the loader."""
    run_pack(config_in(bucket))
    out = (bucket / "out").uri
    assert main(["verify", out, "--engine", "inline"]) == 0
    assert 36 in numbers_in(capsys.readouterr().out.removeprefix(out))
    assert main(["skipped", out, "--follow-sources"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{bucket}/data/rows.jsonl:30: lines row 29: missing_media: gone.png: ")
    assert told.count("\n") == 1
    assert main(["inspect", out, "--sql", "select count(*) as rows from ledger"]) == 0
    assert "36" in capsys.readouterr().out
    assert main(["show", out, "0", "--doc", "0"]) == 0
    assert "⟦" in capsys.readouterr().out
    assert main(["report", out]) == 0 and main(["diff", out, out]) == 0
    packs = PackedShards(out)
    assert sum(1 for _ in packs) == len(packs) > 2
    copy = tmp_path / "copy"
    for file in (bucket / "out").files():
        if "/work/" not in file.key:
            target = copy / file.relative_to(bucket / "out")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    here, there = (next(iter(PackedShards(where)))["input_ids"].tolist() for where in (copy, out))
    assert here == there


def test_a_processor_in_the_bucket_and_work_elsewhere(
    bucket: StorePath, expected: Mapping[str, bytes], tmp_path: Path
) -> None:
    for file in DEMO_PROCESSOR.iterdir():
        (bucket / "models" / "tiny" / file.name).write_bytes(file.read_bytes())
    config = config_in(bucket, processor=(bucket / "models" / "tiny").uri, work=str(tmp_path / "work"))
    run_pack(config)
    assert stored(bucket) == expected
    assert json.loads((bucket / "out" / SOURCES).read_bytes())["processor"] == "tiny"
    assert not (bucket / "out" / "work" / "measured").exists()


def test_faults_all_the_way(bucket: StorePath, proxy: Proxy, expected: Mapping[str, bytes]) -> None:
    """One request in five fails, in all the ways that stores fail."""
    rules = [
        proxy.fail(kind, share=0.05, seed=number)  # type: ignore[arg-type]
        for number, kind in enumerate(("503", "500", "cut", "half answer"))
    ]
    run_pack(config_in(bucket))
    assert all(rule.hits for rule in rules)
    proxy.rules.clear()
    assert stored(bucket) == expected


def skipped_rows(out: StorePath, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["skipped", out.uri]) == 0
    return [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]


def test_refused_and_unanswered_media_cost_their_rows(
    bucket: StorePath, proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.fail("403", key=f"{bucket.key}/data/21.png")
    flags = ["--processor", str(DEMO_PROCESSOR), "--pack-size", "512", "--engine", "inline", "--max-skipped", "1"]
    command = ["pack", "--meta", (bucket / "data/meta.json").uri, "--out", (bucket / "out").uri, *flags]
    rule = proxy.fail("503", key=f"{bucket.key}/data/2[2-5].png")
    assert main(command) == 0
    assert rule.hits
    lines = skipped_rows(bucket / "out", capsys)
    told = [line.partition(": missing_media: ")[::2] for line in lines]
    assert [(row, detail.partition(": ")[0]) for row, detail in told] == [
        *((f"lines row {row}", f"{row}.png") for row in (21, 22, 23, 24, 25)),
        ("lines row 29", "gone.png"),
    ]
    assert os.strerror(errno.EACCES) in told[0][1] and os.strerror(errno.ENOENT) in told[-1][1]


@pytest.mark.parametrize("how", [{"cell": "0/0/image"}, {"offset": 0, "length": 9}])
def test_unanswered_parts_of_files_cost_their_rows(
    how: dict[str, Any], bucket: StorePath, proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.dumps({"messages": ASKED, "images": [{"path": f"dead/{number}", **how}]}) for number in range(4)]
    rows.append(json.dumps({"messages": ASKED, "images": ["22.png"]}))
    (bucket / "data/parts.jsonl").write_bytes("\n".join(rows).encode())
    meta = {"parts": {"file_name": "parts.jsonl", "media_dir": "."}}
    (bucket / "data/parts.json").write_bytes(json.dumps(meta).encode())
    proxy.fail("503", key=f"{bucket.key}/data/dead/*")
    flags = ["--processor", str(DEMO_PROCESSOR), "--pack-size", "512", "--engine", "inline", "--max-skipped", "1"]
    assert main(["pack", "--meta", (bucket / "data/parts.json").uri, "--out", (bucket / "out").uri, *flags]) == 0
    assert [line.partition(": missing_media: ")[::2] for line in skipped_rows(bucket / "out", capsys)] == [
        (f"parts row {row}", f"dead/{row}: its store does not answer") for row in range(4)
    ]


def test_store_that_loses_many_media_stops_the_run(
    bucket: StorePath, proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message names the store and how many. Once it answers, the same command packs every row."""
    rows = [json.dumps({"messages": ASKED, "images": [f"dead/{number}.png"]}) for number in range(60)]
    (bucket / "data/many.jsonl").write_bytes("\n".join(rows).encode())
    (bucket / "data/many.json").write_bytes(
        json.dumps({"many": {"file_name": "many.jsonl", "media_dir": "."}}).encode()
    )
    for number in range(60):
        (bucket / f"data/dead/{number}.png").write_bytes((bucket / "data/22.png").read_bytes())
    proxy.fail("503", key=f"{bucket.key}/data/dead/*")
    flags = ["--processor", str(DEMO_PROCESSOR), "--pack-size", "512", "--engine", "inline"]
    command = ["pack", "--meta", (bucket / "data/many.json").uri, "--out", (bucket / "out").uri, *flags]
    assert main(command) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert prints_code(last, "store-unreachable") and last.startswith(f"neatpack: s3://{proxy.s3.bucket} ")
    assert 21 in numbers_in(last), "media that a store may lose, and one"
    assert not (bucket / "out" / "manifest.json").exists()
    proxy.rules.clear()
    assert main(command) == 0
    assert skipped_rows(bucket / "out", capsys) == []


def test_no_credential_is_written_down(bucket: StorePath, proxy: Proxy, capsys: pytest.CaptureFixture[str]) -> None:
    run_pack(config_in(bucket, record_paths=True))
    everything = b"".join(file.read_bytes() for file in (bucket / "out").files())
    told = "".join(capsys.readouterr())
    for secret in (proxy.s3.access_key, proxy.s3.secret_key):
        assert secret.encode() not in everything and secret not in told


def flags_for(bucket: StorePath) -> list[str]:
    where = ["--meta", (bucket / "data/meta.json").uri, "--out", (bucket / "out").uri]
    shape = ["--processor", str(DEMO_PROCESSOR), "--pack-size", "512", "--shard-mb", "1", "--group-size", "4",
             "--pixels", "u8"]  # fmt: skip
    return [*where, *shape, "--max-skipped", "1", "--engine", "inline"]


def test_killed_again_and_again(bucket: StorePath, proxy: Proxy, expected: Mapping[str, bytes]) -> None:
    """At requests of every stage. What is finished is neither read nor written again."""
    out = (bucket / "out").key
    done: dict[str, bytes] = {}
    with packing() as run:
        for pattern in ("work/measured/*.arrow", "work/done/000000.json", "index.parquet"):
            rule = proxy.fail("stall", method="PUT", key=f"{out}/{pattern}", seconds=600)
            run.start(flags_for(bucket), os.environ)
            while not rule.hits:
                assert run.lives(), f"ended before {pattern}"
                time.sleep(0.02)
            before = [request for request in proxy.requests if request.method == "PUT"]
            run.kill()
            assert run.wait() == -signal.SIGKILL
            proxy.rules.clear()
            assert before and not (bucket / "out" / "manifest.json").exists()
            finished = (bucket / "out" / "work" / "done").files()
            done |= {file.key: b"" for file in finished if file.suffix == ".json"}
            proxy.requests.clear()
    run_pack(config_in(bucket))
    assert stored(bucket) == expected
    written = set(about(proxy.requests, "PUT"))
    tars = {key.replace("/work/done/", "/shards/pack-").replace(".json", ".tar") for key in done}
    assert tars and not written & tars
    assert not any("/work/measured/" in key for key in written)
