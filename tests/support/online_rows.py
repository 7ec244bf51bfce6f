"""Rows and meta files for tests of the online datasets."""

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def row(answer: Any, question: str = "q", **columns: Any) -> Row:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **columns}


def jsonl(path: Path, *rows: Row | str) -> Path:
    lines = (item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in rows)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def meta(folder: Path, **entries: Any) -> str:
    path = folder / "meta.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    return str(path)


def answers(examples: list[Row]) -> list[str]:
    return [example["conversation"][-1]["content"][0]["text"] for example in examples]


# ---------------------------------------------------------------- the meta JSON as a whole


def nasty(folder: Path) -> str:
    """Two data sets with rows of every kind: good, with media, broken, skipped; sampled below and above one."""
    (folder / "pictures").mkdir()
    jsonl(
        folder / "a.jsonl",
        row("text"),
        row("picture", "<image>q", images=["x.jpg"], _text_tokens=9),
        "{broken",
        row("no picture", "<image>q"),
        {"messages": [{"role": "user", "content": "q"}]},
        row("clip", "<video>q", videos=["x.mp4"]),
        row("sound", "<audio>q", audios=["x.wav"]),
    )
    rows = [row(str(i)) for i in range(11)] + [7]
    (folder / "b.json").write_text(json.dumps(rows), encoding="utf-8")
    entries = {
        "a": {"file_name": "a.jsonl", "sample_ratio": 2.5, "media_dir": "pictures"},
        "b": {"file_name": "b.json", "sample_ratio": 0.7},
    }
    return meta(folder, **entries)
