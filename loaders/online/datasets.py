"""make_meta_dataset: the data sets of a meta JSON in memory, as conversations, for training without packing first.

It reads by the pipeline's own ingest, so that online and offline take the same rows and understand them alike.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...pipeline.config import UserError
from ...pipeline.ingest.conversation import KINDS, from_conversation, to_conversation
from ...pipeline.ingest.convert import convert, first_rows, parse_row, resolved
from ...pipeline.ingest.imported import lines_of, num_files
from ...pipeline.ingest.kinds import as_lines
from ...pipeline.ingest.lines import Lines, Part, rows
from ...pipeline.ingest.meta import Columns, Dataset, Tags, copies_of_rows, parsed_names, read_meta
from ...pipeline.ingest.sources import Examples
from ...pipeline.ingest.sources.examples import BadRow
from ...pipeline.records import Skip
from ..ranks import Ranks
from .estimate import IMAGE_CFG, VIDEO_CFG, content_parts, estimate_media_tokens, estimate_text_tokens

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What the precompute step wrote into a row, kept for the length estimates, and the types it must have to be of use.
HINTS: dict[str, Any] = {"_text_tokens": int, "_media_tokens": int, "mm_inputs_meta": Mapping}
STATS = ("n_images", "n_videos", "n_text_only", "n_text_tokens", "n_media_tokens", "n_missing_text_tokens",
         "n_missing_mm_inputs_meta")  # fmt: skip
DETAILS_LOGGED = 3  # skipped rows told one by one; the others are in the counts


class _ExamplesWithStats(list[dict[str, Any]]):
    """A list of examples with the statistics gathered while it was made, so that nobody has to go through it again."""

    __slots__ = ("stats",)
    stats: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Loading:
    """How the loading of one data set went, on this rank."""

    name: str
    num_rows: int  # in the file, for all ranks
    num_samples: int
    skipped: Counter[str]  # by reason
    stats: dict[str, int]
    seconds: float


def make_meta_dataset(
    path_or_dataset: str,
    dataset_names: Sequence[str] | None = None,
    split: str = "train",
    shard_data: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    **kwargs: Any,
) -> _ExamplesWithStats:
    """The examples of a meta JSON's data sets, {"conversation": …} each, in the order of the file.

    dataset_names     which of them; None: all
    split             is ignored; a data set with a "source" names its own in the meta
    shard_data        only this rank's share of every data set: `rows taken by sample_ratio`[rank::world_size]. Only
                      its lines are parsed. Use a local sampler then: the data are already divided
    rank, world_size  default: those of torch.distributed
    kwargs            placeholders="lenient", as in packing; anything else is ignored

    A row that is not a usable conversation is left out, counted by reason in `.stats` and logged; over all ranks the
    samples are those that packing would take, up to media that cannot be read: files of them are not opened here.
    """
    started = time.perf_counter()
    place = _share(shard_data, rank, world_size)
    lenient = _is_lenient(kwargs.get("placeholders", "strict"))
    examples, loadings = _ExamplesWithStats(), []
    for dataset in read_meta(Path(path_or_dataset), _selection(dataset_names)):
        begun = time.perf_counter()
        if dataset.weight is not None:  # how often it takes each row is known only when all are measured
            raise UserError(f"{dataset.name}: has a weight, which is for `neatpack pack`; online, give a sample_ratio")
        taken, num_rows = _examples(dataset, lenient, *place)
        loaded = [example for _, example in taken if not isinstance(example, Skip)]
        skips = [(row, skip) for row, skip in taken if isinstance(skip, Skip)]
        _log_skips(dataset.name, skips, len(taken))
        examples += loaded
        loadings.append(
            _Loading(
                name=dataset.name,
                num_rows=num_rows,
                num_samples=len(loaded),
                skipped=Counter(skip.reason for _, skip in skips),
                stats=_collect_sample_stats(loaded),
                seconds=time.perf_counter() - begun,
            )
        )
    examples.stats = _total(loadings)
    _log_dataset_loading_summary(
        loadings, time.perf_counter() - started, len(examples), place[0] if shard_data else rank
    )
    return examples


def _convert_sharegpt_to_conversation(
    example: dict[str, Any],
    columns: dict[str, str] | None = None,
    tags: dict[str, str] | None = None,
    media_dir: str | None = None,
) -> dict[str, Any]:
    """One ShareGPT-style row as {"conversation": …}; columns, tags and media_dir as in a meta JSON."""
    where = "_convert_sharegpt_to_conversation"
    dataset = Dataset(
        name="",
        columns=parsed_names(Columns, where, "columns", columns),
        tags=parsed_names(Tags, where, "tags", tags),
        media_dir=media_dir or "",
    )
    converted = _converted(example, dataset, lenient=False)
    if isinstance(converted, Skip):
        raise UserError(f"{converted.reason}: {converted.detail}")
    return converted


def _load_json_or_jsonl(file_path: str) -> list[dict[str, Any]]:
    """All rows of a data file, of any kind that packing takes."""
    return _load_jsonl_for_rank(file_path, 1.0, 0, 1)[0]


def _load_jsonl_for_rank(
    file_path: str, sample_ratio: float, rank: int, world_size: int
) -> tuple[list[dict[str, Any]], int]:
    """This rank's rows of a data file, and how many the whole file has. No other rank's line is parsed."""
    parts, num_rows = _whole([as_lines(Path(file_path), _imported())])
    loaded = _rows_for_rank(parts, num_rows, sample_ratio, rank, world_size, parse_row)
    for _, row in loaded:
        if isinstance(row, Skip):
            raise UserError(f"{file_path} {row.detail}; fix or remove the line")
    return [row for _, row in loaded if not isinstance(row, Skip)], num_rows


def _collect_sample_stats(examples: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Media, text-only samples and estimated tokens, and for how many samples the estimate is a guess.

    Tokens are estimated as everywhere (`pipeline.measure.estimate`); with no processor at hand, recorded sizes of media
    are resized by the default geometry. Only samples with an image or a video can miss `mm_inputs_meta`.
    """
    stats: Counter[str] = Counter()
    for example in examples:
        kinds = Counter(part.get("type") for part in content_parts(example))
        visual = kinds["image"] + kinds["video"]
        stats["n_images"] += kinds["image"]
        stats["n_videos"] += kinds["video"]
        stats["n_text_only"] += not any(kinds[kind] for kind in KINDS)
        stats["n_text_tokens"] += estimate_text_tokens(example)
        stats["n_media_tokens"] += estimate_media_tokens(example, IMAGE_CFG, VIDEO_CFG)
        stats["n_missing_text_tokens"] += example.get("_text_tokens") is None
        stats["n_missing_mm_inputs_meta"] += bool(visual) and not example.get("mm_inputs_meta")
    return {key: stats[key] for key in STATS}


