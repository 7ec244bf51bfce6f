"""The demo processor does what Qwen's does; the demo data is what it says: every answer is checked on the pixels."""

import json
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given, strategies as st
from PIL import Image, ImageOps
from tokenizers import Tokenizer, pre_tokenizers

from jobs.demo.make_data import BACKGROUNDS, COLOURS, make_demo
from jobs.demo.train_tokenizer import PROCESSOR, SPECIAL_TOKENS, build

TOKENIZER = transformers.AutoTokenizer.from_pretrained(PROCESSOR)
PLACES = {"first": 0, "second": 1, "third": 2, "fourth": 3}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo(tmp_path_factory.mktemp("demo")).parent


# ---------------------------------------------------------------- the processor


@given(
    st.text() | st.lists(st.sampled_from([*SPECIAL_TOKENS, " ", "\n", "a", "'s", "9", "é", "圆", "🙂"])).map("".join)
)
def test_any_text_round_trips(text: str) -> None:
    normal = unicodedata.normalize("NFC", text)
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == normal


def test_every_byte_is_an_entry() -> None:
    assert set(pre_tokenizers.ByteLevel.alphabet()) <= set(TOKENIZER.get_vocab())
    assert len(TOKENIZER) == 2048


def test_special_tokens_are_single_ids_and_the_config_agrees() -> None:
    ids = {token: TOKENIZER(f"a{token}b", add_special_tokens=False)["input_ids"][1:-1] for token in SPECIAL_TOKENS}
    assert list(ids.values()) == [[2034 + index] for index in range(len(SPECIAL_TOKENS))]
    assert (TOKENIZER.eos_token, TOKENIZER.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert (TOKENIZER.bos_token, TOKENIZER.unk_token) == (None, None)
    config = json.loads((PROCESSOR / "config.json").read_text())
    named = {
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
        "vision_token_id": "<|vision_pad|>",
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "eos_token_id": "<|im_end|>",
        "pad_token_id": "<|endoftext|>",
    }
    assert {key: [config[key]] for key in named} == {key: ids[token] for key, token in named.items()}


def test_words_are_split_as_qwen_splits_them() -> None:
    split = TOKENIZER.backend_tokenizer.pre_tokenizer.pre_tokenize_str("I see 12 shapes.\n\nIt's a  circle")
    pieces = [piece for piece, _ in split]
    assert pieces == ["I", "Ġsee", "Ġ", "1", "2", "Ġshapes", ".ĊĊ", "It", "'s", "Ġa", "Ġ", "Ġcircle"]
    raw = Tokenizer.from_file(str(PROCESSOR / "tokenizer.json"))
    text = "<|im_start|>user\nWhat colour is the square? 图中 <|image_pad|><|im_end|>\n"
    assert raw.encode(text).ids == TOKENIZER(text)["input_ids"]


def test_chat_template() -> None:
    image_first = [{"type": "image"}, {"type": "text", "text": "How many?"}, {"type": "video"}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": image_first},
        {"role": "assistant", "content": "3.\n"},
        {"role": "user", "content": " Sure?"},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    ]
    rendered = (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>How many?"
        "<|vision_start|><|video_pad|><|vision_end|><|im_end|>\n"
        "<|im_start|>assistant\n3.\n<|im_end|>\n"
        "<|im_start|>user\n Sure?<|im_end|>\n"
        "<|im_start|>assistant\nYes.<|im_end|>\n"
    )
    assert TOKENIZER.apply_chat_template(messages, tokenize=False) == rendered
    prompt = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == rendered + "<|im_start|>assistant\n"
    with pytest.raises(Exception, match="unknown content part: smell"):
        TOKENIZER.apply_chat_template([{"role": "user", "content": [{"type": "smell"}]}], tokenize=False)


def test_the_shipped_processor_is_what_the_script_writes() -> None:
    built = {name: content.encode() for name, content in build().items()}
    assert {path.name: path.read_bytes() for path in PROCESSOR.iterdir()} == built


def test_a_tiny_model_can_be_built() -> None:
    config = transformers.AutoConfig.from_pretrained(PROCESSOR)
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    inputs = TOKENIZER("I see 3 circles.", return_tensors="pt")
    logits = model(**inputs).logits
    assert logits.shape == (1, inputs["input_ids"].shape[1], 2048)
    assert logits.isfinite().all()


# ---------------------------------------------------------------- the data


def read_rows(demo: Path, file_name: str) -> list[Any]:
    """The rows of a data file; None for a line that is not JSON."""
    text = (demo / file_name).read_bytes().decode()
    if file_name.endswith(".json"):
        return list(json.loads(text))

    def parse(line: str) -> Any:
        try:
            return json.loads(line)
        except json.JSONDecodeError:
            return None

    return [parse(line) for line in text.removesuffix("\n").split("\n")]


def media_of(row: dict[str, Any], config: dict[str, Any]) -> list[str]:
    media = row[config["columns"]["images"]] if "images" in config["columns"] else []
    return [media] if isinstance(media, str) else media


def reason_of(row: Any, config: dict[str, Any], media_dir: Path) -> str | None:
    """Why a row cannot be used; None for a good row. A second opinion, not the pipeline's."""
    tags = config["tags"]
    if not isinstance(row, dict) or not row[config["columns"]["messages"]]:
        return "bad_row"
    said = [(message[tags["role_tag"]], message[tags["content_tag"]]) for message in row[config["columns"]["messages"]]]
    if not {role for role, _ in said} <= {tags["user_tag"], tags["assistant_tag"], tags["system_tag"]}:
        return "bad_row"
    if tags["assistant_tag"] not in {role for role, _ in said}:
        return "no_target"
    paths = [media_dir / name for name in media_of(row, config)]
    if sum(text.count("<image>") for _, text in said) != len(paths):
        return "bad_placeholders"
    for path in paths:
        if not path.exists():
            return "missing_media"
        with Image.open(path) as image:  # every file opens
            try:
                image.load()
            except OSError:
                return "bad_media"
    return None


def good_turns(demo: Path, name: str) -> list[tuple[list[tuple[str, str]], list[str]]]:
    """Of every good row: its (question, answer) pairs and its media."""
    config = json.loads((demo / "meta.json").read_text())[name]
    tags, found = config["tags"], []
    for row in read_rows(demo, config["file_name"]):
        if reason_of(row, config, demo / config["media_dir"]) is None:
            messages = row[config["columns"]["messages"]]
            texts = [m[tags["content_tag"]] for m in messages if m[tags["role_tag"]] != tags["system_tag"]]
            found.append((list(zip(texts[::2], texts[1::2], strict=True)), media_of(row, config)))
    return found


def test_same_seed_same_bytes(demo: Path, tmp_path: Path) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    make_demo(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(demo)
    make_demo(tmp_path / "other", seed=1)
    assert contents(tmp_path / "other")["data/shapes.jsonl"] != contents(demo)["data/shapes.jsonl"]


@pytest.mark.parametrize("seed", [0, 1])
def test_bad_rows_are_exactly_those_expected(tmp_path: Path, seed: int) -> None:
    meta = json.loads(make_demo(tmp_path, seed).read_text())
    expected = json.loads((tmp_path / "expected.json").read_text())
    bad, num_rows = [], {}
    for name, config in meta.items():
        rows = read_rows(tmp_path, config["file_name"])
        num_rows[name] = {"rows": len(rows)}
        for index, row in enumerate(rows):
            reason = reason_of(row, config, tmp_path / config["media_dir"])
            bad += [{"dataset": name, "row": index, "reason": reason}] if reason else []
    assert {"datasets": num_rows, "bad": bad} == expected
    assert num_rows == {"shapes": {"rows": 115}, "charts": {"rows": 60}, "compare": {"rows": 53}, "text": {"rows": 80}}
    reasons = {"bad_row": 4, "bad_placeholders": 1, "no_target": 1, "missing_media": 1, "bad_media": 1}
    assert Counter(row["reason"] for row in bad) == reasons
    assert {meta[row["dataset"]]["sample_ratio"] for row in bad} == {1.0}  # so each reaches the ledger exactly once


def test_pictures_are_varied(demo: Path) -> None:
    paths = [path for path in (demo / "media").rglob("*.*") if path.name != "truncated.jpg"]
    images = [Image.open(path) for path in paths]
    assert Counter(image.mode for image in images) == {"RGB": len(paths) - 5, "RGBA": 3, "P": 1, "L": 1}
    assert [image.getexif()[0x0112] for image in images if 0x0112 in image.getexif()] == [6]
    assert min(Counter(image.format for image in images).values()) > 50
    assert min(Counter(image.width > image.height for image in images).values()) > 50
    sides = [side for image in images for side in image.size]
    assert 96 <= min(sides) < 110
    assert 390 < max(sides) <= 400


def spans(occupied: np.ndarray) -> list[slice]:
    """[0, 1, 1, 0, 1] -> [1:3, 4:5]"""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], occupied.astype(np.int8), [0]])))
    return [slice(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def nearest(pixel: np.ndarray, names: dict[str, tuple[int, int, int]]) -> str:
    return min(names, key=lambda name: int(np.abs(pixel - np.array(names[name])).sum()))


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB")).astype(int)


def see_shapes(path: Path) -> tuple[str, list[tuple[str, str, float]]]:
    """Background, and (colour, kind, centre x) of every shape, by nothing but the pixels."""
    pixels = pixels_of(path)
    ink = np.abs(pixels - pixels[0, 0]).sum(axis=2) > 100  # more than JPEG noise
    shapes = []
    for band in spans(ink.any(axis=1)):
        for column in spans(ink[band].any(axis=0)):
            rows = np.flatnonzero(ink[band, column].any(axis=1)) + band.start
            top, bottom = int(rows[0]), int(rows[-1]) + 1
            fill = ink[top:bottom, column].mean()  # of the bounding box: square 1, circle pi / 4, triangle 1 / 2
            kind = "square" if fill > 0.92 else "circle" if fill > 0.65 else "triangle"
            colour = nearest(pixels[(top + bottom) // 2, (column.start + column.stop) // 2], COLOURS)
            shapes.append((colour, kind, (column.start + column.stop) / 2))
    return nearest(pixels[0, 0], BACKGROUNDS), shapes


def see_bars(path: Path) -> dict[str, int]:
    """Colour -> height in grid units, by nothing but the pixels."""
    pixels = pixels_of(path)
    lines = np.flatnonzero(pixels[:, 0].mean(axis=1) < 230)  # the left edge, where no bar stands
    ink = (255 - pixels).sum(axis=2) > 200  # a bar, not a grid line
    bars = {}
    for column in spans(ink.any(axis=0)):
        middle = (column.start + column.stop) // 2
        top = int(np.flatnonzero(ink[:, middle])[0])
        bars[nearest(pixels[top + 5, middle], COLOURS)] = round((lines[-1] - top) / (lines[-1] - lines[-2]))
    return bars


def plural(value: int, noun: str) -> str:
    return f"no {noun}s" if value == 0 else f"1 {noun}" if value == 1 else f"{value} {noun}s"


def answer_shapes(question: str, path: Path) -> str:
    background, shapes = see_shapes(path)
    if question == "How many shapes do you see?":
        return f"I see {plural(len(shapes), 'shape')}."
    if match := re.fullmatch(r"How many (\w+)s are there\?", question):
        return f"I see {plural(sum(kind == match[1] for _, kind, _ in shapes), match[1])}."
    if match := re.fullmatch(r"How many shapes are (\w+)\?", question):
        return f"{sum(colour == match[1] for colour, _, _ in shapes)} of {len(shapes)}."
    if question == "What colour is the background?":
        return f"The background is {background}."
    if match := re.fullmatch(r"What colour is the (\w+)\?", question):
        (colour,) = (colour for colour, kind, _ in shapes if kind == match[1])
        return f"The {match[1]} is {colour}."
    match = re.fullmatch(r"Is the (\w+ \w+) to the left or to the right of the (\w+ \w+)\?", question)
    assert match, f"a question that this test cannot answer: {question}"
    (a,), (b,) = ([x for colour, kind, x in shapes if f"{colour} {kind}" == name] for name in match.groups())
    return f"It is to the {'left' if a < b else 'right'}."


def test_answers_about_shapes_are_true(demo: Path) -> None:
    num_descriptions = 0
    for turns, (name,) in good_turns(demo, "shapes"):
        assert turns[0][0].startswith("<image>\n")
        for question, answer in turns:
            asked, path = question.removeprefix("<image>\n"), demo / "media" / name
            if asked == "Describe the picture.":
                background, shapes = see_shapes(path)
                head, listed = answer.removesuffix(".").split(": ")
                assert head == f"On a {background} background", name
                counts = Counter(f"{colour} {kind}" for colour, kind, _ in shapes)
                assert set(listed.split(", ")) == {plural(count, noun) for noun, count in counts.items()}, name
                num_descriptions += 1
            else:
                assert answer == answer_shapes(asked, path), (name, asked)
    assert num_descriptions > 10


def answer_chart(question: str, bars: dict[str, int]) -> str:
    upward = sorted(bars, key=lambda colour: bars[colour])
    if match := re.fullmatch(r"Which bar is the (highest|lowest)\?", question):
        return f"The {upward[-1] if match[1] == 'highest' else upward[0]} bar is the {match[1]}."
    if question == "How many bars does the chart have?":
        return f"The chart has {plural(len(bars), 'bar')}."
    if match := re.fullmatch(r"Is the (\w+) bar higher than the (\w+) bar\?", question):
        return "Yes." if bars[match[1]] > bars[match[2]] else "No."
    if question == "Order the bars from the lowest to the highest.":
        return ", ".join(upward) + "."
    match = re.fullmatch(r"The lines are one unit apart\. How high is the (\w+) bar\?", question)
    assert match, f"a question that this test cannot answer: {question}"
    return f"It is {plural(bars[match[1]], 'unit')} high."


def test_answers_about_charts_are_true(demo: Path) -> None:
    for turns, (name,) in good_turns(demo, "charts"):
        assert turns[0][0].startswith("<image>\n")
        for question, answer in turns:
            assert answer == answer_chart(question.removeprefix("<image>\n"), see_bars(demo / "media" / name)), name


def test_comparisons_are_true(demo: Path) -> None:
    num_images: Counter[int] = Counter()
    for turns, names in good_turns(demo, "compare"):
        num_images[len(names)] += 1
        question, answer = turns[0]
        charts = [index for index, name in enumerate(names) if name.startswith("charts/")]
        if charts:
            bars = see_bars(demo / "media" / names[charts[0]])
            assert [PLACES[answer.split()[1]]] == charts
            assert turns[1] == ("How many bars does it have?", f"{len(bars)}.")
            continue
        (ground_a, a), (ground_b, b) = (see_shapes(demo / "media" / name) for name in names)
        if match := re.search(r"Which picture has more (\w+)s\?", question):
            num_a, num_b = (sum(kind == match[1] for _, kind, _ in shapes) for shapes in (a, b))
            verdicts = {True: "The first picture", False: "The second picture"}
            verdict = "Both have the same number" if num_a == num_b else verdicts[num_a > num_b]
            assert answer == f"{verdict}: {num_a} and {num_b}."
        elif "background colour" in question:
            same = f"Yes, both are {ground_a}."
            assert answer == (same if ground_a == ground_b else f"No, A is {ground_a} and B is {ground_b}.")
        else:
            assert [said for _, said in turns] == [f"{len(a)}.", f"{len(b)}.", f"{len(a)} + {len(b)} = {len(a + b)}."]
    assert set(num_images) == {2, 3, 4}


def answer_text(question: str) -> str:
    if match := re.fullmatch(r"What is (\d+) (\+|times) (\d+)\?", question):
        a, b = int(match[1]), int(match[3])
        return f"{a} + {b} = {a + b}." if match[2] == "+" else f"{a} × {b} = {a * b}."
    if match := re.fullmatch(r"Is (\d+) even or odd\?", question):
        return ("Even.", "Odd.")[int(match[1]) % 2]
    if match := re.fullmatch(r'Write "(\w+)" backwards\.', question):
        return "".join(reversed(match[1]))
    if match := re.fullmatch(r'How many letters are in "(\w+)"\?', question):
        return f"{sum(letter.isalpha() for letter in match[1])} letters."
    if match := re.fullmatch(r"Put in alphabetical order: (.*)\.", question):
        return ", ".join(sorted(match[1].split(", "), key=str.lower)) + "."
    if match := re.fullmatch(r"Write each word backwards: (.*)", question):
        return " ".join(reversed(match[1][::-1].split(" ")))
    head, *words = question.split("\u2028")
    assert head == "Join the lines into one:", f"a question that this test cannot answer: {question}"
    return " ".join(words)


def test_answers_in_text_are_true(demo: Path) -> None:
    for turns, _ in good_turns(demo, "text"):
        for question, answer in turns:
            if match := re.fullmatch(r"Write the table of (\d+)\.", question):
                products = [re.fullmatch(r"(\d+) times (\d+) is (\d+)\.", line) for line in answer.split("\n")]
                for index, product in enumerate(products, start=1):
                    assert product
                    assert [int(group) for group in product.groups()] == [index, int(match[1]), index * int(match[1])]
            else:
                assert answer == answer_text(question)
    num_words = sorted(
        sum(len(text.split()) for turn in turns for text in turn) for turns, _ in good_turns(demo, "text")
    )
    assert num_words[0] < 10
    assert num_words[-5] > 200
