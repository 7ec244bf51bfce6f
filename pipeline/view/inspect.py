"""`neatpack inspect`: the tables of an output as text, as JSON, or asked by SQL."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from neatpack.format.manifest import FETCHED, INDEX, MEDIA, Manifest
from neatpack.storage.location import Location
from neatpack.storage.tables import column_sum, read_parquet

from ..config import UserError
from ..records import REASONS
from ..shard.composition import read_composition
from ..shard.tables import ledger_names, read_table, table_file, table_groups
from ..shard.words import counted
from .columns import table

Lines = list[dict[str, Any]]

# Columns: as they are called here, and in stats/datasets.parquet or stats/shards.parquet.
OF_BOTH = {
    "tokens": "tokens",
    "visual_tokens": "visual_tokens",
    "target_tokens": "target_tokens",
    "images": "num_images",
    "videos": "num_videos",
    "audio": "num_audios",
}
OF_DATASET = {"rows": "rows", "samples": "samples", "packed": "packed", **OF_BOTH}
OF_SHARD = {"packs": "num_packs", "bytes": "bytes", "documents": "num_documents", **OF_BOTH}
OF_DOCUMENT = ("tokens", "visual_tokens")
OF_PACK = ("tokens", "visual_tokens", "target_tokens", "num_documents")
PERCENTILES = {"min": 0, "p5": 5, "median": 50, "p95": 95, "max": 100}


def inspected(out: Location, manifest: Manifest) -> dict[str, Lines]:
    """The tables that are shown, by title. Sums of columns are the manifest's counts."""
    shards = read_table(out, manifest, "stats/shards.parquet").to_pylist()
    return {
        "datasets": dataset_lines(out, manifest),
        "skipped": [
            {
                "reason": reason,
                "samples": manifest.counts.skipped[reason],
                "tokens": manifest.counts.skipped_tokens.get(reason, 0),
                "meaning": REASONS[reason],
            }
            for reason in REASONS
            if reason in manifest.counts.skipped
        ],
        "lengths": _lengths(out, manifest),
        "sharing packs": [
            {
                "pairs of": each.kind,
                "pairs": each.pairs,
                "in one pack": each.together,
                "by chance": round(each.by_chance, 1),
                "times chance": None if each.times_chance is None else round(each.times_chance, 2),
            }
            for each in read_composition(out, manifest)
            if each.pairs
        ],
        "shards": [
            {"shard": line["shard"]} | {name: line[column] for name, column in OF_SHARD.items()} for line in shards
        ],
    }


def dataset_lines(out: Location, manifest: Manifest) -> Lines:
    """By data set; what is in packs and of none (fake images, padding) has lines of its own, so that sums are right."""
    found = read_table(out, manifest, "stats/datasets.parquet").to_pylist()
    lines: Lines = []
    for each in found:
        line: dict[str, Any] = {"dataset": each["dataset"]}
        for name, column in OF_DATASET.items():
            line[name] = each.get(column)
            if name == "packed":
                line["skipped"] = each["samples"] - each["packed"]
        lines.append(line)
    index = read_table(out, manifest, INDEX, ["padding_tokens", "fake_tokens"])
    own = dict.fromkeys(["rows", "samples", "packed", "skipped", *list(OF_DATASET)[3:]], 0)
    if fake_tokens := column_sum(index["fake_tokens"]):
        num_fakes = column_sum(pc.greater(index["fake_tokens"], 0))
        visual = manifest.counts.visual_tokens - sum(line["visual_tokens"] for line in lines)
        lines.append(
            {"dataset": "(fake images)", **own, "tokens": fake_tokens, "visual_tokens": visual, "images": num_fakes}
        )
    if padding := column_sum(index["padding_tokens"]):
        lines.append({"dataset": "(padding)", **own, "tokens": padding})
    return lines


def _lengths(out: Location, manifest: Manifest) -> Lines:
    """How tokens are spread over documents, and over packs."""
    names = [name for files in ledger_names(manifest).values() for name in files]
    of_documents, of_packs = ({name: _Spread() for name in columns} for columns in (OF_DOCUMENT, OF_PACK))
    for file in names:
        for lines in table_groups(out, manifest, file, ("status", *OF_DOCUMENT)):
            packed = lines.filter(pc.equal(lines["status"], "packed"))
            for name, spread in of_documents.items():
                spread.add(packed[name])
    for lines in table_groups(out, manifest, INDEX, OF_PACK):
        for name, spread in of_packs.items():
            spread.add(lines[name])
    told = [("document", of_documents)] if names else []
    return [spread.line(of, name) for of, spreads in (*told, ("pack", of_packs)) for name, spread in spreads.items()]


