"""What packing costs against the bare work in it: tokenizing against the tokenizer, rendering against decode + resize.

python jobs/bench_render.py [--meta META.json --processor DIR] [--repeats 5]

Both sides run in one process on one core, in turns, and the ratio is that of the medians: machines are noisy, and
absolute times mean little. Without --meta it draws the demo data (small pictures, which flatter nobody).
"""

import argparse
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import torch
from PIL import Image

from jobs.demo.make_data import make_demo
from pipeline.families.base import Family
from pipeline.families.registry import family_for
from pipeline.ingest.lines import as_lines, part_ranges, rows, scan, source_of
from pipeline.ingest.meta import Dataset, read_meta
from pipeline.ingest.sharegpt import convert, parse_row
from pipeline.measure.length import measure
from pipeline.measure.probe import MediaError
from pipeline.pixels import RESIZE
from pipeline.records import Document, Example, Measured
from pipeline.render.pack import build_pack
from pipeline.render.sample import render_sample
from pipeline.shard.codec import write_pack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meta")
    parser.add_argument("--processor", default=str(Path(__file__).parent / "demo" / "processor"))
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        meta = Path(args.meta) if args.meta else make_demo(Path(folder) / "demo")
        family = family_for(os.path.abspath(args.processor))
        examples = [example for dataset in read_meta(meta.resolve()) for example in read(dataset, Path(folder))]
        good = [(e, m) for e, m in zip(examples, measure(examples, family), strict=True) if isinstance(m, Measured)]
        pictures = [m for _, m in good if m.media and not any(medium.frames for medium in m.media)]
        samples = renderable(pictures, family)
        paths = [medium.ref.path for m in samples for medium in m.media]
        num_tokens = sum(m.tokens for _, m in good)
        print(f"{len(good):,} rows, {num_tokens:,} tokens, {len(paths):,} pictures (videos left out); one core\n")

        texts = [family.template(e.turns) for e, _ in good]
        bare = family.tokenizer.backend_tokenizer
        compare(
            "measure (convert, template, tokenize, probe)",
            lambda: measure([e for e, _ in good], family),
            "the bare tokenizer",
            lambda: bare.encode_batch(texts),
            args.repeats,
        )
        resized = [(m.height, m.width) for s in samples for m in s.media]
        compare(
            "render and write packs to a tar in memory",
            lambda: render(samples, family),
            "decode and resize alone (Pillow + torch)",
            lambda: decode_and_resize(paths, [family.image_shape(*size, 1)[0] for size in resized]),
            args.repeats,
        )
    return 0


def read(dataset: Dataset, folder: Path) -> Iterator[Example]:
    lines = as_lines(Path(dataset.file), folder / "imported")
    ranges = part_ranges(lines)
    for part in source_of(lines, ranges, scan(lines, ranges)).parts:
        for _, number, line in rows(part):
            row = parse_row(line, number)
            example = convert(row, dataset) if isinstance(row, dict) else row
            if isinstance(example, Example):
                yield example


def renderable(samples: list[Measured], family: Family) -> list[Measured]:
    """Without those whose pictures fail on decode: the bare side would stop at them."""
    kept = []
    for sample in samples:
        try:
            render_sample(sample, family, "torch")
        except MediaError:
            continue
        kept.append(sample)
    return kept


def decode_and_resize(paths: list[str], sizes: list[tuple[int, int]]) -> None:
    for path, size in zip(paths, sizes, strict=True):
        pixels = np.asarray(Image.open(path).convert("RGB"))
        RESIZE["torch"](pixels, size)


def render(samples: list[Measured], family: Family) -> None:
    """Packs of 16 documents each, written as the shards are."""
    document = Document(
        dataset="x", row=0, repeat=0, tokens=0, visual_tokens=0, num_images=0, num_videos=0, num_audios=0
    )
    file = io.BytesIO()
    for number, start in enumerate(range(0, len(samples), 16)):
        rendered = [(document, render_sample(sample, family, "torch")) for sample in samples[start : start + 16]]
        file.seek(0)
        write_pack(file, 0, build_pack(number, rendered, family, fake_image=True))


def compare(ours: str, run: Callable[[], object], theirs: str, bare: Callable[[], object], repeats: int) -> None:
    times: dict[str, list[float]] = {ours: [], theirs: []}
    for _ in range(repeats):
        for name, function in ((ours, run), (theirs, bare)):
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        print(f"  {name:<46} {median * 1000:8.0f} ms")
    print(f"  {'ratio':<46} {medians[ours] / medians[theirs]:8.2f}\n")


if __name__ == "__main__":
    raise SystemExit(main())
