"""What `neatpack verify` finds: problems with stable codes, as errors have them."""

from collections.abc import Mapping
from typing import Any

PROBLEMS = {
    "counts-mismatch": "the manifest's counts or token sums are not those of index and ledger",
    "document-fake-image": "the fake image of a pack has other tokens, or labels",
    "document-labels": "a label is not the next token, or is set where no target is",
    "document-media": "media tokens, media types and media arrays of a document do not fit",
    "document-padding": "the padding behind a document has tokens or labels",
    "document-positions": "positions are not those of the document alone",
    "document-targets": "a document is trained on elsewhere than its config and row ask for",
    "file-changed": "the sha256 of a file is not that of the manifest",
    "file-missing": "a file that the manifest names does not exist",
    "file-unknown": "a file next to the shards that the manifest does not name",
    "file-unreadable": "a file that cannot be opened or parsed",
    "index-invalid": "the index is not one of this format, or does not fit the manifest",
    "index-mismatch": "the files of the loader differ from index.parquet",
    "ledger-invalid": "lines of the ledger that contradict themselves, or have other columns",
    "ledger-rows": "rows that are missing in the ledger, or there twice",
    "manifest-invalid": "values of the manifest that contradict each other",
    "not-checked": "more problems, or files that were not looked at",
    "pack-arrays": "arrays of a pack of another type, shape or length",
    "pack-changed": "the checksum or header of a pack is not the one that was written",
    "pack-index": "the index says something else of a pack than the pack does",
    "pack-ledger": "the ledger says something else of the documents of a pack than the pack does",
    "pack-length": "a pack or its documents are longer than planned",
    "pack-unreadable": "a pack whose arrays or JSON cannot be read",
    "pixels-changed": "this machine decodes or renders an image differently",
    "rows-together": "copies of a row or neighbors share packs far more often than by chance",
    "shard-changed": "the size, end or sha256 of a shard is not the one that was written",
    "stats-mismatch": "a table of statistics is not that of the index",
}


class Problem(str):
    """What is wrong with an output, in words. Programs and tests use `code`, one of `PROBLEMS`, and `fields`."""

    code: str
    fields: Mapping[str, Any]

    def __new__(cls, message: str, code: str = "not-checked", **fields: Any) -> "Problem":
        assert code in PROBLEMS, code
        self = super().__new__(cls, message)
        self.code, self.fields = code, fields
        return self

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.code

    def inside(self, place: str, **fields: Any) -> "Problem":
        """Return the problem with the place that it is in: a file, a shard, a pack."""
        return Problem(f"{place}: {self}", self.code, **fields, **self.fields)
