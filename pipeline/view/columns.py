"""Tables as text: columns aligned, numbers to the right, no colours."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from ..safe import harmless_line
from ..shard.words import clipped

WIDEST = 80  # characters of a text
LOOKED_AT = 1000  # lines that tell how wide columns are; longer tables are not held in memory for it
GAP = "  "


def aligned(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The names of columns and a line per row. Columns of numbers are those whose first cells are."""
    names, rows = [harmless_line(name) for name in names], iter(rows)
    first = list(islice(rows, LOOKED_AT))
    cells = [[cell(value) for value in row] for row in first]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    to_right = [
        bool(first) and all(value is None or _is_number(value) for value in column)
        for column in zip(*first, strict=True)
    ] or [False] * len(names)

    def line(texts: Sequence[str]) -> str:
        placed = zip(texts, widths, to_right, strict=True)
        return GAP.join(text.rjust(width) if right else text.ljust(width) for text, width, right in placed).rstrip()

    yield line(names)
    yield from map(line, cells)
    yield from (line([cell(value) for value in row]) for row in rows)


def table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Records that have the same keys."""
    names = list(lines[0]) if lines else []
    return aligned(names, [[line[name] for name in names] for line in chain(lines)]) if names else iter(())


def cell(value: Any) -> str:
    """1200 -> "1,200", 0.98765 -> "0.9877", None -> "-". Line breaks would break the table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    if _is_number(value):
        return f"{value:,}"
    return clipped(harmless_line(" ".join(str(value).split())), WIDEST)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
