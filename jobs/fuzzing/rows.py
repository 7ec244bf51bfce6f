"""Rows, in all formats and for several families: mutated as JSON, read, converted and measured in this process.

Whatever a row says, it is measured, or skipped by a reason of the ledger, in a time that grows with its length. What
is measured can be stored and read again as it was.
"""

import copy
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.ingest.convert import converter, parse_row, resolved, said_of
from neatpack.pipeline.ingest.formats import FORMATS
from neatpack.pipeline.ingest.holdout import row_hash
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.ingest.unread import LaterRows
from neatpack.pipeline.labels import TrainOn
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.measure.store import read_measured, write_measured
from neatpack.pipeline.records import MAX_DETAIL, REASONS, Measured, Skip
from neatpack.storage.location import Location

from .output import PROCESSOR, VALUES
from .target import FOUND, HARMLESS, Mutator, Target, Verdicts

PER_CASE = 8  # rows that are mutated alike
SECONDS, SECONDS_PER_BYTE = 4.0, 100e-6  # CPU of a row; a byte takes about a microsecond
FAMILIES = ("gemma4", "qwen3_vl", "internvl", "kimi_vl")  # beside the demo's: modules of tests/processors
IN_TESTS = Path(__file__).resolve().parents[2] / "tests"
TRAIN_ON = (TrainOn(), TrainOn(reasoning="drop"), TrainOn(turns="all", reasoning="mask"),
            TrainOn(turns="last-assistant"))  # fmt: skip
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PIECES = (
    "<", ">", "</", "<image>", "<video>", "<audio>", "<IMAGE>", "<img>", "</img>", "<image 1>", "<|image_1|>",
    "<|image|>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|im_start|>", "<|im_end|>", "<|turn>",
    "<turn|>",
    "<|channel>", "<channel|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<bos>", "<eos>", "<|endoftext|>",
    "<IMG_CONTEXT>", "<|media_begin|>", "assistant\n", "system\n", "{{", "{%", "%}", " ", "\n", "\r\n", "\t", "\\", '"',
    "'", "[", "]", "{", "}", ",", ":", "0", "9", "a", "A", "\u0130", "\u0131", "\ufb01", "\u4e2d",
    "\U0001f44d\U0001f3fd",
    "a\u0301", "\0", "\x1b[31m", "\u202e", "\u200b", "\u2028", "\ue000", "\ue0000\ue000", "\ue100\ue101\ue100",
    "\ud800",
    "\udc00", "=", PNG, "data:image/png;base64,", "data:,", "file://", "http://", "s3://", "s3://b/c.png?d=e", "/",
    "//",
    "../", "C:\\", "%00", "a.png", "a.jpg", "clip.mp4", ".png", "<bbox>", "NaN",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 28, 100, 4096, 16384, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63,
    10**13, 10**30, 0.0, -0.0, 0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
CELLS = ("0/0/image", "0/0/text", "0/0/number", "4294967296/0/image", "0/99/image", "0/0/image/bytes", "a", "/0")
ASKED = ("min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width", "nframes", "min_frames",
         "max_frames", "fps", "frame_indices", "video_start", "video_end", "offset", "length", "cell", "index", "bytes",
         "base64", "path", "url", "frames", "detail")  # fmt: skip
KEYS = (*ASKED, "type", "text", "image", "images", "video", "videos", "audio", "image_url", "role", "content", "from",
        "value", "loss", "weight", "reasoning", "reasoning_content", "tool_calls", "function_call", "name",
        "tool_call_id", "tools", "system", "messages", "conversations", "texts", "history", "id", "arguments",
        "")  # fmt: skip


def make(folder: Path) -> Path:
    """Media that rows name, and a row of each kind."""
    data = folder / "data"
    data.mkdir()
    Image.new("RGB", (60, 40), (90, 120, 30)).save(data / "a.png")
    Image.new("RGB", (400, 20)).save(data / "b.jpg")
    table = {"image": pa.array([(data / "a.png").read_bytes()] * 3), "text": ["a"] * 3, "number": [1, 2, 3]}
    pq.write_table(pa.table(table), data / "c.parquet")
    (data / "rows.json").write_text(json.dumps(_seeds()))
    _families()  # before memory is limited
    return data


def _seeds() -> list[list[Any]]:
    """Formats, each with a good row."""

    def chat(*turns: tuple[str, Any], **columns: Any) -> dict[str, Any]:
        return {"messages": [{"role": role, "content": content} for role, content in turns], **columns}

    function = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "int"}}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    parts = [{"type": "image", "image": "a.png", "min_pixels": 3136}, {"type": "text", "text": "Who?"}]
    indexed = [{"type": "image", "index": 0, "text": None}, {"type": "text", "text": "Who?", "index": None}]
    thought = "<think>Hm.</think>Me."
    return [
        ["messages", chat(("user", "<image>Who?"), ("assistant", "Me."), images=["a.png"], id="1")],
        ["messages", chat(("user", "Who?"), ("assistant", thought), ("user", "a"), ("assistant", "b")) ],
        ["messages", chat(("user", parts), ("assistant", [{"type": "text", "text": "Me."}]))],
        ["messages", chat(("user", "<image>a"), ("assistant", "b"), images=[f"data:image/png;base64,{PNG}"])],
        ["messages", chat(("user", "<image>a"), ("assistant", "b"), images=[{"path": "c.parquet", "cell": CELLS[0]}])],
        ["messages", chat(("user", "<video>a"), ("assistant", "b"), videos=[{"frames": ["a.png"] * 6, "fps": 2}])],
        ["messages", {"messages": [{"role": "user", "content": "Who?"},
                                   {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": "Hm."},
                                   {"role": "tool", "content": "1", "name": "f", "tool_call_id": "1"},
                                   {"role": "assistant", "content": "Me.", "loss": 1}], "tools": [function]}],
        ["vsft", chat(("user", indexed), ("assistant", [{"type": "text", "text": "Me."}]), images=["a.png"])],
        ["sharegpt", {"conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "Me."}]}],
        ["llava", {"image": "b.jpg", "conversations": [{"from": "human", "value": "<image>\nWho?"},
                                                       {"from": "gpt", "value": "Me."}]}],
        ["cauldron", {"images": ["a.png"], "texts": [{"user": "Who?", "assistant": "Me.", "source": "s"}]}],
        ["alpaca", {"instruction": "a", "input": "b", "output": "c", "history": [["d", "e"]], "system": "f"}],
        ["prompt_response", {"question": "<img>a.png</img>Who?", "answer": "Me."}],
        ["document", {"text": "a <image> b <image>", "images": ["a.png", "b.jpg"]}],
        ["document", {"texts": ["a", None, "b"], "images": [None, "a.png", None]}],
        ["document", {"text_list": ["a", "b"], "image_info": [{"image_name": "a.png", "matched_text_index": 1}]}],
    ]  # fmt: skip


@cache
def _families() -> tuple[Family, ...]:
    """The demo's, and some that tests make of its tokenizer."""
    sys.path.append(str(IN_TESTS))
    from importlib import import_module
    from tempfile import mkdtemp

    folder = Path(mkdtemp(prefix="neatpack-fuzz-"))
    made = [import_module(f"processors.{name}").make(folder / name) for name in FAMILIES]
    found = tuple(family_for(ProcessorKey(processor=str(path))) for path in (PROCESSOR, *made))
    for family in found:
        family.chat.encoder.encode(["a"])
    return found


# Mutators of a row


def places(value: Any) -> list[tuple[Any, Any]]:
    """Lists and objects of a row, each with a key or index."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        at = left.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        found += [(at, key) for key in keys]
        left += [at[key] for key in keys]
    return found


def _place(row: Any, rng: random.Random, kinds: tuple[type, ...] = ()) -> tuple[Any, Any] | None:
    fitting = [(at, key) for at, key in places(row) if not kinds or isinstance(at[key], kinds)]
    return rng.choice(fitting) if fitting else None


def other_type(row: Any, rng: random.Random) -> None:
    at, key = _place(row, rng) or ({"": 0}, "")
    at[key] = copy.deepcopy(rng.choice((*VALUES, *NUMBERS, [{}], {"": None}, [[[]]], {"a": [1]}, "", "[]", "{}")))


def wrapped(row: Any, rng: random.Random) -> None:
    at, key = _place(row, rng) or ({"": 0}, "")
    value = at[key]
    at[key] = rng.choice([[value], {key: value}, json.dumps(value), str(value)])


def nested(row: Any, rng: random.Random) -> None:
    at, key = _place(row, rng) or ({"": 0}, "")
    value, levels = at[key], rng.choice((5, 60, 95, 101, 300, 900, 2000))
    if rng.random() < 0.2:
        at[key] = "[" * levels + "]" * levels  # as a text that is JSON
        return
    for number in range(levels):
        value = [value] if number % 3 else {"a": value}
    at[key] = value


def removed(row: Any, rng: random.Random) -> None:
    at, key = _place(row, rng) or ({"": 0}, "")
    del at[key]


def doubled(row: Any, rng: random.Random) -> None:
    """An item of a list, many times."""
    found = _place(row, rng, (list,))
    if found and found[0][found[1]]:
        at, key = found
        item = rng.choice(at[key])
        at[key] += [copy.deepcopy(item) for _ in range(rng.choice((1, 2, 30, 300, 3000)))]


def key_added(row: Any, rng: random.Random) -> None:
    objects = [row, *(at[key] for at, key in places(row) if isinstance(at[key], dict))]
    value = rng.choice((*NUMBERS, *VALUES, *CELLS, [0, 5], "a.png", ["a.png"], PNG))
    rng.choice(objects)[rng.choice(KEYS)] = copy.deepcopy(value)


def asks(row: Any, rng: random.Random) -> None:
    """Of a medium, by a key beside it."""
    columns = [key for key in ("images", "image", "videos", "video") if key in row]
    if not columns:
        return key_added(row, rng)
    column = rng.choice(columns)
    entry: dict[str, Any] = {"path": rng.choice(("a.png", "b.jpg", "c.parquet", "absent.png"))}
    for key in rng.sample(ASKED, rng.randrange(1, 4)):
        entry[key] = rng.choice((*NUMBERS, *CELLS, [0, 1], [3, 2], [10**12], "a.png"))
    row[column] = [entry]
    return None


def text_changed(row: Any, rng: random.Random) -> None:
    found = _place(row, rng, (str,))
    if found:
        at, key = found
        pieces = "".join(rng.choices(PIECES, k=rng.choice((1, 3, 20))))
        cut = rng.randrange(len(at[key]) + 1)
        at[key] = at[key][:cut] + pieces + at[key][cut:]


def text_long(row: Any, rng: random.Random) -> None:
    """One or two pieces again and again: what takes a time that grows with the square shows."""
    found = _place(row, rng, (str,))
    if found:
        at, key = found
        piece = "".join(rng.choices(PIECES, k=rng.choice((1, 1, 2))))
        at[key] = f"{rng.choice(PIECES)}{piece * (rng.choice((3_000, 20_000)) // len(piece))}{rng.choice(PIECES)}"


def swapped(row: Any, rng: random.Random) -> None:
    one, other = _place(row, rng), _place(row, rng)
    if one and other:
        (at, key), (into, where) = one, other
        into[where] = copy.deepcopy(at[key])


CHANGES: dict[str, Callable[[Any, random.Random], None]] = {
    "another type": other_type, "wrapped": wrapped, "nested": nested, "removed": removed, "doubled": doubled,
    "key added": key_added, "asks": asks, "text changed": text_changed, "text long": text_long, "swapped": swapped,
}  # fmt: skip


@contextmanager
def _deeper() -> Iterator[None]:
    """For what is nested deeper than Python calls itself, while it is made."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _mutator(name: str) -> Mutator:
    def mutate(data: Path, rng: random.Random) -> str:
        """Exchange the rows for some that were changed so, and now and then in another way, too."""
        seeds, made = json.loads((data / "rows.json").read_text()), []
        with _deeper():
            for _ in range(PER_CASE):
                format_, row = copy.deepcopy(rng.choice(seeds))
                for change in (name, *rng.choices(list(CHANGES), k=rng.choice((0, 0, 1, 3)))):
                    CHANGES[change](row, rng)
                made.append([format_, json.dumps(row), rng.randrange(len(_families())), rng.randrange(len(TRAIN_ON))])
        (data / "rows.json").write_text(json.dumps(made))
        return json.dumps([row[:2] for row in made])[:2000]

    return mutate


def examine(_sound: Path, data: Path, _name: str) -> Verdicts:
    verdicts: Verdicts = {}
    for format_, row, family, train_on in json.loads((data / "rows.json").read_text()):
        line = row.encode()
        start = time.process_time()
        verdict = _judged(line, format_, data, _families()[family], TRAIN_ON[train_on])
        took = time.process_time() - start
        if took > SECONDS + SECONDS_PER_BYTE * len(line):
            verdict = f"TOOK {took:.1f} s FOR {len(line)} BYTES"
        if verdict not in (FOUND, HARMLESS):
            return {"rows": f"{verdict}: {format_} {line[:500]!r}"}
        verdicts["rows"] = FOUND if FOUND in (verdict, verdicts.get("rows")) else HARMLESS
    return verdicts


def _judged(line: bytes, format_: str, data: Path, family: Family, train_on: TrainOn) -> str:
    preset = FORMATS[format_]
    dataset = Dataset(name="d", files=("rows.jsonl",), format=format_, columns=preset.columns, tags=preset.tags,
                      media_dir=str(data))  # fmt: skip
    row_hash(line, dataset)
    parsed = parse_row(line, 1)
    if isinstance(parsed, Skip):
        return _checked(parsed)
    resolved(dataset, [parsed])
    later = LaterRows(dataset.format, dataset.columns)
    for number in (1, 32):
        later.look(number, parsed, lambda: said_of(parsed, dataset))
    name = dataset.id_of(parsed)
    example = converter(dataset)(parsed)
    if isinstance(example, Skip):
        return _checked(example)
    (found,) = measure([example], family, train_on=train_on)
    if isinstance(found, Skip):
        return _checked(found)
    stored = Location.parse(str(data / "part.arrow"))
    write_measured(stored, [0], [name], [found])
    again = read_measured(stored, 0)
    return HARMLESS if _is_same(found, again) else "STORED AS ANOTHER ROW"


def _is_same(one: Measured, other: Measured | None) -> bool:
    return other is not None and (one.tokens, one.visual_tokens, one.ids.tolist(), one.targets.tolist()) == (
        other.tokens, other.visual_tokens, other.ids.tolist(), other.targets.tolist()
    )  # fmt: skip


def _checked(skip: Skip) -> str:
    if skip.reason not in REASONS or not skip.detail or len(skip.detail) > MAX_DETAIL:
        return f"A SKIP WITHOUT A REASON OR DETAIL: {skip}"
    return FOUND


ROWS = Target(make=make, mutators={name: _mutator(name) for name in CHANGES}, examine=examine)
