"""README.md and docs/ as texts: their fenced blocks and the rest."""

import re
from dataclasses import dataclass
from pathlib import Path

from places import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [page.name for page in PAGES]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    page: str
    info: str  # what stands behind the ```
    body: str
    number: int  # on its page, from 1

    @property
    def name(self) -> tuple[str, str]:
        """By which a list in a test names it: its page and first line."""
        return self.page, self.body.splitlines()[0]

    @property
    def file(self) -> str:
        """Under which name an example is written to disk: ```jsonl coco.jsonl."""
        word = self.info.partition(" ")[2]
        return word if "." in word else ""


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


def blocks_of(page: Path) -> list[Block]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(page=page.name, info=info, body=body, number=n) for n, (info, body) in enumerate(found, 1)]
