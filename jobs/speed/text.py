"""Text documents from the token store to the tar: us of CPU each, all of a shard's task but what it does once.

Of every data set without media: rows drawn from all over the store, read, labelled, positioned, shifted, laid end to
end, written and hashed, with the lines of the index. Beside it the limit: the bytes of the finished tar, which are 21 a
token, written, digested and summed up once more, and nothing else.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from neatpack.pipeline.config import PackConfig
from neatpack.pipeline.ingest.meta import read_meta
from neatpack.pipeline.run import run_plan
from neatpack.pipeline.runtime.journal import journal
from neatpack.pipeline.runtime.storage import Hashed
from neatpack.pipeline.shard.writer import ShardJob, loaded, write_packs
from neatpack.pipeline.stages import shard_jobs

from .data import meta_of
from .side_by_side import Options, Row, side_by_side

WANTED = 25.0  # us a document
LEAST = 20  # documents, for a figure that says anything
BLOCK = 180 << 10  # bytes: a pack of 8,192 tokens


def rows(options: Options) -> Iterator[Row]:
    meta = meta_of(options)
    for name in (dataset.name for dataset in read_meta(meta)):
        config = PackConfig(meta=str(meta), processor=options.processor, out=str(options.folder / "text" / name),
                            datasets=(name,), engine="inline", pack_size=8192, max_skipped=1.0)  # fmt: skip
        planned = run_plan(config)
        jobs = shard_jobs(planned)
        lines = [line for job in jobs for line in loaded(job)[1].packed.to_pylist()]
        if len(lines) < LEAST or any(line["media_bytes"] for line in lines):
            continue
        tar = options.folder / "text.tar"
        write(jobs, tar)
        sides = {name: partial(write, jobs, tar), "limit": partial(bare, tar.read_bytes(), tar.with_suffix(".bare"))}
        seconds = side_by_side(sides, options.repeats)
        tokens = sum(line["tokens"] for line in lines) / len(lines)
        what = f"a text document, {len(lines)} of {tokens:.0f} tokens"
        yield Row(what=what, figure=1e6 * seconds[name] / len(lines), wanted=WANTED, unit="us", of=seconds)
        yield Row(what="… the bytes alone", figure=1e6 * seconds["limit"] / len(lines), unit="us")


def bare(content: bytes, tar: Path) -> None:
    """What no writer of a tar with these digests does without."""
    with open(tar, "wb") as file:
        out = Hashed(file)
        for start in range(0, len(content), BLOCK):
            out.write(memoryview(content)[start : start + BLOCK])


def write(jobs: list[ShardJob], tar: Path) -> None:
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open(tar, "wb"))
        watch = opened.enter_context(journal(tar.with_suffix(".journal")))
        for job in jobs:
            family, plan = loaded(job)
            write_packs(Hashed(file), job, range(job.first, job.last), family, plan, watch)
