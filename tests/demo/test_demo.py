"""`make demo`: what it prints is computed, right, and what README.md shows."""

import re
from pathlib import Path

import numpy as np
import pytest
from doc_pages import text_of
from places import DEMO_PROCESSOR
from support.packed import tiny_config

from jobs.demo import run
from jobs.demo.compare import Sample, best_fit_decreasing, bins_by_estimate, compare, pack, pad, table
from jobs.demo.make_data import make_demo
from jobs.demo.train import train
from neatpack import run_pack

pytestmark = pytest.mark.net


def sample(tokens: int, estimate: int = 0) -> Sample:
    return Sample(tokens=tokens, visual_tokens=0, guessed=(estimate, 0), stored=(estimate, 0))


def test_batch_is_padded_to_its_longest_sample():
    way = pad([sample(10), sample(4)], batch_size=2)
    assert (way.positions, way.tokens, way.dropped, way.wasted) == (20, 14, 0, 0.3)
    assert pad([sample(10), sample(4)], batch_size=1).wasted == 0


def test_samples_that_do_not_fit_their_pack_are_dropped():
    samples = [sample(6), sample(6), sample(4)]
    short = pack("x", samples, [[0, 1, 2]], 10)
    assert (short.positions, short.tokens, short.dropped) == (10, 10, 1), "6 and 4 fill the pack"
    long = pack("x", samples, [[0], [1], [2]], 10)
    assert (long.positions, long.tokens, long.dropped) == (30, 16, 0)


def test_estimates_fill_nine_tenths_of_a_pack():
    """One token less each, for the shift; a sample longer than a bin has one of its own."""
    assert sorted(map(len, bins_by_estimate([(10, 0)] * 3, 20))) == [1, 2]
    assert bins_by_estimate([(99, 0)], 20) == [[0]]


def test_best_fit_decreasing_takes_the_fullest_bin_with_room():
    assert best_fit_decreasing([3, 7, 6, 2, 2], 10) == [[1, 0], [2, 3, 4]]
    assert best_fit_decreasing([10, 10, 1], 10) == [[0], [1], [2]]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path]:
    """The demo's data, packed as the demo does it, in this process."""
    folder = tmp_path_factory.mktemp("demo")
    meta = make_demo(folder / "data")
    run_pack(tiny_config(meta, folder / "out", processor=str(DEMO_PROCESSOR), pack_size=2048, group_size=512))
    return meta, folder / "out"


def test_comparison(made):
    found = compare(*made)
    *others, ours = found.ways
    padded, guessed, stored, exact = others
    assert found.num_samples == 291 and ours.name == "neatpack" and ours.dropped == 0 and ours.wasted < 0.02
    assert exact.dropped == 0 and exact.wasted < 0.02, "exact lengths fill packs as neatpack does"
    assert all(way.wasted > 5 * ours.wasted for way in (padded, guessed, stored))
    assert stored.dropped > 20, "lengths without the chat template are too short"
    assert guessed.positions > 3 * ours.positions, "500 tokens for an image of 60 are too many"
    *_, scaled_exact, scaled_ours = found.scaled
    assert all(np.array(scaled_ours.cost) < 0.2 * np.array(scaled_exact.cost))
    assert all(np.array(scaled_ours.visual) < 0.2 * np.array(scaled_exact.visual))
    printed = table(found)
    assert "needs 16 packs per rank. It has 20." in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_training_prints_both_losses_and_they_are_one(made, capsys):
    meta, out = made
    losses = train(meta, out, steps=2)
    printed = capsys.readouterr().out
    packed_loss, alone = map(float, re.findall(r"(?:forward pass|one by one) +(\S+)\n", printed))
    assert packed_loss == pytest.approx(alone, rel=1e-5) and packed_loss == pytest.approx(losses[0], abs=1e-6)
    assert losses[1] < losses[0] and printed.count("\n") == 5


@pytest.mark.slow
def test_readme_shows_what_the_demo_prints(tmp_path, monkeypatch, capsys):
    """The whole demo, without a cluster. Times and the last digits of losses may differ."""
    monkeypatch.chdir(tmp_path)
    assert run.main("demo-out", "--engine", "inline") == 0
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines() if "processor" not in line) <= 80
    shown = text_of("README.md").partition("$ make demo\n")[2].partition("```")[0]
    lines = [line for line in shown.splitlines() if line.strip() not in ("", "…")]
    assert len(lines) > 15
    found = iter(printed.splitlines())
    for line in lines:
        assert any(re.fullmatch(pattern(line), each) for each in found), f"{line}\nis not printed there by\n{printed}"


def pattern(line: str) -> str:
    """Any time, losses of any size, and anything for …"""
    return re.sub(r"\d+\\ s|\d\\.\d{6}", ".*", re.escape(line)).replace("…", ".*")
