"""`make demo`: draw a dataset, pack it, prove the result, train on it, and compare it with other ways to batch.

python jobs/demo/run.py [FOLDER [OPTIONS OF neatpack pack]]
"""

import contextlib
import io
import json
import os
import shutil
import sys
import textwrap
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.demo.make_data import make_demo
from neatpack.pipeline.cli import main as neatpack

WIDTH = 80


def main(folder: str = "demo-out", *more: str) -> int:
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    data, packed = Path(folder, "data"), f"{folder}/packed"

    step(1, "Draw a dataset")
    meta = make_demo(data)
    rows = json.loads((data / "expected.json").read_text())
    num_rows, num_images = sum(each["rows"] for each in rows["datasets"].values()), len([*data.glob("media/*/*")])
    say(f"{num_rows} conversations about {num_images} images. {len(rows['bad'])} rows are broken on purpose.")

    step(2, "Pack it")
    processor = os.path.relpath(Path(__file__).parent / "processor")
    options = ["--meta", str(meta), "--processor", processor, "--pack-size", "2048"]
    run(folder, "pack", *options, "--out", packed, *more)
    manifest = json.loads(Path(packed, "manifest.json").read_text())
    counts, skipped = manifest["counts"], dict(manifest["counts"]["skipped"])
    unsampled = skipped.pop("sampled_out", 0)
    say(f"{counts['samples']} samples = {counts['packed']} packed + {unsampled} left out by sample_ratio "
        f"+ {sum(skipped.values())} skipped.")  # fmt: skip
    fill = counts["tokens"] / counts["packs"] / manifest["identity"]["config"]["pack_size"]
    say(f"{counts['packs']} packs of 2,048 tokens, {fill:.1%} full.")

    step(3, "Prove it")
    say(run(folder, "verify", packed).splitlines()[0].removeprefix(f"{Path(packed).resolve()}: "))
    for line in run(folder, "skipped", packed, "--jsonl").split("\n")[:-1]:
        row = json.loads(line)
        cut = f"  {row['dataset']:<7} row {row['row']:<4}{row['reason']:<18}{row['detail']}"
        print(cut if len(cut) <= WIDTH else cut[: WIDTH - 1] + "…")

    from jobs.demo import compare, train  # here, so that the first lines appear at once

    step(4, "Train on it: packed training equals unpacked training")
    train.train(meta, Path(packed))

    step(5, "Compare five ways to batch these samples")
    print("  padded batches   to the longest sample")
    print("  guessed lengths  characters / 3, 500 per image (NeMo Automodel)")
    print("  stored lengths   text tokens, image sizes (NeMo Automodel with its script)")
    print("  exact lengths    best-fit decreasing (TRL, ms-swift)")
    print()
    print(compare.table(compare.compare(meta, Path(packed))))

    print(f"\nDone in {time.monotonic() - started:.0f} s. Look at the output:")
    print(f"  .venv/bin/neatpack show {packed} 0 --follow-sources")
    print(f"  {packed}/report.html")
    return 0


def step(number: int, title: str) -> None:
    print(f"\n{number}. {title}", flush=True)


def say(text: str) -> None:
    print(textwrap.fill(text.strip(), WIDTH, initial_indent="  ", subsequent_indent="  "), flush=True)


def run(folder: str, *arguments: str) -> str:
    """Print a command and run it in this process. Its log goes to a file, which is printed if the command fails."""
    words = textwrap.wrap("$ neatpack " + " ".join(arguments), WIDTH - 6, break_on_hyphens=False)
    print("  " + " \\\n      ".join(words), flush=True)
    log = Path(folder, "demo.log")
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with log.open("a") as errors, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = neatpack([*arguments])
    if code:
        raise SystemExit(f"{log.read_text()}\nneatpack {arguments[0]} failed with exit code {code}")
    printed.seek(0)
    return printed.read()


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
