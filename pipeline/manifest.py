"""The manifest of an output: the one place where it is written, read and checked.

OUT/manifest.json is written last, so its existence means that the output is done. Light on purpose: a training machine
reads it without transformers, Ray, pyarrow or any decoder.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import __version__
from .identity import Identity, fields_from_json
from .runtime.storage import write_json

FORMAT = 4  # of everything in OUT but work/; raise it when a reader of the older format would fail or misread
FILE = "manifest.json"


class OutputError(ValueError):
    """An output that cannot be read: says what was found, what was expected and the remedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry:
    name: str  # under OUT/shards
    bytes: int
    sha256: str
    first_pack: int  # -1: the shard is empty, because every row of its packs failed on decode
    num_packs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pixels:
    """How stored bytes become pixels again."""

    codec: str
    resize: str  # what resized the pictures: "torch", "pil" or "processor"
    tables: dict[str, str]  # image or video -> the .npy file that says what each stored byte stands for


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What an output holds, in figures. samples = packed + all of skipped."""

    rows: int  # of the input
    samples: int  # rows times their repetitions; a row that is sampled out, or of the other split, counts once
    packed: int
    skipped: dict[str, int]  # by reason
    fitted: dict[str, int]  # packed ones that were "truncated" or "shrunk" to fit
    packs: int
    tokens: int
    visual_tokens: int
    target_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    neatpack: str = __version__  # the version that wrote it
    fingerprint: str  # of the identity
    identity: Identity
    family: dict[str, Any]  # what readers need to know of the model family: see Family.described
    pixels: Pixels
    counts: Counts
    shards: tuple[ShardEntry, ...]
    files: dict[str, str]  # sha256 of every other file of the output

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}

    def write(self, out: Path) -> None:
        write_json(out / FILE, self.to_json())

    @classmethod
    def read(cls, out: Path) -> "Manifest":
        """The manifest of a local output. Raises OutputError where it is missing or not one of ours."""
        try:
            content = (out / FILE).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise missing_manifest(str(out)) from None
        return cls.parse(content, str(out))

    @classmethod
    def parse(cls, content: bytes, out: str) -> "Manifest":
        """The manifest from its bytes, wherever they come from; `out` (a directory or a URI) is for messages."""
        where = f"{out}/{FILE}"
        try:
            found = json.loads(content)
        except ValueError as error:  # broken JSON, or not UTF-8
            raise OutputError(f"{where}: not JSON: {error}; pack again") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            got = found.get("format") if isinstance(found, dict) else f"of a JSON {type(found).__name__}"
            raise OutputError(
                f"{where}: format {got}, this neatpack ({__version__}) reads format {FORMAT}; "
                "use the neatpack that made it, or pack again"
            )
        try:
            values = fields_from_json(cls, found)
            values["identity"] = Identity.from_json(values["identity"])
            values["pixels"] = Pixels(**fields_from_json(Pixels, values["pixels"], "pixels"))
            values["counts"] = Counts(**fields_from_json(Counts, values["counts"], "counts"))
            values["shards"] = tuple(
                ShardEntry(**fields_from_json(ShardEntry, entry, f"shards[{number}]"))
                for number, entry in enumerate(values["shards"])
            )
        except ValueError as error:
            raise OutputError(f"{where}: {error}; pack again") from None
        return cls(**values)


def missing_manifest(out: str) -> OutputError:
    """The error for an output without a manifest."""
    return OutputError(f"{out}/{FILE}: missing, so packing has not finished; run pack again")
