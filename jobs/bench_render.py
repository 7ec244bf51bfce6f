"""What packing costs against the bare work in it: tokenizing against the tokenizer, rendering against decode + resize.

python jobs/bench_render.py [--meta META.json --processor DIR] [--video-fps 1] [--repeats 5]

Pictures, videos and sounds are timed apart, those that the data and the family have.

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
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import av
import numpy as np
import torch
from PIL import Image

from jobs.demo.make_data import make_demo
from neatpack.loaders.online.tokenized import as_tensors
from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.families.rules import SoundFeatures
from neatpack.pipeline.ingest.convert import convert, first_rows, parse_row, resolved
from neatpack.pipeline.ingest.imported import lines_of, num_files
from neatpack.pipeline.ingest.lines import joined, part_ranges, rows, scan, source_of
from neatpack.pipeline.ingest.meta import Dataset, read_meta
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.media.pixels import RESIZE
from neatpack.pipeline.records import Document, Example, Measured, MeasuredMedia, MediaError
from neatpack.pipeline.render.pack import build_pack
from neatpack.pipeline.render.sample import render_sample, render_whole
from neatpack.pipeline.shard.codec import write_pack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meta")
    parser.add_argument("--processor", default=str(Path(__file__).parent / "demo" / "processor"))
    parser.add_argument("--video-fps", type=float, default=0.0, help="frames per second; 0: as the processor has it")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        meta = Path(args.meta) if args.meta else make_demo(Path(folder) / "demo")
        family = family_for(ProcessorKey(processor=os.path.abspath(args.processor), video_fps=args.video_fps))
        examples = [example for dataset in read_meta(meta.resolve()) for example in read(dataset, Path(folder))]
        good = [(e, m) for e, m in zip(examples, measure(examples, family), strict=True) if isinstance(m, Measured)]
        num_tokens = sum(m.tokens for _, m in good)
        print(f"{len(good):,} rows, {num_tokens:,} tokens; one core\n")

        texts = [family.chat.template(e.turns) for e, _ in good]
        bare = family.chat.tokenizer.backend_tokenizer
        compare(
            "measure (probe, template, tokenize, targets)",
            lambda: measure([e for e, _ in good], family),
            "the bare tokenizer",
            lambda: bare.encode_batch(texts),
            args.repeats,
        )
        for kind, (words, bare_work) in BARE.items():
            with_media = [m for _, m in good if m.media and all(medium.ref.kind == kind for medium in m.media)]
            samples = renderable(with_media, family)
            if samples:
                media = [medium for sample in samples for medium in sample.media]
                print(f"{len(media):,} {kind}s")
                bare_side = partial(each, bare_work, media, family)
                compare("render and write packs to a tar in memory", partial(render, samples, family), words,
                        bare_side, args.repeats)  # fmt: skip
                compare("render as tensors of floats, one by one", partial(online, samples, family), words,
                        bare_side, args.repeats)  # fmt: skip
    return 0


def online(samples: list[Measured], family: Family) -> None:
    """As loader workers do it without packing first."""
    for sample in samples:
        as_tensors(render_whole(sample, family, "torch"), sample.num_media, family)


def each(work: Callable[[MeasuredMedia, Family], None], media: list[MeasuredMedia], family: Family) -> None:
    for medium in media:
        work(medium, family)


def bare_image(medium: MeasuredMedia, family: Family) -> None:
    RESIZE["torch"](np.asarray(Image.open(medium.ref.path).convert("RGB")), medium.size)


def bare_video(medium: MeasuredMedia, family: Family) -> None:
    wanted = set(medium.frames)
    with av.open(medium.ref.path, metadata_errors="ignore") as container:
        container.streams.video[0].codec_context.thread_count = 1
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                RESIZE["torch"](frame.to_ndarray(format="rgb24"), medium.size)
            if number == medium.frames[-1]:
                break


def bare_sound(medium: MeasuredMedia, family: Family) -> None:
    rule = family.sound
    assert isinstance(rule, SoundFeatures)
    with av.open(medium.ref.path, metadata_errors="ignore") as container:
        resampler = av.AudioResampler(format="fltp", layout="mono", rate=rule.sampling_rate)
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
    samples = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    rule.extractor(samples, sampling_rate=rule.sampling_rate, padding="longest", truncation=False)


BARE: dict[str, tuple[str, Callable[[MeasuredMedia, Family], None]]] = {
    "image": ("decode and resize alone (Pillow + torch)", bare_image),
    "video": ("decode and resize alone (PyAV + torch)", bare_video),
    "audio": ("decode, resample and features alone", bare_sound),
}


def read(dataset: Dataset, folder: Path) -> Iterator[Example]:
    files = [lines_of(dataset, folder / "imported", number) for number in range(num_files(dataset))]
    ranges = [part_ranges(lines) for lines in files]
    sources = [source_of(lines, own, scan(lines, own)) for lines, own in zip(files, ranges, strict=True)]
    parts = joined(sources).parts
    dataset = resolved(dataset, first_rows(parts))
    for part in parts:
        for _, number, _, line in rows(part):
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


def render(samples: list[Measured], family: Family) -> None:
    """Packs of 16 documents each, written as the shards are."""
    document = Document(
        dataset="x",
        row=0,
        repeat=0,
        id="",
        form="chat",
        loss="",
        targets=(),
        tokens=0,
        visual_tokens=0,
        num_images=1,
        num_videos=0,
        num_audios=0,
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
