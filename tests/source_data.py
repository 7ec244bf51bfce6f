"""Small data sets of the kinds that the named sources read, for tests."""

import io
import json
import math
import struct
import wave
from pathlib import Path
from typing import Any

import datasets
from support.data import picture


def wav(seconds: float = 0.5, rate: int = 16000, channels: int = 1) -> bytes:
    """A tone of 440 Hz at half the volume."""
    samples = [round(16384 * math.sin(2 * math.pi * 440 * n / rate)) for n in range(int(seconds * rate))]
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(b"".join(struct.pack("<h", sample) * channels for sample in samples))
    return buffer.getvalue()


def with_images(columns: dict[str, list[Any]], column: str = "image") -> datasets.Dataset:
    columns = columns | {column: [{"bytes": content, "path": None} for content in columns[column]]}
    return datasets.Dataset.from_dict(columns).cast_column(column, datasets.Image())


def with_sounds(sounds: list[bytes], texts: list[str], **feature: Any) -> datasets.Dataset:
    columns = {"audio": [{"bytes": sound, "path": None} for sound in sounds], "transcription": texts}
    return datasets.Dataset.from_dict(columns).cast_column("audio", datasets.Audio(**feature))


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


TRUTHS = [
    json.dumps({"gt_parse": {"menu": [{"nm": "Tea", "price": "2"}, {"nm": "Pie"}], "total": {"cash": "5"}}}),
    json.dumps({"gt_parses": [{"a": "zero"}, {"a": "one"}]}),
    json.dumps({"gt_parses": [{"a": "zero"}, {"a": "one"}, {"a": "two"}]}),
]


def chat(*values: str) -> str:
    roles = ["human", "gpt"] * len(values)
    return json.dumps([{"from": role, "value": value} for role, value in zip(roles, values, strict=False)])


def imagefolder(folder: Path) -> Path:
    for number in range(2):
        picture(folder / f"{number}.png", 40 + 20 * number, 60, seed=number)
    rows = [{"file_name": f"{number}.png", "text": f"text {number}"} for number in range(2)]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def rdr(files: list[bytes]) -> datasets.Dataset:
    return with_images({"image": files, "text": [f"text {n}" for n in range(len(files))]})
