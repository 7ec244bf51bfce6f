"""The tables of a finished output, read as what may be damaged: each is compared with the manifest's digest first."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from neatpack.errors import OutputError
from neatpack.format.manifest import REMEDY, Manifest
from neatpack.storage.files import inside, open_regular, sha256_of
from neatpack.storage.location import Location
from neatpack.storage.tables import read_groups, read_parquet

from .ledger import SCHEMA as LEDGER
from .words import counted

BLOCK = 1 << 22  # lines of a ledger that are held at once, where rows are compared: 100 MB with all their numbers
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_LEDGER = re.compile(r"ledger/(\d{5,})(-\d{5,})?\.parquet")


def table_file(out: Location, manifest: Manifest, name: str) -> Location:
    """The file of a table, which is as it was written. Raises OutputError where it is not."""
    where = f"{out}/{name}"
    if name not in manifest.files:
        raise OutputError(
            f"{where}: the manifest does not name it, for an older neatpack made it; pack again",
            code="output-format",
            file=name,
        )
    try:
        path = inside(out, name)
        open_regular(path)[0].close()
        digest = sha256_of(path)
    except FileNotFoundError:
        raise OutputError(f"{where}: missing; {REMEDY}", code="output-damaged", file=name) from None
    except OSError as error:
        raise OutputError(
            f"{where}: cannot be read: {error.strerror or error}", code="output-damaged", file=name
        ) from error
    if digest != manifest.files[name]:
        raise OutputError(
            f"{where}: damaged, for its sha256 is not the manifest's; {REMEDY}", code="output-damaged", file=name
        )
    return path


def read_table(out: Location, manifest: Manifest, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A table, or these columns of it."""
    path = table_file(out, manifest, name)
    with _parquet_of(f"{out}/{name}"):
        return read_parquet(path, columns=None if columns is None else list(columns))


def ledger_names(manifest: Manifest) -> dict[str, list[str]]:
    """By data set, in the order of the run: the files of its ledger; one, or one for each partition that has some.

    Raises OutputError where there are not as many as there must be.
    """
    names = list(manifest.identity.inputs)
    found: list[list[str]] = [[] for _ in names]
    alone = 0
    for name in sorted(manifest.files, key=lambda name: (len(name), name)):
        if (place := _LEDGER.fullmatch(name)) and int(place[1]) < len(names):
            found[int(place[1])].append(name)
            alone += place[2] is None
        elif name.startswith("ledger/"):
            raise OutputError(
                f"{name}: a ledger of none of {counted(len(names), 'data set')}; {REMEDY}",
                code="output-damaged",
                file=name,
            )
    if alone and (alone != len(names) or any(len(files) != 1 for files in found)):
        raise OutputError(
            f"{counted(alone, 'ledger')} of {counted(len(names), 'data set')}; {REMEDY}",
            code="output-damaged",
            got=alone,
            expected=len(names),
        )
    return dict(zip(names, found, strict=True))


def read_ledger(out: Location, manifest: Manifest, names: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """The ledger of a data set, or these columns of it, by row and repetition. `names`: of its files."""
    tables = [read_table(out, manifest, name, columns) for name in names]
    whole = pa.concat_tables(tables) if tables else LEDGER.empty_table().select(columns)
    order = [name for name in ("row", "repeat") if name in columns]
    return whole.sort_by([(name, "ascending") for name in order]) if len(names) > 1 and order else whole


def table_groups(out: Location, manifest: Manifest, name: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """As `read_table`, row group by row group."""
    path = table_file(out, manifest, name)
    with _parquet_of(f"{out}/{name}"):
        yield from read_groups(path, columns)


@contextlib.contextmanager
def _parquet_of(where: str) -> Iterator[None]:
    """What is wrong with a parquet file is an OutputError."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise OutputError(
            f"{where}: not parquet: {str(error)[:200]}; {REMEDY}", code="output-damaged", path=where
        ) from None


class Block(NamedTuple):
    """The rows [first, end) of a data set. Whatever the ledger has before the first of all belongs to the first block,
    and what is behind the last of all to the last."""

    first: int
    end: int
    is_last: bool


def row_blocks(num_rows: int, num_lines: int) -> list[Block]:
    """The rows of a data set in blocks of about BLOCK lines of its ledger each."""
    step = max(1, BLOCK * max(1, num_rows) // max(1, num_lines))
    firsts = range(0, max(1, num_rows), step)
    return [Block(first, min(num_rows, first + step), first + step >= num_rows) for first in firsts]


def ledger_rows(files: Sequence[Location], block: Block, columns: Sequence[str]) -> pa.Table:
    """Lines of some rows of a data set, by row and repetition; no more than these and a row group are in memory."""
    least = block.first if block.first else _LEAST
    last = _MOST if block.is_last else block.end - 1
    found = [LEDGER.empty_table().select(columns)]
    for file in files:
        for lines in read_groups(file, columns, ("row", least, last)):
            inside = pc.and_(pc.greater_equal(lines["row"], least), pc.less_equal(lines["row"], last))
            found.append(lines.filter(inside).cast(found[0].schema))
    return pa.concat_tables(found).sort_by([("row", "ascending"), ("repeat", "ascending")])
