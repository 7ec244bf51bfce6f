"""The rows of the packs that a task renders, and their media: read before they are needed."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..measure.store import read_measured, rows_beside, unpacked
from ..media.ahead import ahead
from ..plan.table import Plan, PlanLine
from ..records import Measured
from ..runtime.storage import Place, Stretch, read_stretches

PACKS_AHEAD = 2  # whose media are read while one is rendered


class Row(NamedTuple):
    """A line of the plan, and what it is of; None: nothing any more, for it was measured again and is of no use."""

    line: PlanLine
    measured: Measured | None


def rows_of_packs(plan: Plan, parts: Mapping[int, Place], numbers: Sequence[int]) -> Iterator[tuple[int, list[Row]]]:
    """Packs and their rows. All rows are read at once, in few requests: they lie all over the token store."""
    ahead.forget()
    packs = [(number, plan.lines_in_pack(number)) for number in numbers]
    files = {part: rows_beside(path) for part, path in parts.items()}
    wanted = [Stretch(files[line["part"]], line["at"], line["size"]) for _, lines in packs for line in lines]
    contents = iter(read_stretches(wanted))
    coming: deque[tuple[int, list[Row]]] = deque()
    for number, lines in packs:
        rows = [Row(line, _measured(line, next(contents), parts)) for line in lines]
        ahead.tell(medium.ref for row in rows if row.measured for medium in row.measured.media)
        coming.append((number, rows))
        if len(coming) > PACKS_AHEAD:
            yield coming.popleft()
    yield from coming


def _measured(line: PlanLine, content: memoryview, parts: Mapping[int, Place]) -> Measured | None:
    """Where its part was measured again, a row is found by its line."""
    found = unpacked(line["row"], content)
    return read_measured(parts[line["part"]], line["line"]) if found is None else found
