"""make_meta_dataset: the data sets of a meta JSON in memory, as conversations, for training without packing first.

It reads by the pipeline's own ingest, so that online and offline take the same rows and understand them alike.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from neatpack.storage.location import Location

from ...pipeline.config import UserError
from ...pipeline.ingest.conversation import KINDS, from_conversation, to_conversation
from ...pipeline.ingest.convert import convert, first_rows, parse_row, resolved
from ...pipeline.ingest.formats import FORMATS, messages
from ...pipeline.ingest.imported import lines_of, num_files
from ...pipeline.ingest.kinds import as_lines
from ...pipeline.ingest.lines import MAX_ROW_BYTES, Part, rows
from ...pipeline.ingest.meta import Columns, Dataset, Tags, parsed_names, read_meta, rows_in_order
from ...pipeline.ingest.sources import Examples
from ...pipeline.ingest.sources.examples import BadRow
from ...pipeline.records import Skip
from ..ranks import Ranks
from .estimate import IMAGE_CFG, VIDEO_CFG, content_parts, estimate_media_tokens, estimate_text_tokens

logger = logging.getLogger(__name__)

# What the precompute step wrote into a row, kept for the length estimates, and the types it must have to be of use.
HINTS: dict[str, Any] = {"_text_tokens": int, "_media_tokens": int, "mm_inputs_meta": Mapping}
STATS = ("n_images", "n_videos", "n_text_only", "n_text_tokens", "n_media_tokens", "n_missing_text_tokens",
         "n_missing_mm_inputs_meta")  # fmt: skip
DETAILS_LOGGED = 3  # skipped rows told one by one; the others are in the counts


class _ExamplesWithStats(list[dict[str, Any]]):
    """A list of examples with the statistics gathered while it was made, so that nobody has to go through it again."""

    __slots__ = ("stats",)
    stats: dict[str, Any]


class UnusableRow(UserError):
    """A row that is no usable conversation, and why."""

    def __init__(self, skip: Skip) -> None:
        super().__init__(f"{skip.reason}: {skip.detail}", code="row-invalid", reason=skip.reason)
        self.skip = skip


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
    shard_data        only this rank's share of every data set: `rows taken by sample_ratio`[rank::world_size], as many
                      on every rank; rows beyond a whole number of ranks are left out, and a warning says how many.
                      Only its lines are parsed. Use a local sampler then: the data are already divided
    rank, world_size  default: those of torch.distributed
    kwargs            placeholders="lenient", as in packing; allow_unknown_keys=True: unknown keys of the meta JSON are
                      a warning, and not an error; anything else is ignored

    Media are named as in the rows, relative to the working directory, or under the data set's `media_dir`. A row that
    is not a usable conversation is left out, counted by reason in `.stats` and logged; over all ranks the samples are
    those that packing would take, and those that have no answer to learn from. Media are not opened here.
    """
    started = time.perf_counter()
    place = _share(shard_data, rank, world_size)
    lenient = _is_lenient(kwargs.get("placeholders", "strict"))
    allow_unknown = bool(kwargs.get("allow_unknown_keys"))
    examples, timings = _ExamplesWithStats(), {}
    for dataset in read_meta(
        Location.parse(Path(path_or_dataset)), _selection(dataset_names), allow_unknown=allow_unknown
    ):
        if dataset.weight is not None:  # how often it takes each row is known only when all are measured
            raise UserError(
                f"{dataset.name}: has a weight, which is for `neatpack pack`; online, give a sample_ratio",
                code="option-conflict",
                dataset=dataset.name,
                key="weight",
            )
        begun = time.perf_counter()
        raw, num_rows, convert_one = _raw(_as_given(dataset), lenient, *place)
        raw = _equal_share(dataset, raw, num_rows, *place)
        read = time.perf_counter()
        taken = [(row, found if isinstance(found, Skip) else convert_one(found)) for row, found in raw]
        loaded = [example for _, example in taken if not isinstance(example, Skip)]
        skips = [(row, skip) for row, skip in taken if isinstance(skip, Skip)]
        _log_skips(dataset.name, skips, len(taken))
        examples += loaded
        ended = time.perf_counter()
        timings[dataset.name] = {
            "io": read - begun,
            "convert": ended - read,
            "total": ended - begun,
            "n_samples": len(loaded),
            "n_rows": num_rows,  # in the files, for all ranks
            "n_skipped": len(skips),
            "skipped_by_reason": Counter(skip.reason for _, skip in skips),
            **_collect_sample_stats(loaded),
        }
    examples.stats = _total(timings)
    wall_time = time.perf_counter() - started
    _log_dataset_loading_summary(timings, wall_time, len(examples), place[0] if shard_data else rank)
    return examples


