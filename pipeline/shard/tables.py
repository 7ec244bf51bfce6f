"""The tables of a finished output, read as what may be damaged: each is compared with the manifest's digest first."""

from collections.abc import Sequence

import pyarrow as pa

from ..manifest import REMEDY, Manifest, OutputError
from ..runtime.storage import Place, inside, open_regular, sha256_of
from ..runtime.tables import read_parquet
from .words import counted


def table_file(out: Place, manifest: Manifest, name: str) -> Place:
    """The file of a table, which is as it was written. Raises OutputError where it is not."""
    where = f"{out}/{name}"
    if name not in manifest.files:
        raise OutputError(f"{where}: the manifest does not name it, for an older neatpack made it; pack again")
    try:
        path = inside(out, name)
        open_regular(path)[0].close()
        digest = sha256_of(path)
    except FileNotFoundError:
        raise OutputError(f"{where}: missing; {REMEDY}") from None
    except ValueError as error:
        raise OutputError(str(error)) from None
    except OSError as error:
        raise OutputError(f"{where}: cannot be read: {error.strerror or error}") from error
    if digest != manifest.files[name]:
        raise OutputError(f"{where}: damaged, for its sha256 is not the manifest's; {REMEDY}")
    return path


def read_table(out: Place, manifest: Manifest, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A table, or these columns of it."""
    path = table_file(out, manifest, name)
    try:
        return read_parquet(path, columns=None if columns is None else list(columns))
    except (pa.ArrowException, OSError) as error:
        raise OutputError(f"{out}/{name}: not parquet: {str(error)[:200]}; {REMEDY}") from None


def ledger_names(manifest: Manifest) -> dict[str, str]:
    """By data set, in the order of the run: the name of its ledger."""
    ledgers = sorted(
        (name for name in manifest.files if name.startswith("ledger/")), key=lambda name: (len(name), name)
    )
    names = list(manifest.identity.inputs)
    if len(ledgers) != len(names):
        raise OutputError(f"{counted(len(ledgers), 'ledger')} of {counted(len(names), 'data set')}; {REMEDY}")
    return dict(zip(names, ledgers, strict=True))
