"""What a job is given: meta JSON, rows, pictures, videos and sounds, damaged. `neatpack pack` must tell, and go on.

Whatever comes in, a run ends with an output in which every row is packed or skipped by a reason, and which verifies;
or, where the meta JSON or a whole file is of no use, with a UserError before anything is packed.
"""

import json
import random
import shutil
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from neatpack.format.manifest import Manifest
from neatpack.pipeline.config import PackConfig, UserError
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger
from neatpack.storage.location import Location

from .output import PROCESSOR, VALUES, verified
from .target import DAMAGE, FOUND, HARMLESS, Mutator, Target, Verdicts

MEDIA = {"PNG": "*.png", "JPEG": "*.jpg", "WebP": "*.webp", "video": "*.mp4"}
TEXTS = ("<image>", "<image><image>", "\ud800", "\0", "x" * 5000)
ODD: tuple[Any, ...] = (*VALUES, *TEXTS, -0.0, float("nan"), [{}], {"": 0})


def make(folder: Path) -> Path:
    """Sixteen rows: text, and pictures of three kinds and a video."""
    data = folder / "data"
    data.mkdir()
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(["a.png", "b.jpg", "c.webp", "d.png"]):
        Image.fromarray(rng.integers(0, 256, (60 + 20 * number, 90, 3), np.uint8)).save(data / name)
        rows.append(_row(f"<image>What is {name}?", "A picture.", images=[name]))
    _film(data / "e.mp4", rng)
    rows.append(_row("<video>And this?", "It moves.", videos=["e.mp4"]))
    rows += [_row(f"Count to {number}.", " ".join(map(str, range(number + 1)))) for number in range(11)]
    (data / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "meta.json").write_text(json.dumps({"drawn": {"file_name": "rows.jsonl", "media_dir": "."}}))
    return data


def _row(question: str, answer: str, **media: list[str]) -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **media}


def _film(path: Path, rng: np.random.Generator) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(4))
        stream.width, stream.height = 64, 48
        for _ in range(8):
            frame = av.VideoFrame.from_ndarray(rng.integers(0, 256, (48, 64, 3), np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def of_file(damage: Mutator, pattern: str, data: Path, rng: random.Random) -> str:
    return damage(rng.choice(sorted(data.glob(pattern))), rng)


def edited_row(data: Path, rng: random.Random) -> str:
    """A value somewhere in a row becomes another one, or goes."""
    lines = (data / "rows.jsonl").read_text().splitlines()
    number = rng.randrange(len(lines))
    row = json.loads(lines[number])
    said = _edit(row, rng)
    lines[number] = json.dumps(row)
    (data / "rows.jsonl").write_text("".join(line + "\n" for line in lines))
    return f"row {number}: {said}"


def edited_meta(data: Path, rng: random.Random) -> str:
    meta = json.loads((data / "meta.json").read_text())
    said = _edit(meta, rng)
    (data / "meta.json").write_text(json.dumps(meta))
    return said


def _edit(value: Any, rng: random.Random) -> str:
    places: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        at = left.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        places += [(at, key) for key in keys]
        left += [at[key] for key in keys]
    container, key = rng.choice(places)
    if rng.random() < 0.2:
        del container[key]
        return f"without {key!r}"
    new = rng.choice(ODD)
    container[key] = new
    return f"{key!r} is {str(new)[:40]!r}"


def another_kind(data: Path, rng: random.Random) -> str:
    """The bytes of one medium under the name of another."""
    one, other = rng.sample([path for pattern in MEDIA.values() for path in sorted(data.glob(pattern))], 2)
    shutil.copyfile(one, other)
    return f"{one.name} as {other.name}"


MUTATORS: dict[str, Mutator] = {
    f"{kind}: {name}": partial(of_file, damage, pattern)
    for kind, pattern in {**MEDIA, "rows": "rows.jsonl", "meta": "meta.json"}.items()
    for name, damage in DAMAGE.items()
} | {"row edited": edited_row, "meta edited": edited_meta, "media exchanged": another_kind}


def examine(_sound: Path, data: Path, _name: str) -> Verdicts:
    out = data.parent / f"{data.name}-out"
    config = PackConfig(meta=str(data / "meta.json"), processor=str(PROCESSOR), out=str(out), pack_size=512,
                        engine="inline", max_skipped=1.0)  # fmt: skip
    try:
        counts = run_pack(config).manifest.counts
    except UserError as error:
        return {"pack": FOUND if str(error) and not (out / "manifest.json").exists() else f"half an output: {error}"}
    return {"pack": _judged(out, HARMLESS if counts.packed == counts.samples else FOUND)}


def _judged(out: Path, verdict: str) -> str:
    if problems := verified(out):
        return f"DOES NOT VERIFY: {problems[0]}"
    manifest = Manifest.read(out)
    lines = [(line["row"], line["repeat"]) for line in read_ledger(Location.parse(out), manifest).to_pylist()]
    is_whole = {row for row, _ in lines} == set(range(manifest.counts.rows)) and len(set(lines)) == len(lines)
    return verdict if is_whole else "ROWS ARE MISSING IN THE LEDGER, OR THERE TWICE"


INPUT = Target(make=make, mutators=MUTATORS, examine=examine)