def _convert_sharegpt_to_conversation(
    example: dict[str, Any],
    columns: dict[str, str] | None = None,
    tags: dict[str, str] | None = None,
    media_dir: str | None = None,
    *,
    ignore_keys: tuple[str, ...] = (),
    lenient: bool = False,
) -> dict[str, Any]:
    """One row of turns as {"conversation": …}; columns, tags, media_dir and ignore_keys as in a meta JSON.

    What is not usable is an UnusableRow, which is a ValueError.
    """
    names = (tuple(sorted((columns or {}).items())), tuple(sorted((tags or {}).items())))
    converted = _converted(example, _dataset_of(*names, media_dir or "", tuple(ignore_keys)), lenient=lenient)
    if isinstance(converted, Skip):
        raise UnusableRow(converted)
    return converted


@lru_cache(maxsize=64)
def _dataset_of(
    columns: tuple[tuple[str, str], ...],
    tags: tuple[tuple[str, str], ...],
    media_dir: str,
    ignore_keys: tuple[str, ...],
) -> Dataset:
    where = "_convert_sharegpt_to_conversation"
    return Dataset(
        name="",
        columns=parsed_names(Columns, where, "columns", dict(columns)),
        tags=parsed_names(Tags, where, "tags", dict(tags)),
        media_dir=media_dir,
        ignore_keys=ignore_keys,
    )


def _load_json_or_jsonl(file_path: str | Sequence[str], *, skips: bool = False) -> list[Any]:
    """All rows of a data file, of any kind that packing takes."""
    return _load_jsonl_for_rank(file_path, 1.0, 0, 1, skips=skips)[0]


