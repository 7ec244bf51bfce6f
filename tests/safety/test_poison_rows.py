"""Rows that mean harm among good ones: the run ends well, each row is in the ledger, and good ones are packed."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attacks import plant_modules, posting_jobs
from helpers import DEMO_PROCESSOR, ROOT, TinyData, assert_verified, clip, picture
from hostile import slow_jpeg
from listener import CREDENTIALS, Listener, listening

from neatpack.format.manifest import Manifest
from neatpack.pipeline.shard.verify import read_ledger

pytestmark = pytest.mark.slow

GOOD = 100
SECONDS = 1200  # a machine may be busy; that a run ends at all is what is looked at
# Python runs this before the command, which forks before it imports anything heavy, and after each crash again: with
# this, what takes seconds to import is there before the first fork.
IMPORTED = """
import torch, transformers, neatpack.pipeline.run
from transformers import AutoTokenizer, PreTrainedTokenizerFast
"""
FEW_RETRIES = """
import neatpack.pipeline.runtime.journal
neatpack.pipeline.runtime.journal.MAX_RETRIES = 2
"""


def asked(question: str, answer: str = "Me.", **columns: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **columns}


def nested(levels: int) -> Any:
    value: Any = "a"
    for number in range(levels):
        value = {"a": value} if number % 2 else [value]
    return value


def with_image(entry: Any) -> dict[str, Any]:
    return asked("<image>Who?", images=[entry])


def bad_cells(folder: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Rows by name, and the reason that the ledger gives."""
    names = ("text", "number", "numbers")
    columns = {"text": ["a"], "number": [1 << 40], "numbers": [[1, 2]], "image": [b"abc"]}
    pq.write_table(pa.table(columns), folder / "cells.parquet")
    cells = [
        *(f"0/0/{name}" for name in names),
        "2147483647/0/image",
        "4294967296/0/image",
        "0/9223372036854775807/image",
    ]
    reasons = dict.fromkeys(cells[:4], "bad_media") | dict.fromkeys(cells[4:], "bad_row")
    return {f"cell {cell}": (with_image({"path": "cells.parquet", "cell": cell}), reasons[cell]) for cell in cells}


