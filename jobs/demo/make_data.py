"""Make the demo data: pictures drawn by code, conversations whose answers are true, a few deliberately bad rows.

    python jobs/demo/make_data.py OUT

shapes   JSONL       messages/role/content         images: list        sample_ratio 1.0
charts   JSON array  conversations/from/value      image: bare string  sample_ratio 1.5
compare  JSONL       dialog/speaker/utterance      pictures: list      sample_ratio 1.0, two to four pictures
text     JSONL       messages/role/content         no pictures         sample_ratio 0.5

Beside them: meta.json (what the pipeline reads) and expected.json (rows per data set, and which rows are bad and why).
The bad rows are in the data sets with ratio 1.0, so that each of them reaches the ledger exactly once.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageChops, ImageDraw

NUM_ROWS = {"shapes": 110, "charts": 60, "compare": 50, "text": 80}  # good rows
COLOURS = {"red": (214, 40, 40), "green": (40, 160, 70), "blue": (40, 80, 210), "yellow": (245, 205, 30)}
COLOURS |= {"purple": (140, 50, 170), "orange": (240, 125, 20), "black": (15, 15, 15)}
BACKGROUNDS = {"white": (255, 255, 255), "gray": (170, 170, 170), "pink": (250, 200, 215), "cyan": (170, 235, 240)}
KINDS = ("circle", "square", "triangle")
ORDINALS = ("first", "second", "third", "fourth")
MODES = {5: "RGBA", 9: "P", 13: "L", 17: "RGBA", 29: "RGBA", 35: "EXIF"}  # by picture number; all others are RGB
LEXICON = """
apple anchor basket bridge candle castle desert dragon engine feather forest garden guitar hammer harbor island jacket
jungle kettle ladder lantern marble meadow mirror needle ocean orchard paper pencil pepper planet pocket quartz rabbit
ribbon river rocket saddle shadow silver spider stone summer table thunder tiger tunnel umbrella valley winter zebra"""
WORDS = LEXICON.split()
ACCENTED = ["café", "größe", "mañana", "naïve"]  # not for sorting: their order depends on the language
Turns = list[tuple[str, str]]  # (question, answer)


class Shape(NamedTuple):
    kind: str
    colour: str
    x: int
    y: int
    radius: int  # half the side of the bounding box


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """What is drawn: shapes on a background, or (if `bars` is not empty) a bar chart on white."""

    file: str  # relative to media_dir
    size: tuple[int, int]
    mode: str = "RGB"
    background: str = "white"
    shapes: tuple[Shape, ...] = ()
    bars: tuple[tuple[str, int], ...] = ()  # (colour, height in units), left to right


def plan_shapes(number: int, rng: random.Random) -> Picture:
    """Shapes in the cells of a grid, at most one per cell, so that they never touch."""
    mode = MODES.get(number, "RGB")
    size = (rng.randrange(96, 401), rng.randrange(96, 401))
    columns, rows = rng.randint(2, min(4, size[0] // 40)), rng.randint(2, min(4, size[1] // 40))
    cell = min(size[0] // columns, size[1] // rows)
    colours = rng.sample(sorted(COLOURS), 3)  # few colours, so that counting is not trivial
    shapes = []
    for index in sorted(rng.sample(range(columns * rows), rng.randint(1, min(7, columns * rows)))):
        row, column = divmod(index, columns)
        radius = rng.randint(cell * 3 // 10, cell * 4 // 10)
        x, y = (2 * column + 1) * size[0] // (2 * columns), (2 * row + 1) * size[1] // (2 * rows)
        shapes.append(Shape(rng.choice(KINDS), rng.choice(colours), x, y, radius))
    # Transparent white stays white whether alpha is dropped or composited, and on white every colour shows in gray.
    background = "white" if mode in ("RGBA", "L") else rng.choice(sorted(BACKGROUNDS))
    file = f"shapes/{number:03d}.{'png' if mode in ('RGBA', 'P') or number % 3 == 0 else 'jpg'}"
    return Picture(file=file, size=size, mode=mode, background=background, shapes=tuple(shapes))


def plan_chart(number: int, rng: random.Random) -> Picture:
    heights = rng.sample(range(1, 10), rng.randint(3, 5))  # distinct, so that "highest" has one answer
    bars = tuple(zip(rng.sample(sorted(COLOURS), len(heights)), heights, strict=True))
    file = f"charts/{number:03d}.{'png' if number % 2 else 'jpg'}"
    return Picture(file=file, size=(rng.randint(96, 400), rng.randint(112, 400)), bars=bars)


def draw(picture: Picture) -> Image.Image:
    """The upright picture. No text and no anti-aliasing: fonts differ between machines, these pixels do not."""
    image = Image.new("RGB", picture.size, BACKGROUNDS[picture.background])
    pen = ImageDraw.Draw(image)
    for shape in picture.shapes:
        x, y, r, fill = shape.x, shape.y, shape.radius, COLOURS[shape.colour]
        if shape.kind == "triangle":
            pen.polygon([(x - r, y + r), (x + r, y + r), (x, y - r)], fill=fill)
        else:
            (pen.ellipse if shape.kind == "circle" else pen.rectangle)((x - r, y - r, x + r, y + r), fill=fill)
    if picture.bars:
        width, height = picture.size
        unit, floor = height // 11, height - height // 11  # 9 units at most, one free above and below
        for line in range(10):
            pen.line([(0, floor - line * unit), (width, floor - line * unit)], fill=(205, 205, 205))
        pitch = width // len(picture.bars)
        for index, (colour, units) in enumerate(picture.bars):
            left, right = index * pitch + pitch // 5, (index + 1) * pitch - pitch // 5
            pen.rectangle((left, floor - units * unit, right, floor), fill=COLOURS[colour])
    return image


def save(picture: Picture, path: Path) -> None:
    image = draw(picture)
    options: dict[str, Any] = {"quality": 92, "subsampling": 0} if path.suffix == ".jpg" else {}
    if picture.mode == "RGBA":
        ground = Image.new("RGB", image.size, BACKGROUNDS[picture.background])
        image.putalpha(ImageChops.difference(image, ground).convert("L").point(lambda value: 255 if value else 0))
    elif picture.mode in ("P", "L"):
        image = image.convert(picture.mode, palette=Image.Palette.ADAPTIVE)
    elif picture.mode == "EXIF":
        image = image.transpose(Image.Transpose.ROTATE_90)  # stored lying; orientation 6 tells the viewer to right it
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = 6
    image.save(path, **options)


def quantity(value: int, noun: str) -> str:
    return f"no {noun}s" if value == 0 else f"{value} {noun}{'s' * (value > 1)}"


def ask_shapes(picture: Picture, rng: random.Random) -> Turns:
    kinds = Counter(shape.kind for shape in picture.shapes)
    colours = Counter(shape.colour for shape in picture.shapes)
    names = Counter(f"{shape.colour} {shape.kind}" for shape in picture.shapes)
    turns = [("How many shapes do you see?", f"I see {quantity(len(picture.shapes), 'shape')}.")]
    turns += [(f"How many {kind}s are there?", f"I see {quantity(kinds[kind], kind)}.") for kind in KINDS]
    if picture.mode == "L":  # nothing about colours can be seen
        return rng.sample(turns, 2)
    turns += [(f"How many shapes are {name}?", f"{count} of {len(picture.shapes)}.") for name, count in colours.items()]
    turns.append(("What colour is the background?", f"The background is {picture.background}."))
    listed = ", ".join(quantity(count, name) for name, count in names.items())
    turns.append(("Describe the picture.", f"On a {picture.background} background: {listed}."))
    for shape in picture.shapes:
        if kinds[shape.kind] == 1:
            turns.append((f"What colour is the {shape.kind}?", f"The {shape.kind} is {shape.colour}."))
    single = [shape for shape in picture.shapes if names[f"{shape.colour} {shape.kind}"] == 1]
    for a, b in zip(single, single[1:], strict=False):
        if a.x != b.x:  # other columns of the grid, so clearly apart
            question = f"Is the {a.colour} {a.kind} to the left or to the right of the {b.colour} {b.kind}?"
            turns.append((question, f"It is to the {'left' if a.x < b.x else 'right'}."))
    return rng.sample(turns, rng.randint(1, 4))


def ask_chart(picture: Picture, rng: random.Random) -> Turns:
    upward = sorted(picture.bars, key=lambda bar: bar[1])
    (a, a_units), (b, b_units) = rng.sample(picture.bars, 2)
    turns = [
        ("Which bar is the highest?", f"The {upward[-1][0]} bar is the highest."),
        ("Which bar is the lowest?", f"The {upward[0][0]} bar is the lowest."),
        ("How many bars does the chart have?", f"The chart has {quantity(len(upward), 'bar')}."),
        (f"Is the {a} bar higher than the {b} bar?", "Yes." if a_units > b_units else "No."),
        ("Order the bars from the lowest to the highest.", ", ".join(colour for colour, _ in upward) + "."),
        (f"The lines are one unit apart. How high is the {a} bar?", f"It is {quantity(a_units, 'unit')} high."),
    ]
    return rng.sample(turns, rng.randint(1, 4))


def ask_compare(shapes: list[Picture], charts: list[Picture], rng: random.Random) -> tuple[Turns, list[Picture]]:
    """A conversation about two to four of the pictures that the other data sets use as well."""
    style, two = rng.randrange(4), rng.sample(shapes, 2)
    if style == 0:
        kind = rng.choice(KINDS)
        a, b = (sum(shape.kind == kind for shape in picture.shapes) for picture in two)
        verdict = "Both have the same number" if a == b else f"The {ORDINALS[a < b]} picture"
        return [(f"<image><image>\nWhich picture has more {kind}s?", f"{verdict}: {a} and {b}.")], two
    if style == 1:
        x, y = (picture.background for picture in two)
        question = "Picture A: <image>\nPicture B: <image>\nDo they have the same background colour?"
        return [(question, f"Yes, both are {x}." if x == y else f"No, A is {x} and B is {y}.")], two
    if style == 2:  # the second picture comes in a later turn
        a, b = (len(picture.shapes) for picture in two)
        turns = [("<image>\nHow many shapes do you see?", f"{a}."), ("And here? <image>", f"{b}.")]
        return [*turns, ("How many in both together?", f"{a} + {b} = {a + b}.")], two
    place, chart = rng.randint(0, 2), rng.choice(charts)
    pictures = rng.sample(shapes, rng.randint(2, 3))
    pictures.insert(place, chart)
    question = "<image> " * len(pictures) + "One of these is a bar chart. Which one?"
    return [(question, f"The {ORDINALS[place]} one."), ("How many bars does it have?", f"{len(chart.bars)}.")], pictures


def ask_text(rng: random.Random, *, long: bool) -> Turns:
    a, b, word = rng.randint(2, 99), rng.randint(2, 99), rng.choice(WORDS + ACCENTED)
    some = rng.choices(WORDS, k=rng.randint(60, 120) if long else rng.randint(3, 12))
    turns = [
        (f"Put in alphabetical order: {', '.join(some)}.", ", ".join(sorted(some)) + "."),
        (f"Write each word backwards: {' '.join(some)}", " ".join(word[::-1] for word in some)),
        (f"Write the table of {a}.", "\n".join(f"{n} times {a} is {n * a}." for n in range(1, len(some) + 1))),
        # Line separators inside a string: a reader that splits lines on more than \n breaks this row.
        ("Join the lines into one:\u2028" + "\u2028".join(some), " ".join(some)),
    ]
    if long:
        return rng.sample(turns, rng.randint(1, 2))
    turns += [
        (f"What is {a} + {b}?", f"{a} + {b} = {a + b}."),
        (f"What is {a} times {b}?", f"{a} × {b} = {a * b}."),
        (f"Is {a} even or odd?", "Odd." if a % 2 else "Even."),
        (f'Write "{word}" backwards.', word[::-1]),
        (f'How many letters are in "{word}"?', f"{len(word)} letters."),
    ]
    return rng.sample(turns, rng.randint(1, 3))


def data_set(file: str, ratio: float, messages: str, tags: str, images: str | None = None) -> dict[str, Any]:
    """One entry of meta.json; tags are the role key, the content key, and the names of user and assistant."""
    keys = ("role_tag", "content_tag", "user_tag", "assistant_tag", "system_tag")
    return {
        "file_name": file,
        "columns": {"messages": messages} | ({"images": images} if images else {}),
        "tags": dict(zip(keys, [*tags.split(), "system"], strict=True)),
        "media_dir": "media",
        "sample_ratio": ratio,
    }


META = {
    "shapes": data_set("data/shapes.jsonl", 1.0, "messages", "role content user assistant", "images"),
    "charts": data_set("data/charts.json", 1.5, "conversations", "from value human gpt", "image"),
    "compare": data_set("data/compare.jsonl", 1.0, "dialog", "speaker utterance USER BOT", "pictures"),
    "text": data_set("data/text.jsonl", 0.5, "messages", "role content user assistant"),
}


def make_row(name: str, turns: Turns, media: str | list[str] | None = None, lead: str = "") -> dict[str, Any]:
    """The row in its data set's dialect; `lead` goes before the first question."""
    columns, tags = META[name]["columns"], META[name]["tags"]
    texts = [text for turn in turns for text in turn]
    roles = [tags["user_tag"], tags["assistant_tag"]] * len(turns)
    pairs = zip(roles, [lead + texts[0], *texts[1:]], strict=True)
    row: dict[str, Any] = {columns["messages"]: [{tags["role_tag"]: r, tags["content_tag"]: c} for r, c in pairs]}
    return row if media is None else row | {columns["images"]: media}