def _load_jsonl_for_rank(
    file_path: str | Sequence[str], sample_ratio: float, rank: int, world_size: int, *, skips: bool = False
) -> tuple[list[Any], int]:
    """This rank's rows of a data file, and how many the whole file has. No other rank's line is parsed.

    Several files are one, their rows numbered through. A line that is broken is an error, or with `skips` a Skip in
    its place. Rows were counted first and are read in a second pass, so that only the rank's own lines are ever in
    memory. A row that is taken twice is parsed twice: nobody who changes one copy changes the other.
    """
    names = [file_path] if isinstance(file_path, str) else file_path
    parts, num_rows = _whole([as_lines(Location.parse(Path(name)), _imported()).file for name in names])
    mine = _mine(num_rows, sample_ratio, rank, world_size)
    wanted = set(mine)
    texts = {row: (text, line) for part in parts for row, line, _, text in rows(part, MAX_ROW_BYTES) if row in wanted}
    loaded = [parse_row(*texts[row]) for row in mine]
    if not skips:
        for row in loaded:
            if isinstance(row, Skip):
                raise UserError(
                    f"{', '.join(names)} {row.detail}; fix or remove the line", code="row-invalid", files=names
                )
    return loaded, num_rows


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
    timings: Mapping[str, Mapping[str, Any]], wall_time: float, total_samples: int, rank: int | None = None
) -> None:
    """A table of the data sets, by name: seconds ("io", "convert", "total") and figures ("n_samples", "n_images" …).

    What a data set does not say is 0. One rank of a run tells it to everybody; the others only to who asks for debug
    logs.
    """
    columns = {
        "rows": "n_rows", "samples": "n_samples", "skipped": "n_skipped", "images": "n_images", "videos": "n_videos",
        "text tokens": "n_text_tokens", "media tokens": "n_media_tokens",
    }  # fmt: skip

    def line(name: str, figures: Mapping[str, Any], seconds: float) -> list[str]:
        return [name, *(f"{figures.get(key, 0):,}" for key in columns.values()), f"{seconds:.1f}"]

    total = {key: sum(one.get(key, 0) for one in timings.values()) for key in columns.values()}
    table = [
        ["data set", *columns, "seconds"],
        *(line(name, one, one.get("total", 0)) for name, one in timings.items()),
        line("total", total | {"n_samples": total_samples}, wall_time),
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


Raw = list[tuple[int, Any]]  # row number, and what it holds: or a Skip


def _raw(
    dataset: Dataset, lenient: bool, rank: int, world_size: int
) -> tuple[Raw, int, Callable[[Any], dict[str, Any] | Skip]]:
    """This rank's rows of a data set, how many rows it has in all, and what makes an example of one."""
    if dataset.is_converted:
        source = dataset.examples()
        mine = _mine(len(source), dataset.sample_ratio, rank, world_size)
        return [(row, row) for row in mine], len(source), lambda row: _of_source(source, row)

    files = [lines_of(dataset, _imported(), number).file for number in range(num_files(dataset))]
    dataset = resolved(dataset, first_rows(map(_whole_file, files)))
    whole = (dataset.sample_ratio, rank, world_size) == (1, 0, 1)
    place = files[0] if len(files) == 1 else files
    if whole:
        found = _load_json_or_jsonl(place, skips=True)
        num_rows = len(found)
    else:
        found, num_rows = _load_jsonl_for_rank(place, dataset.sample_ratio, rank, world_size, skips=True)
    mine = _mine(num_rows, dataset.sample_ratio, rank, world_size)
    return list(zip(mine, found, strict=True)), num_rows, _converter(dataset, lenient)


def _equal_share(dataset: Dataset, raw: Raw, num_rows: int, rank: int, world_size: int) -> Raw:
    """As many rows as every other rank has: with more, a rank would wait for the others at the end of an epoch."""
    num_each, num_left_out = divmod(len(rows_in_order(num_rows, dataset.sample_ratio)), world_size)
    if num_left_out and rank == 0:
        logger.warning(
            "%s: %d of %d rows are left out, so that %d ranks have %d each", dataset.name, num_left_out,
            num_each * world_size + num_left_out, world_size, num_each,
        )  # fmt: skip
    return raw[:num_each]


def _converter(dataset: Dataset, lenient: bool) -> Callable[[dict[str, Any]], dict[str, Any] | Skip]:
    """What makes an example of a row: rows of turns by the function that is named for them."""
    if FORMATS[dataset.format].read is not messages.read or dataset.ignore_columns or dataset.placeholders:
        return lambda row: _converted(row, dataset, lenient=lenient)
    columns = {field: name for field, name in asdict(dataset.columns).items() if name}
    tags = asdict(dataset.tags)
    beyond: dict[str, Any] = {"ignore_keys": dataset.ignore_keys, "lenient": lenient}
    more = {name: value for name, value in beyond.items() if value}  # only where needed: a replacement may not take it

    def convert_one(row: dict[str, Any]) -> dict[str, Any] | Skip:
        try:
            return _convert_sharegpt_to_conversation(row, columns, tags, dataset.media_dir, **more)
        except UnusableRow as error:
            return error.skip

    return convert_one


def _as_given(dataset: Dataset) -> Dataset:
    """Media as the rows name them, or under media_dir; they are not looked for."""
    first, *others = dataset.given_dirs or ("",)
    if others:
        logger.warning(
            "%s: media_dir exists twice: %s, next to the meta file, is taken, not %s, in the working directory. Give "
            "an absolute path", dataset.name, first, *others,
        )  # fmt: skip
    bounds = None if dataset.bounds is None else (*dataset.bounds, *([] if first else [os.getcwd()]))
    return replace(dataset, media_dir=first, search=(), bounds=bounds)


def _of_source(source: Examples, row: int) -> dict[str, Any] | Skip:
    """A source's example with its media in memory, as the source gives it; what packing would skip is skipped."""
    try:
        example = source[row]
    except BadRow as error:
        return Skip(reason="bad_row", detail=str(error))
    checked = from_conversation(example)
    return checked if isinstance(checked, Skip) else example


def _converted(row: dict[str, Any], dataset: Dataset, *, lenient: bool) -> dict[str, Any] | Skip:
    example = convert(row, dataset, lenient=lenient, needs_target=False)
    if isinstance(example, Skip):
        return example
    # A hint of another type is as good as none, and is counted as missing.
    hints = {key: row[key] for key, kind in HINTS.items() if isinstance(row.get(key), kind)}
    return to_conversation(example) | hints


def _whole(files: Sequence[str]) -> tuple[list[Part], int]:
    """All of each file, rows numbered through, and how many rows they have."""
    parts: list[Part] = []
    num_rows = 0
    for file in files:
        parts.append(replace(_whole_file(file), first_row=num_rows))
        num_rows += sum(1 for _ in rows(parts[-1]))
    return parts, num_rows


def _whole_file(file: str) -> Part:
    return Part(file=file, start=0, end=os.path.getsize(file), first_row=0, num_rows=0, first_line=1)


def _mine(num_rows: int, ratio: float, rank: int, world_size: int) -> list[int]:
    """This rank's row numbers: of those that `ratio` takes, in their order, every world_size-th."""
    return rows_in_order(num_rows, ratio)[rank::world_size]


def _imported() -> Location:
    """Where files that are not JSONL are rewritten as such, as `datasets` does it: a cache that ranks of a node share.

    Not a temporary folder: the pictures in a parquet file are read from there for as long as training lasts.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Location.parse(Path(os.environ.get("NEATPACK_CACHE") or Path(cache, "neatpack"))) / "imported"


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
        raise UserError(
            "dataset_names is empty; name data sets of the meta JSON, or give None for all",
            code="loader-argument",
            argument="dataset_names",
        )
    return (names,) if isinstance(names, str) else tuple(names)


def _is_lenient(placeholders: Any) -> bool:
    if placeholders not in ("strict", "lenient"):
        raise UserError(
            f"placeholders is {placeholders!r}; it must be strict or lenient",
            code="loader-argument",
            argument="placeholders",
            got=placeholders,
        )
    return bool(placeholders == "lenient")


def _log_skips(name: str, skips: Sequence[tuple[int, Skip]], num_taken: int) -> None:
    if not skips:
        return
    counts = Counter(skip.reason for _, skip in skips)
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    details = [f"\n  row {row}: {skip.reason}: {skip.detail}" for row, skip in skips[:DETAILS_LOGGED]]
    more = f"\n  and {len(skips) - DETAILS_LOGGED} more" if len(skips) > DETAILS_LOGGED else ""
    logger.warning("%s: %d of %d rows skipped: %s%s", name, len(skips), num_taken, reasons, "".join(details) + more)


def _total(timings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Statistics of all data sets: the sums of theirs, rows (of all ranks), samples and what was skipped, by reason."""
    skipped = sum((one["skipped_by_reason"] for one in timings.values()), Counter[str]())
    keys = (*STATS, "n_rows", "n_samples", "n_skipped")
    return {key: sum(one[key] for one in timings.values()) for key in keys} | {"skipped_by_reason": dict(skipped)}
