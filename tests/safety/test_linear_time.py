"""Rows that strangers write take a time that grows with their length, and not with its square."""

import contextlib
import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from format_rows import TEXT_OF_PNG, dataset
from processors import gemma4

from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.ingest.convert import convert, parse_row, resolved, said_of
from neatpack.pipeline.ingest.unread import LaterRows
from neatpack.pipeline.labels import TrainOn
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.records import MAX_DETAIL, MediaError, Skip

pytestmark = pytest.mark.slow

Row = dict[str, Any]
SIZE, TIMES, MOST = 8_000, 4, 9.0  # a row, one four times as long, and how much longer that may take: 16 is quadratic
AGAIN = 3  # measurements of what seems to take too long
LEAST = 0.005  # seconds that the shorter row takes; both are doubled until it does


def asked(question: str, answer: str = "Me.", **columns: Any) -> Row:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **columns}


def in_parts(parts: list[Any], **columns: Any) -> Row:
    return {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "Me."}], **columns}


def repeated(text: str) -> Callable[[int], str]:
    return lambda size: text * (size // len(text))


TEXTS = {
    "open tags": "<", "image tags": "<image>", "img tags": "<img>", "img pairs": "<img></img>",
    "named pictures": "<img>a.png</img>", "names without an end": "<img>a.b ", "spaces": " ", "line breaks": " \n",
    "backslashes": "\\", "brackets": "[", "braces": "{", "thoughts that do not end": "<think>",
    "thoughts that do not begin": "</think>", "channels that do not end": "<|channel>", "turns": "<|im_start|>",
    "turns of Gemma": "<|turn>model\n", "placeholders": "<|image_pad|>", "marks": "\ue000", "marks of Gemma": "\ue100",
    "numbered tags": "<image 1>", "numbered tags without an end": "<image1", "schemes": "a://", "letters": "a",
    "combining": "a\u0301", "zeros": "\0", "quotes": '"', "boxes": "<bbox>",
}  # fmt: skip


def _question(text: str) -> Callable[[int], Row]:
    return lambda size: asked(repeated(text)(size))


def _answer(text: str) -> Callable[[int], Row]:
    return lambda size: asked("Who?", repeated(text)(size))


CHATS: dict[str, Callable[[int], Row]] = {
    **{f"question: {name}": _question(text) for name, text in TEXTS.items()},
    **{f"answer: {name}": _answer(text) for name, text in TEXTS.items()},
    "spaces in a tag": lambda size: asked("<img>" + " " * size + "</"),
    "spaces behind a name in a tag": lambda size: asked("<img>a.png" + " " * size + "x</img>"),
    "names and spaces in a tag": lambda size: asked("<img>" + "a. " * (size // 3) + "</"),
    "spaces between thoughts": lambda size: asked("Who?", (" " * 50 + "<think>") * (size // 57)),
    "spaces behind a thought": lambda size: asked("Who?", "<think>a</think>" + " " * size + "x"),
    "base64 and spaces": lambda size: asked("<image>", images=[TEXT_OF_PNG + " " * size + "!"]),
    "base64 and padding": lambda size: asked("<image>", images=[TEXT_OF_PNG + "=" * size + "!"]),
    "base64 and both": lambda size: asked("<image>", images=[TEXT_OF_PNG + "= " * (size // 2) + "!"]),
    "an URL": lambda size: asked("<image>", images=["http://" + "a" * size]),
    "an URL of schemes": lambda size: asked("<image>", images=["http://" + "a://" * (size // 4)]),
    "a URI of a store": lambda size: asked("<image>", images=["s3://" + "a" * (9000 + size)]),
    "a file URI": lambda size: asked("<image>", images=["file:///" + "a/" * (size // 2)]),
    "a path": lambda size: asked("<image>", images=["a/" * (size // 2)]),
    "a path of Windows": lambda size: asked("<image>", images=["a\\" * (size // 2)]),
    "data without a comma": lambda size: asked("<image>", images=["data:" + ";base64" * (size // 7)]),
    "escaped data": lambda size: asked("<image>", images=["data:," + "%41" * (size // 3)]),
    "a cell": lambda size: asked("<image>", images=[{"path": "a.parquet", "cell": "0/0/" + "~1" * (size // 2)}]),
    "frames": lambda size: asked("<video>", videos=[["a.png"] * (size // 10)]),
    "pictures": lambda size: asked("<image>" * (size // 20), images=["a.png"] * (size // 20)),
    "pictures in the row": lambda size: asked("<image>" * (size // 80), images=[TEXT_OF_PNG] * (size // 80)),
    "parts": lambda size: in_parts([{"type": "text", "text": "a"}] * (size // 20)),
    "parts with an index": lambda size: in_parts(
        [{"type": "image", "index": index} for index in range(size // 20)], images=["a.png"] * (size // 20)
    ),
    "parts with one index": lambda size: in_parts([{"type": "image", "index": 0}] * (size // 20), images=["a.png"]),
    "tools": lambda size: asked("Who?", tools=[{"name": "f", "parameters": {}}] * (size // 40)),
    "arguments": lambda size: {
        "messages": [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {f"k{n}": 1 for n in range(size // 10)}}]},
        ]
    },
    "keys": lambda size: asked("Who?", **{f"k{number}": "a.png" for number in range(size // 10)}),
    "loss of turns": lambda size: {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "loss": 0},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "loss": 1},
        ]
        * (size // 100)
    },
}
OTHERS: dict[str, tuple[str, Callable[[int], Row]]] = {
    "tags for a video": (
        "llava",
        lambda size: {"conversations": [{"from": "human", "value": "<image>" * (size // 7)},
                                        {"from": "gpt", "value": "b"}], "video": ["a.mp4"] * (size // 7)},
    ),
    "sentences": ("document", lambda size: {"text_list": ["a" * 20] * (size // 4)}),
    "places": ("document", lambda size: {"texts": ["a", None] * (size // 40), "images": [None, "a"] * (size // 40)}),
    "empty pictures": ("document", lambda size: {"text": "a", "images": [[[""] * 3] * 3] * (size // 40)}),
    "a list as text": ("document", lambda size: {"text": "a", "images": "[" * size}),
    "tags of a document": (
        "document", lambda size: {"text": "<image>" * (size // 20), "images": ["a.png"] * (size // 20)}
    ),
    "history as text": ("alpaca", lambda size: {"instruction": "a", "output": "b", "history": "[" * size}),
    "pairs": ("cauldron", lambda size: {"texts": [{"user": "<image>", "assistant": "b"}] * (size // 40)}),
}  # fmt: skip
ALL = {name: ("messages", make) for name, make in CHATS.items()} | OTHERS
TRAINED = {"train": TrainOn(), "drop": TrainOn(reasoning="drop"), "mask": TrainOn(turns="all", reasoning="mask")}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Family]:
    from helpers import DEMO_PROCESSOR

    folder = gemma4.make(tmp_path_factory.mktemp("processors") / "gemma4")
    return [family_for(ProcessorKey(processor=str(each))) for each in (DEMO_PROCESSOR, folder)]


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    """Its passes come when there are a quarter more objects than before, whoever makes them."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def pass_through(row: Row, format_: str, family: Family, trained: TrainOn) -> None:
    """All that a run does with a row until it is measured."""
    line, data = json.dumps(row).encode(), dataset(format_)
    parsed = parse_row(line, 1)
    if isinstance(parsed, Skip):
        return
    with contextlib.suppress(UserError):  # of media that nothing reads
        resolved(data, [parsed])
    later = LaterRows(data.format, data.columns)
    for number in (0, 32):
        later.look(number, parsed, lambda: said_of(parsed, data))
    example = convert(parsed, data)
    if not isinstance(example, Skip):
        measure([example], family, train_on=trained)


def seconds(deed: Callable[[], Any]) -> float:
    found = []
    for _ in range(3):
        start = time.process_time()
        deed()
        found.append(time.process_time() - start)
    return min(found)


def growth(deed: Callable[[int], Callable[[], Any]], size: int = SIZE) -> float:
    """Return how much longer four times the size takes.

    A busy machine may make one measurement longer. What is quadratic is so each time.
    """
    while True:
        short, long = seconds(deed(size)), seconds(deed(TIMES * size))
        if short >= LEAST or size > 50 * SIZE:
            break
        size *= 2
    for _ in range(AGAIN):
        if long / max(short, LEAST) < MOST:
            break
        short, long = min(short, seconds(deed(size))), min(long, seconds(deed(TIMES * size)))
    return long / max(short, LEAST)


def test_growth_tells_linear_from_quadratic() -> None:
    def passes(count: Callable[[int], int]) -> Callable[[int], Callable[[], None]]:
        return lambda size: lambda: sum(range(count(size)))

    assert growth(passes(lambda size: 20 * size)) < MOST <= growth(passes(lambda size: size * size // 800))


@pytest.mark.parametrize("name", ALL)
def test_row_takes_linear_time(name: str, families: list[Family]) -> None:
    format_, make = ALL[name]
    kinds = TRAINED if "answer" in name or "thought" in name or "turns" in name else {"train": TRAINED["train"]}
    for family in families:
        for how, trained in kinds.items():

            def deed(size: int, family: Family = family, trained: TrainOn = trained) -> Callable[[], None]:
                row = make(size)
                return lambda: pass_through(row, format_, family, trained)

            assert growth(deed) < MOST, (family.name, how)


@pytest.mark.parametrize("detail", ["http://" + "a" * 10**6, "a" * 10**6, "a://" * 250_000, "s3://a@" * 100_000])
def test_detail_is_cut_before_secrets_are_looked_for(detail: str) -> None:
    assert growth(lambda size: lambda: MediaError("missing_media", detail[:size])) < MOST
    assert len(MediaError("missing_media", detail).skip.detail) <= MAX_DETAIL


def test_uri_has_a_longest_length() -> None:
    assert convert(asked("<image>", images=["s3://bucket/" + "a" * 8000]), dataset("messages")).media  # type: ignore[union-attr]
    for uri in ("s3://bucket/" + "a" * 9000, "file:///" + "a" * 9000, "http://a/" + "?" * 9000):
        skip = convert(asked("<image>", images=[uri]), dataset("messages"))
        assert isinstance(skip, Skip) and skip.reason == "bad_row", uri
        assert f"{len(uri)} characters" in skip.detail and "8192" in skip.detail


# What the linear scanners give is what the patterns gave that they replace.


def test_reasoning_between_tags_is_dropped(families: list[Family]) -> None:
    from neatpack.pipeline.measure.targets import _without_tagged

    for text, kept in {
        "Hm. <think>So.</think> Yes.": "Hm.Yes.",
        "<think>a</think>b<think>c</think>": "b",
        " <think>a<think>b</think> </think>": "</think>",
        "a <think> b": "a <think> b",
        "</think> a <think>": "</think> a <think>",
        "a\n\n<think>\n</think>\n\nb": "ab",
        "": "",
    }.items():
        assert _without_tagged(text, "<think>", "</think>") == kept


def test_named_pictures_take_their_names(tmp_path: Any) -> None:
    row = asked("A: <img> a.png\n</img> <IMG>b.jpg</IMG> <img>no name</img> <img>.png</img> <video>c.mp4</video>")
    example = convert(row, dataset("messages"))
    assert [(ref.kind, ref.path) for ref in example.media] == [  # type: ignore[union-attr]
        ("image", "/media/a.png"), ("image", "/media/b.jpg"), ("video", "/media/c.mp4"),
    ]  # fmt: skip


def test_marks_are_longer_than_those_of_the_text(families: list[Family]) -> None:
    """A conversation with special tokens and the marks that stand for them meanwhile: both stay as they are."""
    family = families[0]
    example = convert(asked("\ue000\ue0000\ue000 <|im_start|> \ue000"), dataset("messages"))
    (measured,) = measure([example], family)  # type: ignore[list-item]
    assert "\ue000\ue0000\ue000 <|im_start|> \ue000" in family.chat.tokenizer.decode(measured.ids)  # type: ignore[union-attr]
    assert np.count_nonzero(measured.ids == family.chat.token_id("<|im_start|>")) == 2 + bool(  # type: ignore[union-attr]
        "system" in family.chat.tokenizer.decode(measured.ids)  # type: ignore[union-attr]
    )
