"""One shard: render its packs, write its tar, and leave a note that it is done."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from neatpack.pipeline.families.base import Family
from neatpack.pipeline.measure.length import shrunk, truncated
from neatpack.pipeline.measure.store import read_measured
from neatpack.pipeline.plan.assign import Plan
from neatpack.pipeline.records import Document, MediaError, Pack, Sample
from neatpack.pipeline.render.pack import build_pack
from neatpack.pipeline.render.sample import render_sample
from neatpack.pipeline.runtime.journal import DETAIL as CRASHED, Journal, journal
from neatpack.pipeline.runtime.storage import read_json, write_json, write_whole
from neatpack.pipeline.shard.codec import write_end, write_pack


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardJob:
    """What a shard is made of: packs [first, last) of the plan at `plan`, rendered by the rest."""

    number: int
    first: int
    last: int
    plan: str
    parts: str  # JSON list of the measured parts' paths
    datasets: tuple[str, ...]
    resize: str
    fake_image: bool
    align: int
    out: str
    done: str
    fingerprint: str

    @property
    def tar(self) -> Path:
        return Path(self.out) / "shards" / shard_name(self.number)


def shard_name(number: int) -> str:
    return f"pack-{number:06d}.tar"


def finished(job: ShardJob) -> dict[str, Any] | None:
    """The note of a shard that an earlier run with the same fingerprint finished, if its tar is still whole in size."""
    note_path = Path(job.done)
    if not note_path.exists() or not job.tar.exists():
        return None
    note = read_json(note_path)
    same = note["fingerprint"] == job.fingerprint and note["bytes"] == job.tar.stat().st_size
    return note if same else None


def write_shard(job: ShardJob, family: Family, plan: Plan) -> dict[str, Any]:
    """Write the tar, then the note: sha256, bytes, a line per pack, and the rows whose media could not be decoded."""
    paths = [Path(path) for path in read_json(Path(job.parts))]
    packs: list[dict[str, Any]] = []
    lost: list[dict[str, Any]] = []
    with journal(Path(job.done).with_suffix(".journal")) as watch, write_whole(job.tar) as file:
        counted = _Digesting(file)
        offset = 0
        for pack in render_packs(job, family, plan, paths, lost, watch):
            end, members = write_pack(counted, offset, pack)  # type: ignore[arg-type]
            packs.append(_index_line(pack, offset, end, members))
            offset = end
        write_end(counted)  # type: ignore[arg-type]
    note = {
        "fingerprint": job.fingerprint,
        "shard": shard_name(job.number),
        "bytes": counted.size,
        "sha256": counted.digest.hexdigest(),
        "packs": packs,
        "lost": lost,
    }
    write_json(Path(job.done), note)
    return note


def render_packs(
    job: ShardJob, family: Family, plan: Plan, paths: list[Path], lost: list[dict[str, Any]], watch: Journal
) -> Iterator[Pack]:
    """The packs of a shard. A row whose media fail is left out of its pack and added to `lost`; an empty pack too."""
    for number in range(job.first, job.last):
        samples: list[tuple[Document, Sample]] = []
        for line in plan.packed.slice(plan.starts[number], plan.starts[number + 1] - plan.starts[number]).to_pylist():
            measured = read_measured(paths[line["part"]], line["line"])
            if line["limit"]:
                cut = truncated(measured, line["limit"], family)
                assert cut is not None, "the plan does not truncate to nothing"
                measured = cut
            if line["shrink"]:
                smaller = shrunk(measured, line["shrink"], family)
                assert smaller is not None, "the plan shrinks only what it can"
                measured = smaller
            name = f"{line['dataset']}/{line['row']}/{line['repeat']}"
            try:
                if measured.media:
                    watch.at(name)
                if watch.is_poison(name):
                    raise MediaError("bad_media", CRASHED)
                sample = render_sample(measured, family, job.resize)
            except MediaError as error:
                lost.append(
                    {key: line[key] for key in ("dataset", "row", "repeat")}
                    | {"reason": error.skip.reason, "detail": error.skip.detail}
                )
                continue
            document = Document(
                dataset=job.datasets[line["dataset"]],
                row=line["row"],
                repeat=line["repeat"],
                tokens=line["tokens"],
                visual_tokens=line["visual_tokens"],
                **{f"num_{kind}s": count for kind, count in measured.num_media.items()},
            )
            samples.append((document, sample))
        if samples:
            yield build_pack(number, samples, family, fake_image=job.fake_image, align=job.align)


class _Digesting:
    """A file that is hashed while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, block: bytes | memoryview) -> None:
        self._file.write(block)
        self.digest.update(block)
        self.size += len(block)


def _index_line(pack: Pack, start: int, end: int, members: list[tuple[int, int]]) -> dict[str, Any]:
    lengths = pack.arrays["seq_lens"].astype("int64")
    return {
        "pack": pack.number,
        "offset": start,
        "bytes": end - start,
        "tokens": len(pack.arrays["input_ids"]),
        "padding_tokens": int((pack.arrays["seq_lens_padded"] - pack.arrays["seq_lens"]).sum()),
        "visual_tokens": sum(document.visual_tokens for document in pack.documents),
        "target_tokens": int((pack.arrays["labels"] >= 0).sum()),
        "squares": int((lengths**2).sum()),
        "num_documents": len(pack.documents),
        **{
            name: sum(getattr(document, name) for document in pack.documents)
            for name in ("num_images", "num_videos", "num_audios")
        },
        "fake_image": pack.fake_image,
        "members": members,
    }
