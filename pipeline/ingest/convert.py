"""One row of a data set -> an Example or a Skip, by the data set's format; and which format that is."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from neatpack.errors import UserError

from ..records import Example, Skip
from .conversation import from_conversation
from .data_warnings import warn_of_data
from .dialect import Dialect
from .formats import AUTO, FORMATS
from .formats.detect import detect, used_and_unused
from .formats.example import example_of
from .formats.said import Said
from .formats.texts import MAX_DEPTH, TOO_DEEP, is_too_deep
from .lines import MAX_ROW_BYTES, PROBLEM, Part, constant, rows
from .media import MAX_FRAMES, MAX_MEDIA, json_name
from .meta import Dataset
from .stand_ins import stand_ins, unsupported
from .twice import problems
from .unread import Problem, RowFacts, kinds_of, later_problems, unread, unread_media

NUM_FIRST_ROWS = 100  # that tell a format: enough for a set of which a few rows have pictures
MAX_PROBLEMS = 5  # of a data set that a message names
FIRST_BYTES = 16 << 20  # of them; rows with media in them are long, and the driver waits

_JSON = json.JSONDecoder(parse_constant=constant)

logger = logging.getLogger(__name__)


def parse_row(line: bytes, line_number: int | str, max_bytes: int = MAX_ROW_BYTES) -> dict[str, Any] | Skip:
    """`line_number`: for whoever looks for the row; also "7 of b.jsonl". Longer rows are not even parsed."""
    return parse_rows([(line, line_number)], max_bytes)[0]


def parse_rows(lines: Sequence[tuple[bytes, int | str]], max_bytes: int = MAX_ROW_BYTES) -> list[dict[str, Any] | Skip]:
    """`parse_row` of each, in less time: all are looked through at once for keys that are there twice."""
    found = [_parsed(*line, max_bytes) for line in lines]
    good = [index for index, row in enumerate(found) if not isinstance(row, Skip)]
    twice = problems([lines[index][0] for index in good], [found[index] for index in good])
    for number, problem in twice.items():
        found[good[number]] = Skip(
            reason="bad_row",
            detail=f"line {lines[good[number]][1]}: {problem}",
            fields={"line": lines[good[number]][1]},
        )
    return found


def _parsed(line: bytes, line_number: int | str, max_bytes: int) -> dict[str, Any] | Skip:
    if len(line) > max_bytes:
        return Skip(
            reason="bad_row",
            detail=f"line {line_number}: more bytes than --max-row-bytes {max_bytes} allows",
            fields={"line": line_number, "got": len(line), "most": max_bytes},
        )
    try:
        # To ask in which of five encodings bytes are takes time; what begins so can be in UTF-8 alone.
        encoding = "utf-8" if line[:2] == b'{"' else json.detect_encoding(line)
        row = _JSON.decode(line.decode(encoding, "surrogatepass"))
    except RecursionError:
        return Skip(reason="bad_row", detail=f"line {line_number}: {TOO_DEEP}", fields={"line": line_number})
    except ValueError as error:  # not JSON, not UTF-8, a number of thousands of digits
        return Skip(reason="bad_row", detail=f"line {line_number}: broken JSON: {error}", fields={"line": line_number})
    if not isinstance(row, dict):
        return Skip(
            reason="bad_row",
            detail=f"line {line_number}: a JSON {json_name(row)} where an object was expected",
            fields={"line": line_number},
        )
    # No row has more levels than brackets, and most have fewer than a hundred.
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and is_too_deep(row):
        return Skip(reason="bad_row", detail=f"line {line_number}: {TOO_DEEP}", fields={"line": line_number})
    if isinstance(row.get(PROBLEM), str):  # a row of our own rewriting that could not be made
        return Skip(reason="bad_row", detail=row[PROBLEM])
    return row


def convert(
    row: dict[str, Any], dataset: Dataset, *, lenient: bool = False, needs_target: bool = True
) -> Example | Skip:
    """See `example_of` for what becomes of text, tags and media."""
    return converter(dataset, lenient=lenient, needs_target=needs_target)(row)


def converter(
    dataset: Dataset, *, lenient: bool = False, needs_target: bool = True
) -> Callable[[dict[str, Any]], Example | Skip]:
    """`convert` for many rows of a data set: what is the same for all of them is worked out once."""
    dialect = _dialect(dataset, lenient=lenient, needs_target=needs_target)

    def converted(row: dict[str, Any]) -> Example | Skip:
        if dataset.is_converted:  # a row of our own import, see pipeline/ingest/imported.py
            example = from_conversation(row, dialect.folders, needs_target=needs_target)
        else:
            said = _said(row, dataset, dialect)
            if isinstance(said, Said) and (num := sum([len(named) for named in said.media.values()])) > MAX_MEDIA:
                said = _too_many(num, "media", MAX_MEDIA)
            example = said if isinstance(said, Skip) else example_of(said, dialect)
        if isinstance(example, Example) and (problem := _beyond_bounds(example)):
            return problem
        if isinstance(example, Example) and any([isinstance(ref.held, tuple) for ref in example.media]):
            return Skip(reason="bad_row", detail="a sound as numbers in the row; expected the path of a file")
        return example

    return converted


def _beyond_bounds(example: Example) -> Skip | None:
    if len(example.media) > MAX_MEDIA:
        return _too_many(len(example.media), "media", MAX_MEDIA)
    num_frames = sum([len(ref.frames) for ref in example.media])
    return _too_many(num_frames, "frames in lists", MAX_FRAMES) if num_frames > MAX_FRAMES else None


def _too_many(number: int, what: str, most: int) -> Skip:
    return Skip(
        reason="bad_row",
        detail=f"{number} {what} in a row (at most {most}); cut it into several",
        fields={"got": number, "most": most},
    )


def said_of(row: dict[str, Any], dataset: Dataset) -> Said | Skip:
    """What a row says, with its media as it names them."""
    return _said(row, dataset, _dialect(dataset))


def _said(row: dict[str, Any], dataset: Dataset, dialect: Dialect) -> Said | Skip:
    assert dataset.format != AUTO, f"{dataset.name}: its format is not told yet; see `resolved`"
    row = _visible(row, dataset)
    said = FORMATS[dataset.format].read(row, dialect)
    return said if isinstance(said, Skip) else unsupported(row, said) or said


def _visible(row: dict[str, Any], dataset: Dataset) -> dict[str, Any]:
    """The row without columns that are to be ignored."""
    if not dataset.ignore_columns:
        return row
    return {key: value for key, value in row.items() if key not in dataset.ignore_columns}


def _dialect(dataset: Dataset, *, lenient: bool = False, needs_target: bool = True) -> Dialect:
    return Dialect(
        columns=dataset.row_columns,
        tags=dataset.tags,
        folders=dataset.media_folders,
        ignore_keys=dataset.ignore_keys,
        placeholders=dataset.placeholders or ("lenient" if lenient else "strict"),
        needs_target=needs_target,
    )


def first_rows(parts: Iterable[Part], max_bytes: int = MAX_ROW_BYTES) -> list[dict[str, Any]]:
    """The first rows of a data set, as far as they are objects; fewer where they are long."""
    found, num_bytes = [], 0
    for line in islice(chain.from_iterable(rows(part, max_bytes) for part in parts), NUM_FIRST_ROWS):
        row = parse_row(line.text, line.line, max_bytes)
        if not isinstance(row, Skip):
            found.append(row)
        num_bytes += len(line.text)
        if num_bytes > FIRST_BYTES:
            break
    return found


def resolved(dataset: Dataset, first: Sequence[dict[str, Any]]) -> Dataset:
    """The data set with its format told from its first rows, unless it is given; what of them is used is logged.

    Where no format fits it is "messages", so that each row says what it lacks. Raises UserError where rows have media
    in a column that nothing reads.
    """
    if dataset.is_converted:
        return dataset
    first = [_visible(row, dataset) for row in first]
    how, level = "as given", logging.INFO
    if dataset.format == AUTO:
        name = detect(first)
        how = "told from its first rows" if name else "for no other fits its first rows"
        level = logging.WARNING if first and not name else level
        chosen = FORMATS[name or "messages"]
        dataset = replace(dataset, format=name or "messages", columns=chosen.columns, tags=chosen.tags)
    uses = FORMATS[dataset.format].uses(dataset.columns) | {dataset.id_column}
    used, unused = (", ".join(keys) or "none" for keys in used_and_unused(first, uses))
    words = "%s: format %s, %s; columns used: %s; not used: %s"
    logger.log(level, words, dataset.name, dataset.format, how, used, unused)
    dialect = _dialect(dataset)
    said = [_said(row, dataset, dialect) for row in first]
    _refuse(dataset, list(unread_media(first, said, dataset.format, dataset.columns)))
    warnings = unread(first, said, dataset.format, dataset.columns, dataset.ignore_keys, dataset.id_column)
    for problem in (*warnings, *stand_ins(first, said)):
        warn_of_data(logger, f"{dataset.name}: {problem}")
    return replace(dataset, has_media=any(isinstance(what, Said) and kinds_of(what) for what in said))


def judge_rows(dataset: Dataset, first: Sequence[dict[str, Any]], facts: RowFacts) -> None:
    """Judge what only all rows show, once they are measured. Raises UserError where that ends the run."""
    first = [_visible(row, dataset) for row in first]
    said = [said_of(row, dataset) for row in first]
    found = list(later_problems(facts, first, said, dataset.format, dataset.columns))
    _refuse(dataset, [problem for problem in found if problem.code])
    for problem in found:
        warn_of_data(logger, f"{dataset.name}: {problem.text}")


def _refuse(dataset: Dataset, problems: Sequence[Problem]) -> None:
    if problems:
        more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        raise UserError(
            f"data set {dataset.name!r}: {'; '.join(each.text for each in problems[:MAX_PROBLEMS])}{more}",
            code=problems[0].code,
            dataset=dataset.name,
            columns=[each.column for each in problems],
        )
