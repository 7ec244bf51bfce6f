"""Writes the rows of the golden outputs. The media are files of this folder, so that no encoder can change them."""

import json
import shutil
from pathlib import Path
from typing import Any

MEDIA = Path(__file__).parent / "media"
Turns = list[tuple[str, str]]


def write_data(folder: Path) -> dict[str, Path]:
    """Write the meta JSONs, by name: one of all kinds of rows, one of two weighted datasets, one with broken media."""
    shutil.copytree(MEDIA, folder / "media")
    content = (MEDIA / "tall.png").read_bytes()
    (folder / "media" / "broken.png").write_bytes(content[: len(content) // 2])  # a sound header: it fails on decode
    files = {"all": all_rows(), "text": text_rows(12), "broken": [*all_rows(), *broken_rows()]}
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    entries: dict[str, dict[str, Any]] = {
        "all": {"all": {}},
        "weights": {"all": {"weight": 1}, "text": {"weight": 3}},
        "broken": {"broken": {}},
    }
    for meta, datasets in entries.items():
        content = {name: {"file_name": f"{name}.jsonl", "media_dir": "media"} | keys for name, keys in datasets.items()}
        (folder / f"{meta}.json").write_text(json.dumps(content))
    return {meta: folder / f"{meta}.json" for meta in entries}


def all_rows() -> list[dict[str, Any]]:
    """Rows of every kind of media, and rows that are skipped for different reasons."""
    return [
        *text_rows(24),
        row([("user", "<image>What?"), ("assistant", "A wide one.")], images=["wide.png"]),
        row([("user", "And <image>?"), ("assistant", "A tall one.")], images=["tall.png"]),
        row([("user", "<image>A photo?"), ("assistant", "Yes.")], images=["photo.jpg"]),
        row([("user", "<image>First.<image>Second?"), ("assistant", "Two.")], images=["wide.png", "photo.jpg"]),
        row([("user", "<image>?"), ("assistant", "A."), ("user", "Go on."), ("assistant", "B.")], images=["tall.png"]),
        row([("user", "<video>What happens?"), ("assistant", "It gets brighter.")], videos=["clip.mp4"]),
        row([("user", "<video>or <image>?"), ("assistant", "Both.")], videos=["clip.mp4"], images=["wide.png"]),
        row([("user", "<audio>What is heard?"), ("assistant", "A tone.")], audios=["tone.wav"]),
        row([("system", "Be brief."), ("user", "Hello."), ("assistant", "Hi.")]),
        row([("user", "<image>Where?"), ("assistant", "Nowhere.")], images=["missing.png"]),
        row([("user", "<image><image>?"), ("assistant", "One tag too many.")], images=["wide.png"]),
        row([("user", "No answer?")]),
        row([("narrator", "Once."), ("assistant", "Twice.")]),
        row([("user", "Count."), ("assistant", "one two three " * 900)]),
    ]  # fmt: skip


def broken_rows() -> list[dict[str, Any]]:
    return [row([("user", f"<image>Number {n}?"), ("assistant", "x " * n)], images=["broken.png"]) for n in range(1, 4)]


def text_rows(count: int) -> list[dict[str, Any]]:
    return [row([("user", f"Count to {n}."), ("assistant", "and ".join(map(str, range(n * n % 61))) + ".")])
            for n in range(count)]  # fmt: skip


def row(turns: Turns, **media: list[str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in turns], **media}
