"""Rows that mean harm among good ones: the run ends well, each row is in the ledger, and good ones are packed."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import DEMO_PROCESSOR, ROOT, TinyData, assert_verified, picture
from hostile import slow_jpeg

from neatpack.pipeline.manifest import Manifest
from neatpack.pipeline.shard.verify import read_ledger

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


def poison(folder: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Rows by name, and the reason that the ledger gives."""
    pq.write_table(pa.table({"text": ["a"], "number": [1], "image": [b"abc"]}), folder / "cells.parquet")
    picture(folder / "small.png", 20, 30)
    cells = ("0/0/text", "0/0/number", "4294967296/0/image", "2147483647/0/image", "0/9223372036854775807/image")
    tools = [{"type": "function", "function": {"name": "f", "parameters": nested(600)}}]
    rows = {
        **{f"cell {cell}": with_image({"path": "cells.parquet", "cell": cell}) for cell in cells},
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
        "base64 and spaces": with_image("iVBORw0KGgo" + "A" * 60 + " " * 10**6 + "!"),
        "spaces in a tag": asked("<img>" + " " * 10**6 + "</"),
        "tags": asked("<img>" * 10**5),
        "media": asked("<image>" * 5000, images=["small.png"] * 5000),
        "frames": asked("<video>", videos=[["small.png"] * 200_000]),
        "index": {
            "messages": [
                {"role": "user", "content": [{"type": "image", "index": index} for index in range(20_000)]},
                {"role": "assistant", "content": "Me."},
            ],
            "images": ["small.png"] * 20_000,
        },
    }
    reasons = {
        name: "bad_media" if name in ("cell 0/0/text", "cell 0/0/number", "cell 2147483647/0/image") else "bad_row"
        for name in rows
    }
    reasons |= {
        "min_pixels that fit 32 bits": "overlong", "many large pictures": "overlong", "spaces in a tag": "overlong",
        "tags": "overlong", "base64 and spaces": "missing_media",
    }  # fmt: skip
    return {name: (row, reasons[name]) for name, row in rows.items()}


def packed(data: TinyData, site: str, *flags: str) -> tuple[float, float, str]:
    """Run the command. Seconds, GB of the largest process, and what it said."""
    folder = data.folder.parent
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(site)
    command = [sys.executable, "-m", "neatpack.pipeline.cli", "pack", "--meta", str(data.write()), "--processor",
               str(DEMO_PROCESSOR), "--out", str(folder / "out"), "--pack-size", "2048", "--max-skipped", "1",
               *flags]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)])}
    start = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return time.monotonic() - start, largest, done.stderr


def outcomes(data: TinyData) -> dict[str, str]:
    """Of each row, by the id that it has: the reason, "" where it is packed."""
    out = data.folder.parent / "out"
    assert_verified(out)
    lines = read_ledger(out, Manifest.read(out)).to_pylist()
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


def test_poison_rows_cost_themselves(tmp_path: Path) -> None:
    data = TinyData(tmp_path / "data")
    expected = add(data, poison(data.folder))
    seconds, largest, said = packed(data, "", "--engine", "inline")
    print(f"{seconds:.0f} s, {largest:.1f} GB")
    assert outcomes(data) == expected
    assert largest < 6
    assert "going on in another" not in said


def test_more_slow_pictures_than_restarts(tmp_path: Path) -> None:
    """Each ends the process once; a picture that is named again, not even that."""
    data = TinyData(tmp_path / "data")
    expected = add(data, slow(data.folder, 22, 3))
    flags = ("--engine", "inline", "--media-timeout", "0.2", "--max-pixels", "20000")
    seconds, largest, said = packed(data, IMPORTED, *flags)
    print(f"{seconds:.0f} s, {largest:.1f} GB")
    assert outcomes(data) == expected
    assert said.count("going on in another") == 22


@pytest.mark.parametrize("kind", ["cells", "slow"])
def test_poison_rows_cost_themselves_on_ray(kind: str, tmp_path: Path) -> None:
    """With two retries instead of twenty: a worker takes seconds to start."""
    data = TinyData(tmp_path / "data")
    if kind == "cells":
        rows = {name: row for name, row in poison(data.folder).items() if name.startswith("cell ")}
    else:
        rows = slow(data.folder, 5, 2)
    expected = add(data, rows)
    seconds, largest, _ = packed(data, FEW_RETRIES, "--engine", "ray", "--num-workers", "2", "--media-timeout", "0.5",
                                 "--max-pixels", "20000")  # fmt: skip
    print(f"{seconds:.0f} s, {largest:.1f} GB")
    assert outcomes(data) == expected


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
