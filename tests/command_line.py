"""A command line, and data for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROCESSOR = str(ROOT / "jobs" / "demo" / "processor")
Run = Callable[..., tuple[int, str, str]]  # a command in this process: exit code, stdout, stderr


def conversation(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def flags(meta: Path, out: Path | None = None, /, **overrides: Any) -> list[str]:
    values = {"meta": meta, "processor": PROCESSOR, "datasets": "tiny", "pack-size": 256, "engine": "inline",
              "max-skipped": 0.2}  # fmt: skip
    values |= ({"out": out} if out else {}) | {key.replace("_", "-"): value for key, value in overrides.items()}
    return [str(text) for key, value in values.items() for text in (f"--{key}", value)]
