"""Text documents from the token store to packs, and on to the tar: us of CPU each.

Of every data set's rows without media, each as often as gives thousands of documents, as a shard of text has. Rendered:
read from all over the store, labelled, positioned, shifted and laid end to end. Then all of a shard's task but what it
does once: written and hashed, too, with the lines of the index. Beside it the limit of writing: the bytes of a finished
tar, which are 21 a token, written, digested and summed up once more, and nothing else.
"""

import contextlib
import dataclasses
import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.ingest.lines import media_seconds, rows as rows_of
from neatpack.pipeline.ingest.meta import read_meta
from neatpack.pipeline.ingest.written import write_data
from neatpack.pipeline.inputs import read_rows
from neatpack.pipeline.run import run_plan
from neatpack.pipeline.runtime.engine import Engine
from neatpack.pipeline.runtime.freed import keep_freed
from neatpack.pipeline.runtime.journal import journal
from neatpack.pipeline.shard.rows import rows_of_packs
from neatpack.pipeline.shard.writer import Renderer, ShardJob, loaded, parts_of, write_packs
from neatpack.pipeline.stages import shard_jobs
from neatpack.storage.files import Hashed
from neatpack.storage.location import Location

from .data import meta_of
from .side_by_side import Options, Row, side_by_side

WANTED = 25.0  # us a document
DOCUMENTS = 4096  # at least
LEAST = 20  # rows, for a figure that says anything
BLOCK = 180 << 10  # bytes: a pack of 8,192 tokens


def rows(options: Options) -> Iterator[Row]:
    datasets = [dataclasses.replace(each, sample_ratio=1.0, weight=None) for each in read_meta(meta_of(options))]
    for number, (dataset, source, _) in enumerate(
        read_rows(datasets, PackConfig(), Location.parse(options.folder / "imported"), Engine({}))
    ):
        lines = (row.text.strip() for part in source.parts for row in rows_of(part))
        texts = [text for text in lines if not media_seconds(text)]
        if len(texts) < LEAST:
            continue
        folder = options.folder / str(number)
        times = -(-DOCUMENTS // len(texts))
        write_data(Location.parse(folder), [(dataclasses.replace(dataset, sample_ratio=times), source, texts)])
        config = PackConfig(meta=str(folder / "meta.json"), processor=options.processor, out=str(folder / "out"),
                            engine="inline", pack_size=8192, max_skipped=1.0)  # fmt: skip
        planned = run_plan(config)
        jobs = shard_jobs(planned)
        tar = folder / "text.tar"
        write(jobs, tar)
        as_in_a_worker()
        sides = {
            "rendered": partial(render, jobs, folder / "journal"),
            "written": partial(write, jobs, tar),
            "bytes": partial(bare, tar.read_bytes(), folder / "bare.tar"),
        }
        seconds = side_by_side(sides, options.repeats)
        each = {side: 1e6 * took / planned.num_packed for side, took in seconds.items()}
        tokens = sum(sums.tokens for sums in planned.sums) / planned.num_packed
        what = f"a text document rendered, {planned.num_packed:,} of {tokens:.0f} tokens"
        yield Row(what=what, figure=each["rendered"], wanted=WANTED, unit="us", of=seconds)
        yield Row(what="… and written, hashed, with its lines of the index", figure=each["written"], unit="us")
        yield Row(what="… the bytes alone", figure=each["bytes"], unit="us")


def as_in_a_worker() -> None:
    """As Ray's workers have it: see `runtime/engine.py`."""
    keep_freed()
    gc.collect()
    gc.freeze()


def bare(content: bytes, tar: Path) -> None:
    """What no writer of a tar with these digests does without."""
    with open(tar, "wb") as file:
        out = Hashed(file)
        for start in range(0, len(content), BLOCK):
            out.write(memoryview(content)[start : start + BLOCK])


def render(jobs: list[ShardJob], place: Path) -> None:
    with journal(place) as watch:
        for job in jobs:
            family, plan = loaded(job)
            renderer = Renderer(job=job, family=family, watch=watch)
            for number, rows in rows_of_packs(plan, parts_of(job, plan), range(job.first, job.last)):
                renderer.pack(number, rows)


def write(jobs: list[ShardJob], tar: Path) -> None:
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open(tar, "wb"))
        watch = opened.enter_context(journal(tar.with_suffix(".journal")))
        for job in jobs:
            family, plan = loaded(job)
            write_packs(Hashed(file), job, range(job.first, job.last), family, plan, watch)
