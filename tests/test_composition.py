"""Which rows share packs: eight datasets through the whole pipeline, measured from the ledger by this file alone."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import picture, tiny_config

from neatpack.format.manifest import Manifest
from neatpack.loaders.order import epoch_order
from neatpack.pipeline.cli import main
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.composition import COPIES, NEIGHBORS, composition_problems, read_composition

pytestmark = pytest.mark.slow

WORDS = tuple("the of and to in is that it was for on are as with his they at be this from".split())  # noqa: SIM905


@dataclass(frozen=True)
class Ledger:
    """Packed documents of an output, as arrays."""

    dataset: np.ndarray
    row: np.ndarray
    repeat: np.ndarray
    pack: np.ndarray
    num_packs: int

    @classmethod
    def read(cls, out: Path) -> "Ledger":
        table = pa.concat_tables(pq.read_table(file) for file in sorted((out / "ledger").glob("*.parquet")))
        table = table.filter(pa.compute.greater_equal(table["pack"], 0))
        dataset = np.unique(table["dataset"].to_numpy(), return_inverse=True)[1]
        row, repeat, pack = (table[name].to_numpy().astype(np.int64) for name in ("row", "repeat", "pack"))
        return cls(dataset, row, repeat, pack, int(pack.max()) + 1)

    def chance(self) -> float:
        counts = np.bincount(self.pack).astype(float)
        return float((counts * (counts - 1)).sum() / (counts.sum() * (counts.sum() - 1)))

    def together(self, labels: np.ndarray) -> tuple[int, int]:
        """Pairs of one label, and those of them that share a pack."""
        numbers = np.unique(labels, return_inverse=True)[1]
        whole, met = (
            np.unique(keys, return_counts=True)[1] for keys in (numbers, numbers * self.num_packs + self.pack)
        )
        return int((whole * (whole - 1) // 2).sum()), int((met * (met - 1) // 2).sum())

    def copies(self) -> tuple[int, int]:
        return self.together(self.dataset * 10**9 + self.row)

    def neighbors(self) -> tuple[int, int]:
        """Pairs of copies of rows that follow each other, and those that share a pack."""
        packs: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        for dataset, row, pack in zip(self.dataset.tolist(), self.row.tolist(), self.pack.tolist(), strict=True):
            packs[dataset, row][pack] += 1
        pairs = together = 0
        for (dataset, row), mine in packs.items():
            others = packs.get((dataset, row + 1), Counter())
            pairs += mine.total() * others.total()
            together += sum(count * others[pack] for pack, count in mine.items())
        return pairs, together


def texts(folder: Path, lengths: np.ndarray, name: str = "text", seed: int = 0) -> dict[str, Any]:
    """Rows of about so many words, all different."""
    random = np.random.RandomState(seed)
    with (folder / f"{name}.jsonl").open("w") as file:
        for number, length in enumerate(lengths.tolist()):
            words = " ".join(WORDS[at] for at in random.randint(0, len(WORDS), length))
            turns = [{"role": "user", "content": f"{name} {number}?"}, {"role": "assistant", "content": words}]
            file.write(json.dumps({"messages": turns}) + "\n")
    return {"file_name": f"{name}.jsonl"}


def pictures(folder: Path, sides: list[tuple[int, int]], questions: int, captions: np.ndarray) -> dict[str, Any]:
    for number, side in enumerate(sides):
        picture(folder / f"{number}.png", *side, seed=number)
    with (folder / "images.jsonl").open("w") as file:
        for number, length in enumerate(captions.tolist()):
            words = " ".join(WORDS[(number + at) % len(WORDS)] for at in range(length))
            turns = [{"role": "user", "content": f"<image>{number}?"}, {"role": "assistant", "content": words}]
            file.write(json.dumps({"messages": turns, "images": [f"{number // questions}.png"]}) + "\n")
    return {"file_name": "images.jsonl", "media_dir": "."}


def lengths_of(num: int, median: int, most: int, seed: int = 0) -> np.ndarray:
    random = np.random.RandomState(seed)
    return np.clip(random.lognormal(np.log(median), 0.8, num), 2, most).astype(int)


def sides_of(num: int) -> list[tuple[int, int]]:
    random = np.random.RandomState(0)
    return [(int(h), int(w)) for h, w in random.randint(60, 420, (num, 2))]


def repeated_text(folder: Path) -> tuple[dict[str, Any], int]:
    return {"text": texts(folder, lengths_of(4000, 60, 800)) | {"sample_ratio": 2}}, 4096


def small_packs(folder: Path) -> tuple[dict[str, Any], int]:
    return {"text": texts(folder, lengths_of(1500, 60, 600)) | {"sample_ratio": 4}}, 1024


def weighted(folder: Path) -> tuple[dict[str, Any], int]:
    large = texts(folder, lengths_of(2400, 60, 600), "large") | {"weight": 0.5}
    small = texts(folder, lengths_of(600, 60, 600, seed=1), "small", seed=1) | {"weight": 0.5}
    return {"large": large, "small": small}, 2048


def repeated_images(folder: Path) -> tuple[dict[str, Any], int]:
    images = pictures(folder, sides_of(120), 1, lengths_of(120, 20, 100)) | {"sample_ratio": 8}
    return {"images": images, "text": texts(folder, lengths_of(600, 60, 600))}, 2048


def yes_and_no(folder: Path) -> tuple[dict[str, Any], int]:
    return {"text": texts(folder, np.full(3000, 8))}, 1024


def equal_lengths(folder: Path) -> tuple[dict[str, Any], int]:
    return {"text": texts(folder, np.full(4000, 50))}, 1024


def near_lengths(folder: Path) -> tuple[dict[str, Any], int]:
    return {"text": texts(folder, np.sort(np.random.RandomState(0).randint(40, 61, 4000)))}, 2048


def questions(folder: Path) -> tuple[dict[str, Any], int]:
    return {"images": pictures(folder, sides_of(60), 10, lengths_of(600, 20, 100))}, 2048


CASES: dict[str, Callable[[Path], tuple[dict[str, Any], int]]] = {
    "text twice": repeated_text,
    "four times in small packs": small_packs,
    "weights": weighted,
    "images eight times": repeated_images,
    "yes and no": yes_and_no,
    "equal lengths": equal_lengths,
    "near lengths, sorted": near_lengths,
    "ten questions an image": questions,
}


@pytest.fixture(scope="module", params=CASES)
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("case")
    meta, pack_size = CASES[request.param](folder)
    (folder / "meta.json").write_text(json.dumps(meta))
    config = tiny_config(folder / "meta.json", folder / "out", pack_size=pack_size, group_size=64, pixels="source")
    run_pack(config)
    yield folder / "out"


def test_copies_of_a_row_never_share_a_pack(out: Path) -> None:
    assert Ledger.read(out).copies()[1] == 0


def test_neighbors_share_packs_by_chance(out: Path) -> None:
    ledger = Ledger.read(out)
    pairs, together = ledger.neighbors()
    by_chance = pairs * ledger.chance()
    assert together <= 1.5 * by_chance + 3 * by_chance**0.5


def test_rows_with_one_image_avoid_each_other(out: Path) -> None:
    if not (out.parent / "images.jsonl").exists():
        return
    ledger = Ledger.read(out)
    names = list(Manifest.read(out).identity.inputs)
    mine = ledger.dataset == sorted(names).index("images")
    questions = 10 if "text" not in names else 1
    only = Ledger(ledger.dataset[mine], ledger.row[mine], ledger.repeat[mine], ledger.pack[mine], ledger.num_packs)
    assert only.together(only.row // questions)[1] == 0


def test_verify_and_inspect_say_the_same(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger, found = Ledger.read(out), {each.kind: each for each in read_composition(out, Manifest.read(out))}
    assert (found[COPIES].pairs, found[COPIES].together) == ledger.copies()
    assert (found[NEIGHBORS].pairs, found[NEIGHBORS].together) == ledger.neighbors()
    assert main(["verify", str(out)]) == 0
    assert main(["inspect", str(out), "--json"]) == 0
    table = json.loads(capsys.readouterr().out.split("\n", 2)[2])["sharing packs"]
    assert {line["pairs of"]: (line["pairs"], line["in one pack"]) for line in table} == {
        kind: (each.pairs, each.together) for kind, each in found.items() if each.pairs
    }
    assert "Which rows share packs" in (out / "report.html").read_text()


def test_every_epoch_has_a_copy_in_each_part(out: Path) -> None:
    """Of k copies about one is in each k-th of an epoch; by chance two of three places would be taken, or fewer."""
    ledger, manifest = Ledger.read(out), Manifest.read(out)
    key = ledger.dataset * 10**9 + ledger.row
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    copies = int(counts.max())
    if copies == 1:
        return
    often = counts[inverse] == copies
    for epoch in range(3):
        order = epoch_order(
            np.arange(ledger.num_packs), manifest.identity.config["group_size"], 0, epoch, keeps_spread=True
        )
        place = np.empty(ledger.num_packs, dtype=np.int64)
        place[order] = np.arange(ledger.num_packs)
        part = place[ledger.pack[often]] * copies // ledger.num_packs
        taken = len(np.unique(inverse[often] * copies + part)) / np.count_nonzero(often)
        by_chance = 1 - (1 - 1 / copies) ** copies
        assert taken > by_chance + (1 - by_chance) / 3, (epoch, copies, taken)


def test_permuted_rows_and_other_seeds_are_as_good(tmp_path: Path) -> None:
    lengths = np.sort(lengths_of(1500, 60, 600))
    counts = set()
    for name, order in (("sorted", np.arange(1500)), ("mixed", np.random.RandomState(1).permutation(1500))):
        for seed in (0, 7):
            folder = tmp_path / f"{name}{seed}"
            folder.mkdir()
            meta = {"text": texts(folder, lengths[order]) | {"sample_ratio": 2}}
            (folder / "meta.json").write_text(json.dumps(meta))
            run_pack(tiny_config(folder / "meta.json", folder / "out", pack_size=2048, seed=seed))
            ledger = Ledger.read(folder / "out")
            assert ledger.copies()[1] == 0
            pairs, together = ledger.neighbors()
            by_chance = pairs * ledger.chance()
            assert together <= 1.5 * by_chance + 4 * by_chance**0.5, (name, seed)
            counts.add(ledger.num_packs)
    assert max(counts) - min(counts) <= 1


def test_group_column_keeps_rows_apart_and_none_does_not(tmp_path: Path) -> None:
    """Fifty sources of eight rows; a pack holds about a dozen."""
    with (tmp_path / "rows.jsonl").open("w") as file:
        for number in range(400):
            turns = [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": "so " * 20}]
            file.write(json.dumps({"messages": turns, "source": f"book {number // 8}"}) + "\n")
    met = {}
    for column in ("source", ""):
        entry = {"file_name": "rows.jsonl"} | ({"group_column": column} if column else {})
        (tmp_path / "meta.json").write_text(json.dumps({"tiny": entry}))
        run_pack(tiny_config(tmp_path / "meta.json", tmp_path / f"out{column}", pack_size=1024))
        ledger = Ledger.read(tmp_path / f"out{column}")
        met[column] = ledger.together(ledger.row // 8)[1]
    assert met["source"] == 0 < met[""]


def test_group_by_none_takes_no_notice_of_media(tmp_path: Path) -> None:
    meta = {"images": pictures(tmp_path, sides_of(4), 25, np.full(100, 10))}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    groups = {}
    for group_by in ("media", "none"):
        out = tmp_path / group_by
        run_pack(tiny_config(tmp_path / "meta.json", out, pack_size=1024, group_by=group_by))
        groups[group_by] = len(set(pq.read_table(out / "ledger/00000.parquet")["group"].to_pylist()))
    assert groups == {"media": 4, "none": 1}


def test_verify_finds_packs_of_neighbors(tmp_path: Path) -> None:
    """A ledger in which each pack has rows that follow each other, as files sorted by length gave them."""
    folder = tmp_path
    (folder / "meta.json").write_text(json.dumps({"text": texts(folder, np.full(600, 20))}))
    run_pack(tiny_config(folder / "meta.json", folder / "out", pack_size=512))
    out = folder / "out"
    assert not list(composition_problems(read_composition(out, Manifest.read(out))))
    ledger = pq.read_table(out / "ledger/00000.parquet")
    ledger = ledger.set_column(
        ledger.schema.get_field_index("pack"), "pack", pa.array(sorted(ledger["pack"].to_pylist()), pa.int32())
    )
    pq.write_table(ledger, out / "ledger/00000.parquet")
    manifest = Manifest.read(out)
    import hashlib
    from dataclasses import replace

    digest = hashlib.sha256((out / "ledger/00000.parquet").read_bytes()).hexdigest()
    changed = replace(manifest, files={**manifest.files, "ledger/00000.parquet": digest})
    (problem,) = composition_problems(read_composition(out, changed))
    assert (problem.code, problem.fields["kind"]) == ("rows-together", NEIGHBORS)


def test_file_of_long_rows_and_then_short_ones_is_not_blamed(tmp_path: Path) -> None:
    """Short rows share packs with many: neighbours among them meet more often than any two rows of the file."""
    lengths = np.concatenate([np.full(900, 150), np.full(300, 2)])
    (tmp_path / "meta.json").write_text(json.dumps({"text": texts(tmp_path, lengths)}))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", pack_size=512))
    ledger = Ledger.read(tmp_path / "out")
    pairs, together = ledger.neighbors()
    assert together > 2 * pairs * ledger.chance()
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_too_many_copies_are_told(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text(json.dumps({"text": texts(tmp_path, np.full(3, 20)) | {"sample_ratio": 50}}))
    packed = run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", pack_size=512))
    assert "of copies share a pack: there is no other place" in packed.summary


@pytest.mark.parametrize("way", ["partitions", "holdout", "lost rows"])
def test_copies_are_apart_in_every_way_of_planning(way: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"partitions": {"partition_samples": 700}, "holdout": {"holdout": 0.1}}.get(way, {})
    meta = {
        "images": pictures(tmp_path, sides_of(40), 4, lengths_of(160, 20, 60)) | {"sample_ratio": 4},
        "text": texts(tmp_path, lengths_of(500, 60, 300)) | {"sample_ratio": 3},
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    if way == "lost rows":  # whole headers, broken data: found out when packs are rendered
        for number in (3, 11, 25):
            content = (tmp_path / f"{number}.png").read_bytes()
            (tmp_path / f"{number}.png").write_bytes(content[: len(content) // 2])
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", pack_size=2048, max_skipped=1.0, **options))
    ledger = Ledger.read(tmp_path / "out")
    assert ledger.copies()[1] == 0
    pairs, together = ledger.neighbors()
    by_chance = pairs * ledger.chance()
    assert together <= 1.5 * by_chance + 4 * by_chance**0.5
