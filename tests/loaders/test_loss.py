"""Gradient accumulation over packs equals one large batch, because both are means over the same tokens."""

import pytest
import torch
from support.packed import packed_rows
from tiny_models import tiny_model

from neatpack import PackedShards, num_items_in_batch, steps

pytestmark = pytest.mark.net


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    return PackedShards(packed_rows(tmp_path_factory.mktemp("loss"), 10, 4, pack_size=256), pixels="fp32")


def gradients(model, batches, items=None):
    model.zero_grad()
    for batch in batches:
        model(**batch, **({"num_items_in_batch": items} if items is not None else {})).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_micro_steps_equal_one_batch(packs):
    model = tiny_model("qwen2_5_vl")
    large = next(steps(packs.loader(batch_size=4, model=model), 1))
    packs.set_epoch(0)
    micro_steps = next(steps(packs.loader(batch_size=1, model=model), 4))
    items = num_items_in_batch(micro_steps)
    assert items == num_items_in_batch(large) == (large[0]["shift_labels"] != -100).sum()
    assert len({int(num_items_in_batch([batch])) for batch in micro_steps}) > 1, "or means of means would be the same"
    expected = gradients(model, large)
    found = gradients(model, micro_steps, items)
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    naive = gradients(model, micro_steps) / 4
    assert float((naive - expected).norm() / expected.norm()) > 1e-2, "a mean of means is something else"


def test_steps_by_hand():
    assert list(steps("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(steps([], 2)) == []