def _log_dataset_loading_summary(
    timings: Sequence[_Loading], wall_time: float, total_samples: int, rank: int | None = None
) -> None:
    """A table of the data sets. One rank of a run tells it to everybody; the others only to who asks for debug logs."""
    title = ("data set", "rows", "samples", "skipped", "images", "videos", "text tokens", "media tokens", "seconds")
    total = _total(timings)

    def line(name: str, rows: int, samples: int, skipped: int, stats: Mapping[str, int], seconds: float) -> list[str]:
        keys = ("n_images", "n_videos", "n_text_tokens", "n_media_tokens")
        return [name, *(f"{n:,}" for n in (rows, samples, skipped, *(stats[key] for key in keys))), f"{seconds:.1f}"]

    table = [
        list(title),
        *(
            line(one.name, one.num_rows, one.num_samples, one.skipped.total(), one.stats, one.seconds)
            for one in timings
        ),
        line("total", total["n_rows"], total_samples, total["n_skipped"], total, wall_time),
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join([cells[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(cells[1:], widths[1:], strict=True))])
        for cells in table
    ]
    rule = "-" * len(lines[0])
    text = "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])
    who = "" if rank is None else f" by rank {rank} (rows: of all ranks)"
    level = logging.INFO if not rank else logging.DEBUG
    logger.log(level, "%d data sets loaded%s; token counts are estimates\n%s", len(timings), who, text)


def _examples(
    dataset: Dataset, lenient: bool, rank: int, world_size: int
) -> tuple[list[tuple[int, dict[str, Any] | Skip]], int]:
    """This rank's examples of a data set, each with its row number, and how many rows the data set has."""
    if dataset.is_converted:
        source = dataset.examples()
        mine = _mine(len(source), dataset.sample_ratio, rank, world_size)
        return [(row, _of_source(source, row)) for row in mine], len(source)

    parts, num_rows = _whole([lines_of(dataset, _imported(), number) for number in range(num_files(dataset))])
    dataset = resolved(dataset, first_rows(parts))

    def example(line: bytes, line_number: int) -> dict[str, Any] | Skip:
        row = parse_row(line, line_number)
        return row if isinstance(row, Skip) else _converted(row, dataset, lenient=lenient)

    return _rows_for_rank(parts, num_rows, dataset.sample_ratio, rank, world_size, example), num_rows