def reaching(folder: Path, address: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Rows that name hosts, stores and files of others; `address`: of a listener that nobody may connect to."""
    options = f"endpoint_override={address}&scheme=http"
    paths = [
        f"s3://bucket/x.jpg?{options}", f"gs://bucket/x.jpg?{options}", f"hdfs://{address}/x.jpg", "s3://any-bucket/key",
        f"s3://key:secret@bucket/x.jpg?{options}", f"http://{address}/x.jpg", f"https://user:secret@{address}/x.jpg",
        f"x.png?{options}", "/etc/hostname", "../../etc/hostname", f"file:///dev/zero?{options}",
    ]  # fmt: skip
    found = {f"reaches {number}": (with_image(path), "missing_media") for number, path in enumerate(paths)}
    (folder / "a.eps").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n"
    )
    (folder / "a.m3u8").write_text(f"#EXTM3U\n#EXTINF:9,\nhttp://{address}/a.ts\n#EXT-X-ENDLIST\n")
    os.mkfifo(folder / "pipe.png")
    found |= {f"opens {name}": (with_image(name), "bad_media") for name in ("a.eps", "pipe.png")}
    return found | {"opens a playlist": (asked("<video>Who?", videos=["a.m3u8"]), "bad_media")}


def poison(folder: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Rows by name, and the reason that the ledger gives."""
    picture(folder / "small.png", 20, 30)
    clip(folder / "clip.mp4")
    tools = [{"type": "function", "function": {"name": "f", "parameters": nested(600)}}]
    rows = {
        "deep tools": asked("Who?", tools=tools),
        "deep tools as text": asked("Who?", tools=json.dumps(tools)),
        "deep column": asked("Who?", more=nested(400)),
        "deep call": {
            "messages": [
                {"role": "user", "content": "Who?"},
                {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": nested(300)}}]},
            ]
        },
        "min_pixels": with_image({"path": "small.png", "min_pixels": 10**13}),
        "min_pixels that fit 32 bits": with_image({"path": "small.png", "min_pixels": 2 * 10**9}),
        "many large pictures": asked(
            "<image>" * 400, images=[{"path": "small.png", "resized_height": 3500, "resized_width": 3500}] * 400
        ),
        "resized_height": with_image({"path": "small.png", "resized_height": 10**13, "resized_width": 1}),
        "an URL": with_image("http://" + "a" * 10**6),
        "spaces": asked(" " * 11_000_000 + "x"),
        "a long text": asked("Count.", "1 " * 10_000_000),
        "base64 and spaces": with_image("iVBORw0KGgo" + "A" * 60 + " " * 10**6 + "!"),
        "spaces in a tag": asked("<img>" + " " * 10**6 + "</"),
        "tags": asked("<img>" * 10**5),
        "media": asked("<image>" * 5000, images=["small.png"] * 5000),
        "many frames": asked("<video>", videos=[{"path": "clip.mp4", "nframes": 2147483647}]),
        "a high rate": asked("<video>", videos=[{"path": "clip.mp4", "fps": 990000000}]),
        "a rate of nothing": asked("<video>", videos=[{"path": "clip.mp4", "fps": 1e-300}]),
        "frames": asked("<video>", videos=[["small.png"] * 200_000]),
        "as many frames as may be": asked("<video>", videos=[["small.png"] * 65_536]),
        "as many pictures as may be": asked("<image>" * 4096, images=["small.png"] * 4096),
        "as many videos as may be": asked("<video>" * 4096, videos=["clip.mp4"] * 4096),
        "index": {
            "messages": [
                {"role": "user", "content": [{"type": "image", "index": index} for index in range(20_000)]},
                {"role": "assistant", "content": "Me."},
            ],
            "images": ["small.png"] * 20_000,
        },
    }
    reasons = dict.fromkeys(rows, "bad_row") | {
        "min_pixels that fit 32 bits": "overlong", "many large pictures": "overlong", "spaces in a tag": "overlong",
        "tags": "overlong", "a long text": "overlong", "base64 and spaces": "missing_media",
        "as many frames as may be": "overlong", "as many pictures as may be": "overlong",
        "as many videos as may be": "overlong", "many frames": "", "a high rate": "",
    }  # fmt: skip
    return {name: (row, reasons[name]) for name, row in rows.items()}


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run of the command that ended well."""

    seconds: float
    largest: float  # GB of its largest process
    said: str
    answers: dict[int, int]  # of ports to a job without a token


def packed(data: TinyData, site: str, *flags: str, more: dict[str, Any] | None = None) -> Ran:
    """Run the command in the folder of the data, where modules are planted, with credentials in the environment."""
    folder = data.folder.parent
    meta = data.write()
    meta.write_text(json.dumps(json.loads(meta.read_text()) | (more or {})))
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(site)
    plant_modules(data.folder, folder / "ran")
    command = [sys.executable, "-P", "-m", "neatpack.pipeline.cli", "pack", "--meta", meta.name, "--processor",
               str(DEMO_PROCESSOR), "--out", "../out", "--pack-size", "2048", "--max-skipped", "1", *flags]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment |= CREDENTIALS | {"PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)])}
    start = time.monotonic()
    with open(folder / "said", "w+") as said:
        process = subprocess.Popen(command, cwd=data.folder, env=environment, stderr=said, stdout=said, text=True)
        with posting_jobs(process, f"touch {folder / 'ran'}") as answers:
            code, largest = waited(process)
        assert code == 0, (folder / "said").read_text()[-3000:]
    assert not (folder / "ran").exists(), (folder / "ran").read_text()
    return Ran(seconds=time.monotonic() - start, largest=largest, said=(folder / "said").read_text(), answers=answers)


def waited(process: subprocess.Popen[str]) -> tuple[int, float]:
    """The exit code of a process, and the GB of the largest among it and its children.

    What `wait4` says begins with the memory of this process, from which that one was forked.
    """
    until, largest = time.monotonic() + SECONDS, 0.0
    while process.poll() is None:
        if time.monotonic() > until:
            process.kill()
            raise AssertionError(f"no end within {SECONDS} s")
        with suppress(psutil.Error):
            family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
            largest = max(largest, *map(peak_gb, family))
        time.sleep(0.1)
    return process.returncode, largest


def peak_gb(pid: int) -> float:
    """The most memory that a process has had since its program began."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / 2**20 if found else 0.0
    return 0.0


def outcomes(data: TinyData) -> dict[str, str]:
    """Of each row, by the id that it has: the reason, "" where it is packed."""
    out = data.folder.parent / "out"
    assert_verified(out)
    lines = [line for line in read_ledger(out, Manifest.read(out)).to_pylist() if line["dataset"] == "tiny"]
    assert sorted(line["row"] for line in lines) == list(range(len(data.rows)))
    return {data.rows[line["row"]]["id"]: line["reason"] for line in lines}


def add_good(data: TinyData) -> None:
    for number in range(GOOD):
        if number % 5 == 0:
            picture(data.folder / f"{number}.png", 40 + number, 60)
        picked = {"images": [f"{number}.png"]} if number % 5 == 0 else {}
        data.rows.append(
            asked(f"{'<image>' * len(picked)}Count to {number}.", f"{number}", id=f"good {number}", **picked)
        )


def add(data: TinyData, rows: dict[str, tuple[dict[str, Any], str]]) -> dict[str, str]:
    """Rows between the good ones. The outcomes that all are expected to have."""
    add_good(data)
    for number, (name, (row, _)) in enumerate(rows.items()):
        data.rows.insert(number * 7 % len(data.rows), {**row, "id": name})
    return {f"good {number}": "" for number in range(GOOD)} | {name: reason for name, (_, reason) in rows.items()}


def slow(folder: Path, num_files: int, num_again: int) -> dict[str, tuple[dict[str, Any], str]]:
    """Rows with pictures that take half a minute to decode, and rows with the first of them again."""
    slow_jpeg(folder / "slow-0.jpg", scans=1500)
    for number in range(1, num_files):
        (folder / f"slow-{number}.jpg").write_bytes((folder / "slow-0.jpg").read_bytes())
    names = [*(f"slow-{number}.jpg" for number in range(num_files)), *["slow-0.jpg"] * num_again]
    return {f"{number}: {name}": (with_image(name), "bad_media") for number, name in enumerate(names)}


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as found:
        yield found


def assert_kept(data: TinyData, secret: bytes = CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode()) -> None:
    """No credential, and no password of a row, is in the output or in what was said."""
    folder = data.folder.parent
    for file in (folder / "said", *(folder / "out").rglob("*")):
        if file.is_file():
            content = file.read_bytes()
            assert secret not in content and b":secret@" not in content, file


def test_poison_rows_cost_themselves(tmp_path: Path, listener: Listener) -> None:
    data = TinyData(tmp_path / "data")
    rows = poison(data.folder) | bad_cells(data.folder) | reaching(data.folder, listener.address)
    expected = add(data, rows)
    ran = packed(data, "", "--engine", "inline")
    print(f"{ran.seconds:.0f} s, {ran.largest:.1f} GB")
    assert outcomes(data) == expected
    assert listener.num_connections == 0
    assert ran.largest < 6
    assert "going on in another" not in ran.said
    assert_kept(data)


def test_media_of_a_row_share_one_budget(tmp_path: Path) -> None:
    """40 references to a picture of a third of a second, where a row has one; as pictures, and as frames of a video."""
    data = TinyData(tmp_path / "data")
    slow_jpeg(data.folder / "slow.jpg", scans=20)
    turns = [
        {"role": "user", "content": "<image>Who?"},
        {"role": "assistant", "content": "Me."},
    ]
    rows = {
        "pictures": (asked("<image>" * 40, images=["slow.jpg"] * 40), "bad_media"),
        "pictures of many turns": ({"messages": turns * 40, "images": ["slow.jpg"] * 40}, "bad_media"),
        "frames": (asked("<video>", videos=[["slow.jpg"] * 40]), "bad_media"),
    }
    expected = add(data, rows)
    flags = ("--engine", "inline", "--media-timeout", "1", "--max-pixels", "3136", "--video-max-pixels", "3136")
    packed(data, IMPORTED, *flags)
    assert outcomes(data) == expected


def test_more_slow_pictures_than_restarts(tmp_path: Path) -> None:
    """Each ends the process once; a picture that is named again, not even that."""
    data = TinyData(tmp_path / "data")
    expected = add(data, slow(data.folder, 22, 3))
    flags = ("--engine", "inline", "--media-timeout", "0.2", "--max-pixels", "20000")
    ran = packed(data, IMPORTED, *flags)
    print(f"{ran.seconds:.0f} s, {ran.largest:.1f} GB")
    assert outcomes(data) == expected
    assert ran.said.count("going on in another") == 22


def test_poison_rows_cost_themselves_on_ray(tmp_path: Path, listener: Listener) -> None:
    """Jobs sent to Ray's ports, planted modules, files of the machine, bad cells and slow pictures, all at once.

    With two retries instead of twenty: a worker takes seconds to start.
    """
    datasets = pytest.importorskip("datasets")
    data = TinyData(tmp_path / "data")
    rows = bad_cells(data.folder) | reaching(data.folder, listener.address) | slow(data.folder, 5, 2)
    expected = add(data, rows)
    secret = picture(tmp_path / "secret" / "secret.png", 50, 70)
    paths = [str(secret), "/dev/zero", str(data.folder / "pipe.png"), "/etc/hostname", str(data.folder / "good.png")]
    picture(data.folder / "good.png", 40, 60)
    image = pa.array(
        [{"bytes": None, "path": path} for path in paths], pa.struct({"bytes": pa.binary(), "path": pa.string()})
    )
    turns = [asked("<image>Who?")["messages"]] * len(paths)
    datasets.Dataset(pa.table({"image": image, "messages": turns})).save_to_disk(str(data.folder / "saved"))
    hub = {"source": "hub", "path_or_dataset": "saved", "columns": {"images": "image"}}
    ran = packed(data, FEW_RETRIES, "--engine", "ray", "--num-workers", "2", "--media-timeout", "0.5", "--max-pixels",
                 "20000", more={"hub": hub})  # fmt: skip
    print(f"{ran.seconds:.0f} s, {ran.largest:.1f} GB, {ran.answers}")
    assert outcomes(data) == expected
    out = tmp_path / "out"
    lines = [line for line in read_ledger(out, Manifest.read(out)).to_pylist() if line["dataset"] == "hub"]
    assert [line["reason"] for line in lines] == ["missing_media", "missing_media", "bad_media", "missing_media", ""]
    assert listener.num_connections == 0
    # On a busy machine no port may have answered before the end; test_ray_token.py waits for one.
    assert set(ran.answers.values()) <= {401, 403}, ran.answers
    assert ran.largest < 6
    assert_kept(data)
    assert not [file for file in out.rglob("*") if file.is_file() and secret.read_bytes() in file.read_bytes()]


def test_a_crash_that_no_row_is_to_blame_for_still_ends_the_run(tmp_path: Path) -> None:
    """Else a machine without memory would try for ever."""
    data = TinyData(tmp_path / "data")
    add_good(data)
    site = (
        FEW_RETRIES
        + "import neatpack.pipeline.measure.part as p, ctypes\np.family_for = lambda key: ctypes.string_at(0)\n"
    )
    with pytest.raises(AssertionError) as caught:
        packed(data, site, "--engine", "inline")
    assert str(caught.value).count("the process ended by SIGSEGV; going on in another") == 2
