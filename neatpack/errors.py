"""Errors for users, each with a stable code.

The message is for people and may be reworded. Programs and tests use `code`, one of `CODES`, and `fields`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# What a code means. One code for each thing that a user would fix in another way. Skip reasons of the ledger are in
# records.REASONS.
CODES = {
    "batch-mismatch": "a batch does not fit the collater, the loader or the microbatches",
    "cache-unusable": "the loader's cache folder cannot be used, or is too small",
    "column-missing": "a column that the meta JSON names is in no row",
    "column-unread": "a column of media that nothing reads",
    "config-unreadable": "the file given as --config cannot be read",
    "data-changed": "data or media change while a job reads them",
    "data-format": "a data file of an unknown or unsupported kind",
    "data-limit": "a data file unpacks to more than the limits allow",
    "data-missing": "a data file, folder or object does not exist",
    "data-unreadable": "a data file is damaged or malformed",
    "dataset-unknown": "a dataset, row or split that does not exist",
    "disk-full": "no space is left, or a quota is reached",
    "document-unknown": "a pack or document that an output does not have",
    "file-exists": "a file that is not overwritten without being told to",
    "folder-unsafe": "a private folder that belongs to another user, or is a link",
    "format-unknown": "a row format that does not exist, or does not have such a column",
    "internal": "a fault of neatpack itself",
    "item-incomplete": "a pack without keys that the collater needs",
    "lengths-invalid": "lengths or counts that cannot be planned",
    "loader-argument": "an argument of the loader is invalid",
    "loader-position": "a loader whose position is unknown or used by another loader",
    "loader-state": "a state that does not belong to this loader",
    "machine": "a fault of the machine: disk, memory, permissions",
    "memory": "a worker was killed for lack of memory",
    "meta-duplicate": "a key is twice in the meta JSON",
    "meta-invalid": "a value of the meta JSON is invalid",
    "meta-unknown-key": "a key of the meta JSON is unknown",
    "meta-unreadable": "the meta JSON cannot be read",
    "mixture-invalid": "outputs, names or weights of a mixture do not fit",
    "model-layers": "a model with layers that carry state across documents",
    "model-mismatch": "a model of other tokens than the packs",
    "model-unsupported": "a model or attention implementation that cannot train on packs exactly",
    "no-rows": "no row can be packed",
    "option-conflict": "options that exclude each other, or that a family does not take",
    "option-invalid": "the value of an option is invalid",
    "option-missing": "an option that is required",
    "option-unknown": "an option that does not exist",
    "out-not-empty": "--out exists and is not an output of neatpack",
    "output-damaged": "a file of an output is missing, damaged or edited",
    "output-format": "an output of another version",
    "output-locked": "another job is writing to this output",
    "output-mismatch": "an output that was made from other data or another config",
    "output-missing": "no finished output is there",
    "overlong": "a row is longer than a pack",
    "package-missing": "a package that is not installed",
    "pack-size": "packs too small for what must fit into them",
    "pixels-changed": "this machine decodes or renders an image differently",
    "processor-code": "a processor with Python code of its own, which --trust-remote-code does not allow",
    "processor-missing": "a processor that cannot be found or loaded",
    "processor-unsupported": "a processor or chat template that no family supports",
    "ray-start": "Ray does not start",
    "ray-unreachable": "Ray does not answer",
    "row-invalid": "a row that cannot be used",
    "sample-retries": "too many samples failed one after the other",
    "shard-damaged": "a shard or pack is not what was written",
    "source-outside": "a file outside the folders that its dataset may read",
    "store-unreachable": "an object store, disk or mount does not answer",
    "too-many-skipped": "more data is lost than --max-skipped allows",
    "trainer-unsupported": "a trainer that would divide packs or batches wrongly",
    "uri-invalid": "a URI that cannot be read here, or that holds a password",
    "versions-differ": "nodes with other versions of packages",
    "worker-crashed": "a worker ended and no row is to blame",
    "worker-import": "workers lack a package",
}


class NeatpackError(Exception):
    """An error with a stable code and the facts that it is about.

    Attributes:
        code: one of `CODES`.
        fields: facts by name, such as {"dataset": "coco", "key": "sample_ratio"}.
    """

    code = "internal"
    fields: Mapping[str, Any] = {}

    def __init__(self, message: str, *, code: str = "", **fields: Any) -> None:
        super().__init__(message)
        if code:
            assert code in CODES, code
            self.code = code
            self.add_note(f"[{code}]")  # tracebacks show it below the message
        elif (noted := _NOTE.search(message)) and noted[1] in CODES:
            self.code = noted[1]
        if fields:
            self.fields = fields


# A DataLoader raises an error of its worker again with nothing but the text of its traceback, which ends with the note.
_NOTE = re.compile(r"^\[([a-z-]+)\]\s*\Z", re.MULTILINE)


def fields_of(error: BaseException) -> dict[str, Any]:
    """Return the fields of an error, for another one that is raised in its place."""
    return dict(error.fields) if isinstance(error, NeatpackError) else {}


class UserError(NeatpackError, ValueError):
    """Invalid input or arguments (exit code 2). The message says what was got, what was expected and how to fix it."""


@contextmanager
def add_fields(**fields: Any) -> Iterator[None]:
    """Add facts to the fields of errors that the block raises, such as the dataset that it reads."""
    try:
        yield
    except NeatpackError as error:
        error.fields = {**fields, **error.fields}
        raise


class ItemError(NeatpackError, IndexError):
    """A pack or sample that does not exist. An IndexError, so that loops over a dataset end."""


class LoaderError(NeatpackError, RuntimeError):
    """A loader that cannot go on: the data, the workers or the pipeline stages fail."""


class OutputError(NeatpackError, ValueError):
    """An output that cannot be read. The message says what was got, what was expected and how to fix it."""

    code = "output-damaged"


class ShardError(OutputError):
    """A shard or pack that is not what was written. `shard` names the file, `pack` the number, where it is one pack."""

    code = "shard-damaged"

    def __init__(self, message: str, shard: str, pack: int | None = None, *, code: str = "", **fields: Any) -> None:
        super().__init__(message, code=code or self.code, shard=shard, pack=pack, **fields)
        self.shard, self.pack = shard, pack

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.shard, self.pack), self.__dict__


class DataLossError(NeatpackError):
    """By its plan, a job would lose more of its data than --max-skipped allows. Nothing is rendered (exit code 1)."""

    def __init__(self, summary: str, troubles: Mapping[str, tuple[str, ...]]) -> None:
        self.summary = summary  # of the plan
        self.troubles = dict(troubles)  # by output: what would be lost, in words
        message = "; ".join(f"{out}: {lines[0]}" for out, lines in troubles.items())
        super().__init__(message, code="too-many-skipped", outputs=sorted(troubles))
