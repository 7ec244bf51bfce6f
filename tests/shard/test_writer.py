"""One shard: what its note says is what its tar holds, and what is finished is not redone."""

import dataclasses
import hashlib
import tarfile
from pathlib import Path
from typing import Any

import pytest
from helpers import DEMO_PROCESSOR, picture, plan_of

from neatpack.format.members import member_names
from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.measure.store import write_measured
from neatpack.pipeline.plan.assign import Plan
from neatpack.pipeline.plan.files import write_paths
from neatpack.pipeline.records import Example, Measured, MediaRef, Turn
from neatpack.pipeline.shard import writer
from neatpack.pipeline.shard.note import CHANGED, LostRow, ShardDone, ShardNote
from neatpack.pipeline.shard.writer import ShardJob, finished_shards, write_shard
from neatpack.storage.location import Location
from neatpack.storage.tables import read_arrow


@dataclasses.dataclass
class Shard:
    """A shard to be written: rows 0 and 1 are text, 2 has a picture; packs [0, 1] and [2]."""

    job: ShardJob
    family: Family
    plan: Plan
    picture: Path

    def write(self) -> ShardNote:
        return write_shard(self.job, self.family, self.plan)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Of its packs, as the index has them."""
        return read_arrow(self.job.lines).to_pylist()


@pytest.fixture
def shard(tmp_path: Path, demo_family: Family) -> Shard:
    image = picture(tmp_path / "cat.png", 56, 56)
    answer = Turn(role="assistant", parts=("Yes.",))
    asked: list[tuple[Any, ...]] = [("Is it?",), ("Is it so?",), (MediaRef(kind="image", path=str(image)), "A cat?")]
    examples = [Example(turns=(Turn(role="user", parts=parts), answer)) for parts in asked]
    rows = [row for row in measure(examples, demo_family) if isinstance(row, Measured)]
    write_measured(tmp_path / "000000.arrow", [0, 1, 2], [""] * 3, rows)
    write_paths(tmp_path / "parts.arrow", [Location.parse(tmp_path / "000000.arrow")])
    lines = [
        {"pack": pack, "row": row, "line": row, "tokens": rows[row].tokens, "visual_tokens": rows[row].visual_tokens}
        for pack, row in ((0, 0), (0, 1), (1, 2))
    ]
    job = ShardJob(
        number=3, first=0, last=2, plan=tmp_path / "plan.arrow", batch=0, shift=0,
        parts=tmp_path / "parts.arrow", corpora=("tiny",),
        processor=ProcessorKey(processor=str(DEMO_PROCESSOR)), resize="torch", pixels="u8", fake_image=True, align=1,
        out=tmp_path / "out", fingerprint="f1",
    )  # fmt: skip
    return Shard(job=job, family=demo_family, plan=plan_of(*lines), picture=image)


def test_the_note_says_what_the_tar_holds(shard: Shard) -> None:
    note = shard.write()
    content = (shard.job.out / "shards/pack-000003.tar").read_bytes()
    assert (note.shard, note.fingerprint, note.lost) == ("pack-000003.tar", "f1", ())
    assert (note.bytes, note.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert (note.first_pack, note.num_packs) == (0, 2)
    text, image = shard.lines
    fake = len(shard.family.fake_image_ids)
    names = ("pack", "num_documents", "num_images", "fake_tokens", "shard")
    assert [text[name] for name in names] == [0, 3, 1, fake, "pack-000003.tar"]
    assert [image[name] for name in names] == [1, 1, 1, 0, "pack-000003.tar"]
    assert (text["offset"], image["offset"]) == (0, text["bytes"])
    assert image["visual_tokens"] == 4  # 56 x 56 pixels: 2 x 2 tokens of 28 x 28
    with tarfile.open(shard.job.tar) as tar:
        places = [(member.offset_data, member.size) for member in tar]
    assert places == [(place["offset"], place["size"]) for place in (*text["members"], *image["members"])]
    assert [place["name"] for place in text["members"]] == list(member_names(shard.family.media))


def test_the_same_bytes_again(shard: Shard) -> None:
    first = shard.write()
    content = shard.job.tar.read_bytes()
    assert shard.write() == first
    assert shard.job.tar.read_bytes() == content


def test_a_row_whose_picture_has_changed_is_lost_for_now(shard: Shard) -> None:
    picture(shard.picture, 60, 60)
    (lost,) = shard.write().lost
    assert (lost.dataset, lost.row, lost.repeat, lost.reason) == (0, 2, 0, CHANGED)


def test_a_row_whose_picture_fails_is_lost_and_its_empty_pack_is_not_written(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = shard.picture.read_bytes()
    shard.picture.write_bytes(content[: len(content) // 2])  # the header is whole, the pixels are not
    monkeypatch.setattr(writer, "is_changed", lambda ref, stamp: False)  # as if it had been so when it was measured
    note = shard.write()
    assert (note.first_pack, note.num_packs, [line["pack"] for line in shard.lines]) == (0, 1, [0])
    (lost,) = note.lost
    assert (lost.dataset, lost.row, lost.repeat, lost.reason) == (0, 2, 0, "bad_media")
    assert str(shard.picture) in lost.detail


def test_nothing_could_be_written(shard: Shard) -> None:
    shard.picture.unlink()
    note = dataclasses.replace(shard, job=dataclasses.replace(shard.job, first=1)).write()
    assert (note.num_packs, note.first_pack, note.bytes) == (0, -1, 1024)  # the end of a tar
    assert [lost.reason for lost in note.lost] == ["missing_media"]


def test_a_finished_shard_is_known_by_its_note(shard: Shard) -> None:
    out = shard.job.out

    def finished(out: Path, number: int, fingerprint: str) -> ShardDone | None:
        return finished_shards(Location.parse(out), [(number, fingerprint)]).get(number)

    assert finished(out, 3, "f1") is None
    note = shard.write()
    assert finished(out, 3, "f1") == note.done
    assert finished(out, 3, "f2") is None
    assert finished_shards(Location.parse(out), [(2, "f1"), (3, "f1"), (4, "f1")]) == {3: note.done}
    with open(shard.job.tar, "ab") as file:
        file.write(b"x")
    assert finished(out, 3, "f1") is None
    shard.job.tar.unlink()
    assert finished(out, 3, "f1") is None
    shard.write()
    shard.job.lines.unlink()
    assert finished(out, 3, "f1") is None, "without the lines of its packs there is no index"


def test_a_note_survives_the_disk(tmp_path: Path, shard: Shard) -> None:
    lost = LostRow(dataset=0, row=2, repeat=1, reason="bad_media", detail="ü.png: cut", part=7)
    note = dataclasses.replace(shard.write(), lost=(lost,))
    note.write(tmp_path / "note.json")
    assert ShardNote.read(tmp_path / "note.json", "f1") == note
    assert ShardNote.read(tmp_path / "note.json", "f2") is None
    assert ShardNote.read(tmp_path / "absent.json", "f1") is None
