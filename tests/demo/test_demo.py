"""What `make demo` tells: its figures are computed, and they are right."""

import re
from pathlib import Path

import pytest
from helpers import DEMO_PROCESSOR, tiny_config

from jobs.demo.compare import Sample, Way, compare, meaning, packed, padded, table
from jobs.demo.make_data import make_demo
from jobs.demo.train import train
from neatpack.pipeline.run import run_pack


def sample(tokens: int, estimate: int, visual_tokens: int = 0) -> Sample:
    return Sample(tokens=tokens, visual_tokens=visual_tokens, guessed=(estimate, 0), precomputed=(estimate, 0))


def test_a_batch_is_padded_to_its_longest_sample():
    way = padded([sample(10, 0), sample(4, 0)], batch_size=2)
    assert (way.positions, way.tokens, way.lost, way.wasted) == (20, 14, 0, 0.3)
    assert padded([sample(10, 0), sample(4, 0)], batch_size=1).wasted == 0


def test_an_estimate_too_short_loses_a_sample_and_one_too_long_leaves_room():
    samples = [sample(6, 3), sample(6, 3), sample(4, 4)]
    short = packed("x", samples, [each.guessed for each in samples], 10)
    assert (short.positions, short.tokens, short.lost) == (10, 10, 1), (
        "4 and 6 fill the pack, and the other 6 is dropped"
    )
    long = packed("x", samples, [(10, 0)] * 3, 10)
    assert (long.positions, long.tokens, long.lost) == (30, 16, 0)
    assert packed("x", [sample(9, 99)], [(99, 0)], 10).lost == 0, "one that only seems too long has a pack of its own"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path]:
    """The demo's data, packed as the demo does it, in this process."""
    folder = tmp_path_factory.mktemp("demo")
    meta = make_demo(folder / "data")
    run_pack(tiny_config(meta, folder / "out", processor=str(DEMO_PROCESSOR), pack_size=2048, group_size=512))
    return meta, folder / "out"


def test_the_comparison(made):
    ways = compare(*made)
    by_name: dict[str, Way] = {way.name: way for way in ways}
    ours = by_name.pop("neatpack")
    assert list(by_name) == ["padded", "on the fly", "precomputed"]
    assert ours.lost == 0 and ours.wasted < 0.02
    for way in by_name.values():
        assert way.samples == ours.samples == 291
        assert way.wasted > 5 * ours.wasted and len(way.balance) == 2
    assert by_name["precomputed"].lost > 20, "lengths without the chat template are too short"
    assert by_name["on the fly"].positions > 3 * ours.positions, "500 tokens for a picture of 60 are too many"
    assert len(table(ways).splitlines()) == 5 and f"{by_name['precomputed'].lost} samples" in meaning(ways)


def test_training_prints_both_losses_and_they_are_one(made, capsys):
    meta, out = made
    losses = train(meta, out, steps=2)
    printed = capsys.readouterr().out
    packed_loss, alone = map(float, re.findall(r"(?:forward pass|one by one) +(\S+)\n", printed))
    assert packed_loss == pytest.approx(alone, rel=1e-5) and packed_loss == pytest.approx(losses[0], abs=1e-6)
    assert losses[1] < losses[0] and printed.count("\n") == 5
