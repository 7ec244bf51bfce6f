"""A few cases of jobs/chaos.py."""

import pytest

from jobs.breaking.run import Job
from jobs.chaos import INLINE, ON_RAY, by_seed, chaos, make_jobs, print_table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    return make_jobs(tmp_path_factory.mktemp("chaos"))


def test_disturbed_by_seed(jobs: dict[str, Job], capsys: pytest.CaptureFixture[str]) -> None:
    """All but kills by the clock, which start Python anew: one of those is below."""
    faults = {name: case for name, case in INLINE.items() if name != "killed at a time"}
    counts, failures = chaos(by_seed(jobs, faults, 0, iter(range(8))))
    assert failures == []
    assert counts.total() == 8
    print_table(counts)
    assert "told in a sentence" in capsys.readouterr().out.splitlines()[0]


def test_the_command_is_killed(jobs: dict[str, Job]) -> None:
    counts, failures = chaos(by_seed(jobs, {"killed": INLINE["killed at a time"]}, 3, iter(range(1))))
    assert failures == []
    assert counts == {("killed", "killed"): 1}


def test_a_node_is_lost(jobs: dict[str, Job]) -> None:
    """Of two. Which of them the driver is at is Ray's choice, and decides whether the run survives; it must be told."""
    counts, failures = chaos(by_seed(jobs, {"lost": ON_RAY["node killed"]}, 0, iter(range(1))))
    assert failures == []
    assert counts["lost", "survived"] + counts["lost", "told in a sentence"] == 1


def test_what_is_wrong_is_found(jobs: dict[str, Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that tells no fault."""
    monkeypatch.setattr("neatpack.pipeline.runtime.faults.sentence", lambda error: "")
    _, failures = chaos(by_seed(jobs, {"no space": INLINE["no space"]}, 0, iter(range(1))))
    assert len(failures) == 1
    assert "No space left on device" in failures[0]
