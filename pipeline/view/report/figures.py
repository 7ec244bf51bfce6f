"""The figures of a report, from the tables of an output: no Python object per row."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from neatpack.errors import OutputError
from neatpack.format.manifest import INDEX, MEDIA, Manifest
from neatpack.storage.files import read_json
from neatpack.storage.location import Location

from ...plan.balance import step_ratios
from ...records import REASONS
from ...runtime.progress import FILE as TIMING
from ...shard.tables import ledger_names, read_table
from ...step_cost import DEFAULT_COST, StepCost, step_cost
from .bins import Histogram, counted_in, doubling_edges, even_edges

TEXT_ONLY, WITH_MEDIA = "text only", "with pictures or video"
BEFORE, AFTER = "as they were", "as the model gets them"
MOST_EXAMPLES = 3  # rows of a reason
MIDDLING_RANKS = (*range(1, 33), *range(36, 65, 4), *range(72, 129, 8), *range(160, 513, 32), *range(640, 4097, 128))
_OF_PACK = ("tokens", "visual_tokens", "squares", "num_documents", "num_images", "num_videos", "num_audios",
            "padding_tokens", "fake_tokens")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """Steps of so many ranks: the slowest of each against the mean, as the mean over steps, and the worst step."""

    ranks: int
    steps: int
    left_over: int  # packs that fill no step
    visual: float
    worst_visual: float
    cost: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    dataset: str
    row: int
    id: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Resized:
    """Pictures, or videos, of a data set: how many, and the sizes (height, width) of the middle one by area."""

    dataset: str
    kind: str
    count: int
    before: tuple[int, int]
    after: tuple[int, int]
    smaller: int  # became smaller, or larger
    larger: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Figures:
    manifest: Manifest
    sums: dict[str, int]  # of columns of the index
    num_fakes: int
    lowest_fill: float
    datasets: Sequence[dict[str, Any]]  # lines of stats/datasets.parquet
    lengths: Histogram | None
    fill: Histogram | None
    visual: Histogram | None
    balance: Sequence[Balance]
    examples: dict[str, list[Example]]  # by reason
    sizes: Histogram | None
    resized: Sequence[Resized]
    stages: Sequence[tuple[str, float]]  # of the run that packed, in seconds; none: not recorded


def figures_of(out: Location, manifest: Manifest) -> Figures:
    """Raises OutputError where a table cannot be read."""
    index = read_table(out, manifest, INDEX, _OF_PACK)
    packs = {name: index[name].to_numpy().astype(np.int64) for name in _OF_PACK}
    names = ledger_names(manifest)
    examples: dict[str, list[Example]] = {}
    lengths: dict[str, Counter[int]] = {TEXT_ONLY: Counter(), WITH_MEDIA: Counter()}
    columns = ["row", "id", "status", "reason", "detail", "tokens", "visual_tokens"]
    for dataset, file in ((dataset, file) for dataset, files in names.items() for file in files):
        ledger = read_table(out, manifest, file, columns)
        is_packed = pc.equal(ledger["status"], "packed").to_numpy()
        tokens, has_media = ledger["tokens"].to_numpy()[is_packed], ledger["visual_tokens"].to_numpy()[is_packed] > 0
        for name, own in ((TEXT_ONLY, tokens[~has_media]), (WITH_MEDIA, tokens[has_media])):
            values, counts = np.unique(own, return_counts=True)
            lengths[name].update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        _add_examples(examples, dataset, ledger.filter(pa.array(~is_packed)))
    media = read_table(out, manifest, MEDIA) if MEDIA in manifest.files else None
    fill = packs["tokens"] / manifest.identity.config["pack_size"]
    return Figures(
        manifest=manifest,
        sums={name: int(values.sum()) for name, values in packs.items()},
        num_fakes=int(np.count_nonzero(packs["fake_tokens"])),
        lowest_fill=float(fill.min()) if len(fill) else 0.0,
        datasets=read_table(out, manifest, "stats/datasets.parquet").to_pylist(),
        lengths=_lengths(lengths),
        fill=counted_in(even_edges(100 * fill.min(), 100, 0.1), {"packs": 100 * fill}) if len(fill) else None,
        visual=_per_pack(packs["visual_tokens"]),
        balance=balance_of(
            packs,
            int(manifest.identity.config["group_size"]),
            step_cost(str(manifest.identity.config.get("cost", DEFAULT_COST))),  # outputs before 0.8 have none
        ),
        examples={reason: examples[reason] for reason in REASONS if reason in examples},
        sizes=_sizes(media),
        resized=_resized(media, list(names)),
        stages=_stages(out),
    )


def _add_examples(examples: dict[str, list[Example]], dataset: str, skipped: pa.Table) -> None:
    """The first rows of every reason, over all data sets."""
    for reason in pc.unique(skipped["reason"]).to_pylist():
        found = examples.setdefault(reason, [])
        first = pc.indices_nonzero(pc.equal(skipped["reason"], reason))[: MOST_EXAMPLES - len(found)]
        for line in skipped.take(first).to_pylist() if len(first) else ():
            found.append(Example(dataset=dataset, row=line["row"], id=line["id"], detail=line["detail"]))


def _lengths(lengths: Mapping[str, Mapping[int, int]]) -> Histogram | None:
    """Of how many documents have which length."""
    there = {name: counts for name, counts in lengths.items() if counts}
    if not there:
        return None
    edges = doubling_edges(min(map(min, there.values())), max(map(max, there.values())))
    values = {name: np.array(list(counts)) for name, counts in there.items()}
    return counted_in(edges, values, {name: np.array(list(counts.values())) for name, counts in there.items()})


def _per_pack(values: NDArray[np.int64]) -> Histogram | None:
    if not values.any():
        return None
    return counted_in(even_edges(float(values.min()), float(values.max() + 1)), {"packs": values})


def balance_of(packs: dict[str, NDArray[np.int64]], group_size: int, model: StepCost) -> list[Balance]:
    """At every number of ranks that a cluster is likely to have, up to the number of packs."""
    visual, num_packs = packs["visual_tokens"], len(packs["visual_tokens"])
    encoders = model.of_encoders(visual, np.zeros_like(visual))  # the index does not know what sounds took
    cost = model.of_packs(packs["tokens"], encoders, packs["squares"])
    divisors = {ranks for ranks in range(1, group_size + 1) if group_size % ranks == 0}
    found = []
    for ranks in sorted({*MIDDLING_RANKS, *divisors}):
        if ranks <= num_packs:
            ratios, costs = step_ratios(visual, ranks), step_ratios(cost, ranks)
            found.append(
                Balance(
                    ranks=ranks,
                    steps=num_packs // ranks,
                    left_over=num_packs % ranks,
                    visual=float(ratios.mean()) if len(ratios) else 1.0,
                    worst_visual=float(ratios.max()) if len(ratios) else 1.0,
                    cost=float(costs.mean()) if len(costs) else 1.0,
                )
            )
    return found


def _sizes(media: pa.Table | None) -> Histogram | None:
    """By the side of the square of the same area."""
    if media is None or not len(media):
        return None
    before, after, counts = _areas(media)
    series, weights = {BEFORE: before, AFTER: after}, {BEFORE: counts, AFTER: counts}
    sides = {name: np.sqrt(values) for name, values in series.items()}
    both = np.concatenate(list(sides.values()))
    return counted_in(doubling_edges(float(both.min()), float(both.max())), sides, weights)


def _areas(media: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    column = {name: media[name].to_numpy() for name in media.column_names if name not in ("dataset", "kind")}
    return column["height"] * column["width"], column["resized_height"] * column["resized_width"], column["num_media"]


def _resized(media: pa.Table | None, datasets: Sequence[str]) -> list[Resized]:
    if media is None or not len(media):
        return []
    found = []
    for line in media.select(["dataset", "kind"]).group_by(["dataset", "kind"]).aggregate([]).to_pylist():
        is_mine = pc.and_(pc.equal(media["dataset"], line["dataset"]), pc.equal(media["kind"], line["kind"]))
        mine = media.filter(is_mine)
        before, after, counts = _areas(mine)
        middle = {name: mine.slice(_middle(areas, counts), 1).to_pylist()[0]
                  for name, areas in (("before", before), ("after", after))}  # fmt: skip
        found.append(
            Resized(
                **line,
                count=int(counts.sum()),
                before=(middle["before"]["height"], middle["before"]["width"]),
                after=(middle["after"]["resized_height"], middle["after"]["resized_width"]),
                smaller=int(counts[after < before].sum()),
                larger=int(counts[after > before].sum()),
            )
        )
    return sorted(found, key=lambda each: (datasets.index(each.dataset), each.kind))


def _middle(values: NDArray[np.int64], counts: NDArray[np.int64]) -> int:
    """Where the median is, each value counted so often."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(counts[order])
    return int(order[np.searchsorted(reached, (reached[-1] + 1) // 2)])


def _stages(out: Location) -> list[tuple[str, float]]:
    """Time by stage, where the last run has left it."""
    if not (out / TIMING).is_file():
        return []
    try:
        found = read_json(out / TIMING)
        return [(str(stage["stage"]), float(stage["seconds"])) for stage in found["stages"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OutputError(
            f"{out / TIMING}: no times of a run ({error}); remove it",
            code="output-damaged",
            out=str(out),
            file=str(TIMING),
        ) from None