def good_rows(seed: int = 0) -> tuple[dict[str, list[Any]], list[Picture]]:
    """Every good row of every data set, and every picture they show; draws nothing yet."""
    rng = random.Random(f"neatpack demo {seed}")
    shapes = [plan_shapes(index, rng) for index in range(NUM_ROWS["shapes"])]
    charts = [plan_chart(index, rng) for index in range(NUM_ROWS["charts"])]
    rows: dict[str, list[Any]] = {name: [] for name in META}
    rows["shapes"] = [make_row("shapes", ask_shapes(p, rng), [p.file], "<image>\n") for p in shapes]
    rows["charts"] = [make_row("charts", ask_chart(p, rng), p.file, "<image>\n") for p in charts]
    for _ in range(NUM_ROWS["compare"]):
        turns, pictures = ask_compare([p for p in shapes if p.mode == "RGB"], charts, rng)
        rows["compare"].append(make_row("compare", turns, [picture.file for picture in pictures]))
    for index in range(NUM_ROWS["text"]):
        rows["text"].append(make_row("text", ask_text(rng, long=index % 8 == 3)))
        if index % 5 == 0:
            rows["text"][-1]["messages"].insert(0, {"role": "system", "content": "You are precise and brief."})
    return rows, shapes + charts


def bad_rows() -> Iterator[tuple[str, int, str, Any]]:
    """(data set, row, reason, the row; a string is written as it is)"""
    turn = [("<image>\nHow many shapes do you see?", "I see 2 shapes.")]
    yield "shapes", 7, "bad_placeholders", make_row("shapes", turn, ["shapes/001.jpg", "shapes/002.jpg"])
    yield "shapes", 19, "missing_media", make_row("shapes", turn, ["shapes/nowhere.jpg"])
    yield "shapes", 40, "bad_media", make_row("shapes", turn, ["shapes/truncated.jpg"])
    yield "shapes", 58, "bad_row", '{"messages": [{"role": "user", "content": "<image>\\nHow ma'
    yield "shapes", 83, "bad_row", {"messages": [], "images": []}
    yield "compare", 4, "bad_row", ["a list", "is not a row"]
    stranger = make_row("compare", [("Hello?", "Hello.")], [])
    stranger["dialog"][0]["speaker"] = "STRANGER"
    yield "compare", 26, "bad_row", stranger
    yield "compare", 45, "no_target", {"dialog": [{"speaker": "USER", "utterance": "Anyone?"}], "pictures": []}


