"""The rows of the packs that a task renders, and their media: read before they are needed."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from neatpack.storage.location import Location
from neatpack.storage.ranges import read_ranges

from ..measure.store import TextRow, read_measured, rows_beside, text_row, unpacked
from ..media.ahead import ahead
from ..plan.table import Plan, PlanLine
from ..records import Measured

PACKS_AHEAD = 2  # whose media are read while one is rendered


class Rows(NamedTuple):
    """The lines of a pack in the plan, by column, and what each is of.

    None: nothing any more, for it was measured again and is of no use.
    """

    lines: Mapping[str, Sequence[Any]]
    measured: Sequence[Measured | TextRow | None]  # text that is taken whole needs no more than its bytes

    def taken(self, kept: Sequence[int]) -> Mapping[str, Sequence[Any]]:
        """Some of the lines; mostly all."""
        if len(kept) == len(self.measured):
            return self.lines
        return {name: [values[at] for at in kept] for name, values in self.lines.items()}

    def line(self, at: int) -> PlanLine:
        return cast(PlanLine, {name: values[at] for name, values in self.lines.items()})


def rows_of_packs(plan: Plan, parts: Mapping[int, Location], numbers: Sequence[int]) -> Iterator[tuple[int, Rows]]:
    """Packs and their rows. All rows are read at once, in few requests: they lie all over the token store."""
    ahead.forget()
    first, last = min(numbers) - plan.first, max(numbers) + 1 - plan.first
    begin, end = plan.starts[[first, last]].tolist()
    part, at, size = (plan.packed[name].slice(begin, end - begin).to_numpy() for name in ("part", "at", "size"))
    known, of_known = np.unique(part, return_inverse=True)
    contents = read_ranges([rows_beside(parts[each]) for each in known.tolist()], of_known, at, size)
    coming: deque[tuple[int, Rows]] = deque()
    for number in numbers:
        lines, start = plan.columns_of_pack(number), int(plan.starts[number - plan.first]) - begin
        own = zip(lines["row"], lines["limit"], contents[start : start + len(lines["row"])], strict=True)
        found: list[Measured | TextRow | None] = [
            None if limit else text_row(row, content) for row, limit, content in own
        ]
        rows = Rows(lines, found)
        for at_line, text in enumerate(found):
            if text is None:
                found[at_line] = _measured(rows.line(at_line), contents[start + at_line], parts)
        ahead.tell(medium.ref for each in found if each is not None for medium in each.media)
        coming.append((number, rows))
        if len(coming) > PACKS_AHEAD:
            yield coming.popleft()
    yield from coming


def _measured(line: PlanLine, content: memoryview, parts: Mapping[int, Location]) -> Measured | None:
    """Where its part was measured again, a row is found by its line."""
    found = unpacked(line["row"], content)
    return read_measured(parts[line["part"]], line["line"]) if found is None else found
