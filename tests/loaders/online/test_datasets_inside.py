"""make_meta_dataset against the functions of packing, row by row; named sources."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.errors import logged
from support.online_rows import answers, jsonl, meta, nasty, row

from neatpack.loaders.online import datasets
from neatpack.loaders.online.datasets import make_meta_dataset
from neatpack.pipeline.ingest.conversation import to_conversation
from neatpack.pipeline.ingest.convert import convert, parse_row, resolved
from neatpack.pipeline.ingest.meta import copies_of_rows, read_meta
from neatpack.pipeline.ingest.sources import SOURCES, make_rdr_dataset
from neatpack.pipeline.records import Skip


def test_only_the_ranks_own_lines_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    monkeypatch.setattr(datasets, "parse_row", lambda line, number: parsed.append(number) or parse_row(line, number))  # type: ignore[func-returns-value]
    path = meta(tmp_path, a={"file_name": jsonl(tmp_path / "a.jsonl", *(row(str(i)) for i in range(7))).name})
    assert answers(make_meta_dataset(path, shard_data=True, rank=1, world_size=3)) == ["1", "4"]
    assert parsed == [2, 5]


def offline(path: str, folder: Path, **how: bool) -> tuple[Counter[str], Counter[str]]:
    """Samples and reasons by the pipeline's own functions: copies, parse, convert."""
    samples: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for dataset in read_meta(Path(path)):
        if dataset.files[0].endswith(".json"):
            lines = [json.dumps(item).encode() for item in json.loads(Path(dataset.files[0]).read_bytes())]
        else:
            lines = Path(dataset.files[0]).read_bytes().rstrip(b"\n").split(b"\n")
        first = [row for row in (parse_row(line, 0) for line in lines) if not isinstance(row, Skip)]
        dataset = resolved(dataset, first)
        for line, copies in zip(lines, copies_of_rows(len(lines), dataset.sample_ratio), strict=True):
            parsed = parse_row(line, 0)
            example = parsed if isinstance(parsed, Skip) else convert(parsed, dataset, **how)
            if isinstance(example, Skip):
                reasons[example.reason] += int(copies)
            else:
                samples[json.dumps(to_conversation(example)["conversation"])] += int(copies)
    return +samples, +reasons


def test_one_rank_takes_the_rows_of_packing(tmp_path: Path) -> None:
    path = nasty(tmp_path)
    shares = [make_meta_dataset(path, shard_data=True, rank=0, world_size=1)]
    samples = Counter(json.dumps(example["conversation"]) for share in shares for example in share)
    reasons = sum((Counter(share.stats["skipped_by_reason"]) for share in shares), Counter[str]())
    assert (samples, reasons) == offline(path, tmp_path, needs_target=False)
    assert reasons == {"bad_row": 3, "bad_placeholders": 2}  # 7, where b should have a row, is drawn
    packed, left_out = offline(path, tmp_path)
    assert left_out == reasons + Counter(no_target=2)
    assert (samples - packed).total() == 2, "what has no answer can be asked about, and is not packed"


@pytest.mark.parametrize("world_size", [2, 3, 8, 40])
def test_ranks_take_equally_many_rows_of_each_data_set(
    tmp_path: Path, world_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = nasty(tmp_path)
    num_left_out, num_each = 0, 0
    for name in ("a", "b"):
        whole = make_meta_dataset(path, [name]).stats
        each, left_out = divmod(whole["n_samples"] + whole["n_skipped"], world_size)
        num_each, num_left_out = num_each + each, num_left_out + left_out
    caplog.clear()
    shares = [make_meta_dataset(path, shard_data=True, rank=r, world_size=world_size) for r in range(world_size)]
    assert {share.stats["n_samples"] + share.stats["n_skipped"] for share in shares} == {num_each}
    told = [args for args in logged(caplog, "loaders.online.datasets") if isinstance(args[-1], int)]
    assert sum(args[1] for args in told) == num_left_out, "rank 0 says it"  # type: ignore[index, misc]
    samples = Counter(json.dumps(example["conversation"]) for share in shares for example in share)
    reasons = sum((Counter(share.stats["skipped_by_reason"]) for share in shares), Counter[str]())
    all_samples, all_reasons = offline(path, tmp_path, needs_target=False)
    assert samples <= all_samples and reasons <= all_reasons
    missing = (all_samples - samples).total() + (all_reasons - reasons).total()
    assert missing == num_left_out


def test_a_named_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def source(**arguments: str) -> Any:
        asked.append(arguments)
        picture = Image.new("RGB", (8, 8))
        return make_rdr_dataset([{"image": picture, "text": text} for text in ("0", "1", None, "3")])

    monkeypatch.setitem(SOURCES, "rdr", source)
    entry = {"source": "rdr", "split": "test", "sample_ratio": 1.5}
    path = meta(tmp_path, here=entry, there={"source": "rdr", "path_or_dataset": "o/n"})
    whole = make_meta_dataset(path)
    assert asked == [{"split": "test"}, {"path_or_dataset": "o/n", "split": "train"}]
    assert answers(whole) == ["0", "1", "3", "0", "3", "0", "1", "3"]  # 1.5 of 4: Random(42).sample gives 0 and 3
    assert whole[0]["conversation"][0]["content"][0]["image"].size == (8, 8)
    assert (whole.stats["n_rows"], whole.stats["n_images"]) == (8, 8)
    assert whole.stats["skipped_by_reason"] == {"bad_row": 2}
    shares = [make_meta_dataset(path, ["here"], shard_data=True, rank=rank, world_size=2) for rank in range(2)]
    assert [answers(share) for share in shares] == [["0", "0"], ["1", "3", "3"]]