class _Spread:
    """How often each number is there: of billions of documents, no more different ones than a pack has tokens."""

    def __init__(self) -> None:
        self._values = self._counts = np.zeros(0, np.int64)

    def add(self, column: pa.ChunkedArray) -> None:
        values, counts = np.unique(column.to_numpy().astype(np.int64), return_counts=True)
        self._values, places = np.unique(np.concatenate([self._values, values]), return_inverse=True)
        all_counts = np.zeros(len(self._values), np.int64)
        np.add.at(all_counts, places, np.concatenate([self._counts, counts]))
        self._counts = all_counts

    def line(self, of: str, name: str) -> dict[str, Any]:
        """Of numbers that there are: percentiles are not interpolated."""
        num, total = int(self._counts.sum()), sum(map(operator.mul, self._values.tolist(), self._counts.tolist()))
        line: dict[str, Any] = {"of": of, "figure": name.removeprefix("num_"), "count": num}
        for title, percentile in PERCENTILES.items():
            line[title] = self._at(max(1, -(-num * percentile // 100))) if num else None
        return line | {"mean": total / num if num else None, "sum": total}

    def _at(self, rank: int) -> int:
        """The number at a place in their order, from 1 on."""
        return int(self._values[np.searchsorted(np.cumsum(self._counts), rank)])


def with_total(lines: Sequence[Mapping[str, Any]]) -> Lines:
    """The same with a last line of sums, if there are several; a column that lacks a number has none."""
    if len(lines) < 2:
        return [dict(line) for line in lines]
    first, *names = lines[0]
    total: dict[str, Any] = {first: "total"}
    for name in names:
        values = [line[name] for line in lines]
        is_sum = all(isinstance(value, int) for value in values)
        total[name] = sum(values) if is_sum else None if all(value is None for value in values) else ""
    return [*map(dict, lines), total]


def described(out: Location, manifest: Manifest, tables: Mapping[str, Lines]) -> Iterator[str]:
    """The tables as lines of text; the longest, shards, last."""
    config, counts = manifest.identity.config, manifest.counts
    yield str(out)
    yield (
        f"neatpack {manifest.neatpack}, {manifest.family.get('name', '?')}, "
        f"{counted(counts.packs, 'pack')} of {config['pack_size']:,} tokens, {config.get('split', 'train')}, "
        f"fingerprint {manifest.fingerprint}"
    )
    for title, lines in tables.items():
        yield ""
        yield f"{title}:" if lines else f"{title}: none"
        yield from table(lines if title in ("lengths", "sharing packs") else with_total(lines))


def answered(out: Location, manifest: Manifest, query: str) -> tuple[list[str], Iterator[Sequence[Any]]]:
    """Names of columns, and the lines that DuckDB answers a query with. Raises UserError where it does not."""
    try:
        import duckdb
    except ModuleNotFoundError:
        raise UserError(
            "--sql needs duckdb, which is not installed: pip install duckdb", code="package-missing", package="duckdb"
        ) from None
    # Nothing is fetched for a query: an extension that is not there is an error.
    asked = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    tables = views(out, manifest)
    for name, files in tables.items():
        if not out.is_local:  # DuckDB's own way to stores is an extension
            asked.register(name, pa.concat_tables([read_parquet(file) for file in files]))
            continue
        places = ", ".join("'" + str(path).replace("'", "''") + "'" for path in files)
        asked.execute(f'create view "{name}" as select * from read_parquet([{places}])')
    try:
        found = asked.execute(query)
        if found is None:
            raise UserError(
                f"--sql: no query in {query!r}; the tables are {', '.join(tables)}",
                code="option-invalid",
                option="sql",
                got=query,
            )
        names = [str(column[0]) for column in found.description or ()]
    except duckdb.Error as error:
        raise UserError(
            f"--sql: {_first_line(error)}; the tables are {', '.join(tables)}",
            code="option-invalid",
            option="sql",
            got=query,
        ) from None

    def lines() -> Iterator[Sequence[Any]]:
        try:
            while some := found.fetchmany(1000):
                yield from some
        except duckdb.Error as error:
            raise UserError(f"--sql: {_first_line(error)}", code="option-invalid", option="sql", got=query) from None

    return names, lines()


def _first_line(error: Exception) -> str:
    """The others point into the query."""
    return str(error).splitlines()[0].rstrip("!.")


def views(out: Location, manifest: Manifest) -> dict[str, list[Location]]:
    """What a query can name, with the parquet files that it is made of."""
    named = {"index": [INDEX], "ledger": [name for files in ledger_names(manifest).values() for name in files]}
    named |= {name: [f"stats/{name}.parquet"] for name in ("datasets", "packs", "shards")}
    named |= {"media": [MEDIA], "fetched": [FETCHED]}
    there = {name: files for name, files in named.items() if files and manifest.files.keys() >= set(files)}
    return {name: [table_file(out, manifest, file) for file in files] for name, files in there.items()}