def _of_source(source: Examples, row: int) -> dict[str, Any] | Skip:
    """A source's example with its media in memory, as the source gives it; what packing would skip is skipped."""
    try:
        example = source[row]
    except BadRow as error:
        return Skip(reason="bad_row", detail=str(error))
    checked = from_conversation(example)
    return checked if isinstance(checked, Skip) else example


def _converted(row: dict[str, Any], dataset: Dataset, *, lenient: bool) -> dict[str, Any] | Skip:
    example = convert(row, dataset, lenient=lenient)
    if isinstance(example, Skip):
        return example
    # A hint of another type is as good as none, and is counted as missing.
    hints = {key: row[key] for key, kind in HINTS.items() if isinstance(row.get(key), kind)}
    return to_conversation(example) | hints


def _rows_for_rank(
    parts: Sequence[Part], num_rows: int, ratio: float, rank: int, world_size: int, parse: Callable[[bytes, int], T]
) -> list[tuple[int, T]]:
    """Row number and content of this rank's rows.

    Rows were counted first and are read in a second pass, so that only the rank's own lines are ever in memory. A row
    that is taken twice is parsed twice: nobody who changes one copy changes the other.
    """
    mine = _mine(num_rows, ratio, rank, world_size)
    wanted = set(mine)
    texts = {row: (text, line) for part in parts for row, line, _, text in rows(part) if row in wanted}
    return [(row, parse(*texts[row])) for row in mine]


def _whole(files: Sequence[Lines]) -> tuple[list[Part], int]:
    """All of each file, rows numbered through, and how many rows they have."""
    parts: list[Part] = []
    num_rows = 0
    for lines in files:
        end = os.path.getsize(lines.file)
        parts.append(Part(file=lines.file, start=0, end=end, first_row=num_rows, num_rows=0, first_line=1))
        num_rows += sum(1 for _ in rows(parts[-1]))
    return parts, num_rows


def _mine(num_rows: int, ratio: float, rank: int, world_size: int) -> list[int]:
    """This rank's row numbers: of those that `ratio` takes, every world_size-th.

    They are taken in passes over the file, copies [2, 1, 2] as [0, 1, 2, 0, 2]: two copies of a row do not lie side by
    side, and rarely in one batch.
    """
    copies = copies_of_rows(num_rows, ratio)
    passes = range(max(1, int(copies.max(initial=0))))
    taken: list[int] = np.concatenate([np.flatnonzero(copies > number) for number in passes]).tolist()
    return taken[rank::world_size]


def _imported() -> Path:
    """Where files that are not JSONL are rewritten as such, as `datasets` does it: a cache that ranks of a node share.

    Not a temporary folder: the pictures in a parquet file are read from there for as long as training lasts.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("NEATPACK_CACHE") or Path(cache) / "neatpack") / "imported"


def _share(shard_data: bool, rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world_size) of the rows to take: (0, 1) takes them all."""
    if not shard_data:
        return 0, 1
    rank_here, world_here = Ranks().now()
    if rank is None and world_size is None and world_here == 1:
        logger.warning("shard_data, but torch.distributed is not running on several ranks: every row is loaded here")
    return Ranks(rank_here if rank is None else rank, world_here if world_size is None else world_size).now()


def _selection(names: Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    if len(names) == 0:
        raise UserError("dataset_names is empty; name data sets of the meta JSON, or give None for all")
    return (names,) if isinstance(names, str) else tuple(names)


def _is_lenient(placeholders: Any) -> bool:
    if placeholders not in ("strict", "lenient"):
        raise UserError(f"placeholders is {placeholders!r}; it must be strict or lenient")
    return bool(placeholders == "lenient")


def _log_skips(name: str, skips: Sequence[tuple[int, Skip]], num_taken: int) -> None:
    if not skips:
        return
    counts = Counter(skip.reason for _, skip in skips)
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    details = [f"\n  row {row}: {skip.reason}: {skip.detail}" for row, skip in skips[:DETAILS_LOGGED]]
    more = f"\n  and {len(skips) - DETAILS_LOGGED} more" if len(skips) > DETAILS_LOGGED else ""
    logger.warning("%s: %d of %d rows skipped: %s%s", name, len(skips), num_taken, reasons, "".join(details) + more)


def _total(loadings: Sequence[_Loading]) -> dict[str, Any]:
    """Statistics of all data sets: the sums of theirs, rows (of all ranks), samples and what was skipped, by reason."""
    skipped = sum((one.skipped for one in loadings), Counter[str]())
    return {
        **{key: sum(one.stats[key] for one in loadings) for key in STATS},
        "n_rows": sum(one.num_rows for one in loadings),
        "n_samples": sum(one.num_samples for one in loadings),
        "n_skipped": skipped.total(),
        "skipped_by_reason": dict(skipped),
    }
