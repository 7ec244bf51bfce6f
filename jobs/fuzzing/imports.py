"""Data files that are rewritten as JSONL (tar, parquet, Arrow, compressed …), damaged: lines, or a UserError."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import tarfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from neatpack.pipeline.config import UserError
from neatpack.pipeline.ingest.kinds import as_lines
from neatpack.pipeline.media.limits import LIMITS, Limits

from .target import DAMAGE, FOUND, HARMLESS, Mutator, Target, Verdicts

ROWS = [
    {"text": f"{number} {'a' * number}", "image": {"bytes": bytes([number]) * 50, "path": None}, "tags": ["a", None]}
    for number in range(40)
]  # fmt: skip


def make(folder: Path) -> Path:
    data = folder / "data"
    data.mkdir()
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, data / "a.parquet", row_group_size=15)
    pq.write_table(table, data / "plain.parquet", use_dictionary=False, compression="none")
    for name, compression in (("a.arrow", None), ("packed.arrow", "zstd")):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.OSFile(str(data / name), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table, 15)
    with pa.OSFile(str(data / "stream.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, 15)
    text = "".join(json.dumps({"text": row["text"]}) + "\n" for row in ROWS).encode()
    (data / "a.jsonl.gz").write_bytes(gzip.compress(text, mtime=0))
    (data / "a.jsonl.bz2").write_bytes(bz2.compress(text))
    (data / "a.jsonl.xz").write_bytes(lzma.compress(text))
    with pa.CompressedOutputStream(str(data / "a.jsonl.zst"), "zstd") as file:
        file.write(text)
    (data / "a.json").write_text(json.dumps([{"text": row["text"]} for row in ROWS]))
    (data / "a.csv").write_text("text,more\n" + "".join(f'"{row["text"]}","a\nb"\n' for row in ROWS))
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(data / f"{form}.tar", "w", format=form) as tar:
            for number in range(8):
                for kind, content in (("json", b'{"text": "a"}'), ("jpg", bytes(700))):
                    member = tarfile.TarInfo(f"{'long' * (30 * (number % 2))}/{number}.{kind}")
                    member.size, member.uname = len(content), "ö" * (number % 3)
                    tar.addfile(member, io.BytesIO(content))
    return data


def damage_one(damage: Mutator, data: Path, rng: random.Random) -> str:
    """Damage a file; the others are as good as they were, and are taken away."""
    chosen = rng.choice(sorted(data.iterdir()))
    for path in sorted(data.iterdir()):
        if path != chosen:
            path.unlink()
    return damage(chosen, rng)


def edit_header(path: Path, rng: random.Random) -> str:
    """Write another number into a header of a tar, whose sum is made right again."""
    content = bytearray(path.read_bytes())
    if path.suffix != ".tar":
        return ""
    at = 512 * rng.choice([i for i in range(len(content) // 512) if content[512 * i + 257 : 512 * i + 262] == b"ustar"])
    start, size = rng.choice([(124, 12), (156, 1), (100, 8), (257, 8), (0, 100), (345, 155), (482, 1)])
    number = rng.choice([0, 1, 511, 513, 1 << 33, (1 << 95) - 512, (1 << 96) - 1, (1 << 96) - rng.randrange(1 << 16)])
    new = rng.choice([number.to_bytes(12, "big"), b"%011o\0" % (number % 8**11), rng.randbytes(size), b"LKxgSXV"])
    content[at + start : at + start + size] = new[-size:] if size > 1 else rng.choice(b"LKxgSXV0157").to_bytes()
    content[at + 148 : at + 156] = b" " * 8
    content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])
    path.write_bytes(content)
    return f"{path.name}: {size} bytes of the header at {at}, from {start}"


def examine(_sound: Path, data: Path, _name: str) -> Verdicts:
    os.environ[LIMITS] = Limits().as_text()
    (path,) = data.iterdir()
    try:
        lines = as_lines(path, data.parent / f"{data.name}-imported")
    except UserError as error:
        return {"import": FOUND if str(error) else "an error without words"}
    size = os.path.getsize(lines.file)
    return {"import": HARMLESS if size < 1 << 20 else f"{size} bytes"}


IMPORTS = Target(
    make=make,
    mutators={
        name: partial(damage_one, damage)
        for name, damage in {**DAMAGE, "header": edit_header}.items()
        if name not in ("remove", "becomes a folder")
    },
    examine=examine,
)
