"""Real data that lose rows for five reasons: summary, exit code, messages and report name each by rows and tokens."""

import html
import json
import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command_line import Run, flags

from neatpack.format.manifest import Manifest

# Of the main collection those that have a row longer than a pack, or are sampled; and the broken files and rows.
TAKEN = {
    "meta.json": ("qwen_single_images", "mixed_image_text", "mantis_video", "llava_imagenet_labels"),
    "nasty/meta.json": ("nasty_images", "nasty_videos"),
}
ROWS = {"one_broken_line": "nasty/data/one_broken_line.jsonl", "bad_rows": "nasty/data/bad_rows.jsonl"}


def write_meta(data: Path, folder: Path) -> Path:
    entries = {}
    for file, names in TAKEN.items():
        given = json.loads((data / file).read_text())
        for name in names:
            home = (data / file).parent
            paths = {key: str(home / given[name][key]) for key in ("file_name", "media_dir")}
            entries[name] = given[name] | paths
    for name, file in ROWS.items():
        entries[name] = {"file_name": str(data / file), "media_dir": str(data / "media")}
    (folder / "meta.json").write_text(json.dumps(entries))
    return folder / "meta.json"


@pytest.mark.slow
def test_every_loss_of_real_data_is_named_by_rows_and_tokens(run: Run, shared: Path, tmp_path: Path) -> None:
    meta, out = write_meta(shared / "data", tmp_path), tmp_path / "out"
    chosen = {"datasets": "", "max_skipped": 0.05, "pack_size": 4096, "processor": shared / "processors/qwen2.5-vl"}
    code, plan, errors = run("pack", *flags(meta, out, **chosen))
    assert code == 1 and not (out / "shards").exists()
    assert "nothing is rendered" in errors
    code, printed, errors = run("pack", *flags(meta, out, **chosen), "--keep-going")
    assert code == 1

    ledger = pq.read_table(out / "ledger").to_pylist()
    rows, tokens = Counter(), Counter()
    by_dataset: Counter[str] = Counter()
    for line in ledger:
        if line["status"] == "skipped":
            rows[line["reason"]] += 1
            tokens[line["reason"]] += line["tokens"]
            by_dataset[line["dataset"]] += line["reason"] != "sampled_out"
    measured = sum(line["tokens"] for line in ledger)
    assert rows.keys() >= {"overlong", "bad_media", "bad_row", "sampled_out"}, rows
    assert tokens["overlong"] > 3 * 4096 and tokens["sampled_out"] == 0
    assert len(ledger) == sum(rows.values()) + Manifest.read(out).counts.packed

    report = (out / "report.html").read_text()
    section = report[report.index('<section id="skipped"') :].partition("</section>")[0]
    lines = [re.findall(r"<td[^>]*>(.*?)</td>", line, re.DOTALL) for line in section.split("<tr>")]
    cells = [[html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in line] for line in lines]
    shown = {line[0]: line[1:] for line in cells if line}
    for reason, number in rows.items():
        lost = f" ({tokens[reason]:,} tokens)" if tokens[reason] else ""
        assert re.search(rf"^ +{number:,}  {reason}{re.escape(lost)}: ", printed, re.MULTILINE), reason
        assert shown[reason][0] == f"{number:,}" and shown[reason][2] == f"{tokens[reason]:,}", reason
    assert f"{sum(rows.values()):,} of {len(ledger):,} samples" in printed
    assert f"{sum(tokens.values()):,} of {measured:,} measured tokens" in printed

    lost = sum(rows.values()) - rows["sampled_out"]
    first = f"{lost:,} of {len(ledger) - rows['sampled_out']:,} samples skipped"
    assert first in errors and f"and {sum(tokens.values()):,} of {measured:,} tokens" in errors
    for name, number in by_dataset.items():
        assert not number or re.search(rf"^  {name}: {number:,} of \d+ skipped", errors, re.MULTILINE), name
    assert run("verify", out)[0] == 0