def make_demo(out_dir: Path, seed: int = 0) -> Path:
    """Write the demo data below out_dir and return the path of its meta.json. The same seed gives the same bytes."""
    rows, pictures = good_rows(seed)
    for folder in ("data", "media/shapes", "media/charts"):
        (out_dir / folder).mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        save(picture, out_dir / "media" / picture.file)
    whole = (out_dir / "media/shapes/001.jpg").read_bytes()
    (out_dir / "media/shapes/truncated.jpg").write_bytes(whole[: len(whole) * 2 // 3])  # header intact, pixels not
    bad = []
    for name, index, reason, row in bad_rows():
        rows[name].insert(index, row)  # in rising order, so `index` is its place in the file
        bad.append({"dataset": name, "row": index, "reason": reason})
    for name, config in META.items():
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows[name]]
        text = "\n".join(lines) if config["file_name"].endswith(".jsonl") else "[\n" + ",\n".join(lines) + "\n]"
        (out_dir / config["file_name"]).write_bytes(text.encode() + b"\n")
    expected = {"datasets": {name: {"rows": len(rows[name])} for name in META}, "bad": bad}
    (out_dir / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
    (out_dir / "meta.json").write_text(json.dumps(META, indent=2) + "\n")
    return out_dir / "meta.json"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the demo data set.")
    parser.add_argument("out", type=Path, help="folder to write into")
    print(make_demo(parser.parse_args().out))
