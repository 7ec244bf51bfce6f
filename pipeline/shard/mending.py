"""The task that mends a plan: what shards have lost is in their notes."""

from collections.abc import Sequence

from neatpack.storage.location import Location

from ..plan.assign import Key
from ..plan.files import PlanFile
from ..plan.tasks import MendJob, mend
from ..records import Skip
from .note import CHANGED, ShardNote


def mend_task(job: MendJob, notes: Sequence[tuple[int, Location]]) -> dict[int, PlanFile]:
    """`notes`: of shards that lost rows, each with the index of its plan file."""
    lost: dict[int, dict[Key, Skip]] = {}
    changed: dict[int, list[Key]] = {}
    for index, path in notes:
        note = ShardNote.read(path)
        assert note is not None, f"{path}: gone since its shard was written"
        for row in note.lost:
            if row.reason == CHANGED:
                changed.setdefault(index, []).append(row.key)
            else:
                lost.setdefault(index, {})[row.key] = row.skip
    return mend(job, lost, changed)
