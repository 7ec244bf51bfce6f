"""Charts as inline SVG. Only shapes are stretched with the page: texts are HTML beside them, and keep their size."""

from collections.abc import Callable, Mapping, Sequence

from ...safe import harmless_html as escape
from ...shard.words import counted, percent
from .bins import Histogram

CLASSES = ("one", "two")  # of series: see page.css
MOST_TICKS = 6

Label = Callable[[float], str]


def whole(number: float) -> str:
    return f"{number:,.0f}"


def bars(found: Histogram, *, noun: str, title: str, label: Label = whole, side_by_side: bool = False) -> str:
    """A histogram, series laid on each other or side by side. The tip of a bar says its number."""
    num_bins, pieces = len(found.edges) - 1, []
    highest = max(map(max, found.counts.values())) if side_by_side else found.highest
    width = 0.92 / (len(found.counts) if side_by_side else 1)
    below = [0] * num_bins
    for number, (name, counts) in enumerate(found.counts.items()):
        for at, count in enumerate(counts):
            if not count:
                continue
            height = max(0.8, 100 * count / highest)  # a bar of one among a million is still seen
            x = at + 0.04 + (number * width if side_by_side else 0)
            y = 100 - height - (0 if side_by_side else 100 * below[at] / highest)
            between = f"{label(found.edges[at])} – {label(found.edges[at + 1])}"
            told = f"{between}: {counted(count, noun)}" + (f", {name}" if len(found.counts) > 1 else "")
            pieces.append(
                f'<rect class="{CLASSES[number]}" x="{x:.3f}" y="{max(0.0, y):.2f}" width="{width:.3f}" '
                f'height="{height:.2f}"><title>{escape(told)}</title></rect>'
            )
            below[at] += count
    svg = (
        f'<svg viewBox="0 0 {num_bins} 100" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">'
        f"{''.join(pieces)}</svg>"
    )
    top = f'<span class="top">{counted(highest, noun)}</span>'
    return f'<div class="chart">{top}{svg}{_edge_ticks(found.edges, label)}</div>'


def _edge_ticks(edges: Sequence[float], label: Label) -> str:
    every = -(-(len(edges) - 1) // MOST_TICKS)
    places = list(range(0, len(edges), every))
    if places[-1] != len(edges) - 1:
        places[-1] = len(edges) - 1  # in the place of the last, which it is near
    return ticks([(100 * at / (len(edges) - 1), label(edges[at])) for at in places])


def ticks(places: Sequence[tuple[float, str]]) -> str:
    """Texts below a chart, at these percents of its width."""
    texts = "".join(f'<span style="left:{x:.2f}%">{escape(text)}</span>' for x, text in places)
    return f'<div class="ticks" aria-hidden="true">{texts}</div>'


def curves(series: Mapping[str, Sequence[float]], *, highest: float, title: str) -> str:
    """Lines over places that are evenly apart, from 1 at the bottom to `highest`; and a mark, which the page moves."""
    pieces = ['<line class="grid" x1="0" x2="100" y1="0" y2="0"/><line class="grid" x1="0" x2="100" y1="50" y2="50"/>']
    for number, values in enumerate(series.values()):
        step = 100 / max(1, len(values) - 1)
        points = [f"{at * step:.2f},{100 - 100 * (value - 1) / (highest - 1):.2f}" for at, value in enumerate(values)]
        pieces.append(f'<path class="{CLASSES[number]}" d="M{" L".join(points)}"/>')
    pieces.append('<line class="mark" id="ranks-mark" x1="0" x2="0" y1="0" y2="100"/>')
    return (
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">'
        f"{''.join(pieces)}</svg>"
    )


def legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    return " ".join(
        f'<span class="named"><i class="key {kind}"></i>{escape(name)}</span>'
        for name, kind in zip(names, CLASSES, strict=False)
    )


def share(part: float, total: float) -> str:
    """A percentage with a bar."""
    width = 100 * part / total if total else 0
    return f'{percent(part, total)}<span class="share"><i style="width:{width:.1f}%"></i></span>'


def numbers(found: Histogram, *, of: str, label: Label = whole) -> str:
    """The same as a table, folded."""
    lines = []
    for at, counts in enumerate(zip(*found.counts.values(), strict=True)):
        if any(counts):
            between = f"{label(found.edges[at])} – {label(found.edges[at + 1])}"
            lines.append([between, *(f"{count:,}" for count in counts)])
    return folded("Numbers", table([of, *found.counts], lines))


def folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def table(
    names: Sequence[str], rows: Sequence[Sequence[str]], *, texts: Sequence[int] = (), total: Sequence[str] = ()
) -> str:
    """Cells are HTML. `texts`: columns whose words may wrap, to the left."""

    def line(cells: Sequence[str], tag: str, kind: str = "") -> str:
        marked = (' class="text"' if at in texts else "" for at in range(len(cells)))
        inner = "".join(f"<{tag}{mark}>{text}</{tag}>" for text, mark in zip(cells, marked, strict=True))
        return f"<tr{kind}>{inner}</tr>"

    body = "".join(line(row, "td") for row in rows) + (line(total, "td", ' class="total"') if total else "")
    head = line([escape(name) for name in names], "th")
    kind = ' class="stack"' if texts else ""
    return f'<div class="wide"><table{kind}><thead>{head}</thead><tbody>{body}</tbody></table></div>'
