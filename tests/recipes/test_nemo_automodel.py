"""NeMo Automodel's own code takes our packs and our batches: its collaters, its train step."""

import importlib
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from places import RECIPE_PACKAGES
from support.data import TinyData, clip, mixed_rows
from support.packed import tiny_config
from tiny_models import tiny_model

from neatpack import PackedShards, neat_packed_vlm_collater, num_items_in_batch, run_pack

pytestmark = [pytest.mark.trainer, pytest.mark.net]

sys.path.append(str(RECIPE_PACKAGES))

collates = pytest.importorskip(
    "nemo_automodel.components.datasets.vlm.collate_fns",
    reason="NeMo Automodel is not in .venv/recipes, where the Makefile installs it",
)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Text, pictures and two clips: packs of each."""
    folder = tmp_path_factory.mktemp("nemo")
    data = mixed_rows(TinyData(folder / "data"), num_text=16, num_images=8)
    for number in range(2):
        clip(data.folder / f"{number}.mp4")
        data.row([("user", "<video>What?"), ("assistant", "It is grey.")], videos=[f"{number}.mp4"])
    run_pack(tiny_config(data.write(), folder / "out", pack_size=384))
    return folder / "out"


@pytest.fixture(scope="module")
def items(out):
    packs = PackedShards(out)
    result = [packs.pack(number) for number in packs.reader.packs.tolist()]
    assert any(len(item["video_grid_thw"]) for item in result) and any(len(item["seq_lens"]) > 1 for item in result)
    return result


def without_empty(item):
    """An item as NeMo's packing gives it: media that a pack has not are absent. Its collater joins empty ones, too."""
    return {key: value for key, value in item.items() if not (isinstance(value, torch.Tensor) and not len(value))}


def assert_same(ours, theirs, *, more=()):
    """Keys, types and values; `more` is what only ours has."""
    assert set(ours) - set(theirs) == set(more) and set(theirs) <= set(ours)
    for key, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert ours[key].dtype == value.dtype, key
            assert torch.equal(ours[key], value), key
        else:
            assert ours[key] == value, key


MASKS = {
    "block_causal": {"attn_implementation": "sdpa"},
    "document_ids": {"attn_implementation": "flash_attention_2"},
    "flash_varlen": {"attn_implementation": "flash_attention_2", "varlen_kwargs": True},
}


@pytest.mark.parametrize("max_length", [None, 512])
@pytest.mark.parametrize("mask", MASKS)
def test_its_collater_makes_the_same_batches(items, mask, max_length):
    contract = SimpleNamespace(packed_mask_type=mask, requires_packed_sequence_metadata=False)
    for start in range(0, len(items), 3):
        batch = items[start : start + 3]
        ours = neat_packed_vlm_collater(batch, max_length=max_length, **MASKS[mask])
        theirs = collates.neat_packed_vlm_collater(
            [without_empty(item) for item in batch], max_length=max_length, packing=contract
        )
        if mask == "block_causal":  # what fills a row up sees itself here and nothing there
            filled = torch.nn.utils.rnn.pad_sequence([item["attention_mask"] for item in batch], batch_first=True) == 0
            filled = torch.nn.functional.pad(filled, (0, theirs["input_ids"].shape[1] - filled.shape[1]), value=True)
            assert not theirs["attention_mask"].mT[:, 0][filled].any()
            theirs["attention_mask"] |= torch.diag_embed(filled)[:, None]
        assert_same(ours, theirs, more={"shift_labels"})


def test_its_collater_without_a_dense_mask_makes_the_same_batch(items):
    ours = neat_packed_vlm_collater(items, materialize_4d_mask=False)
    theirs = collates.neat_packed_vlm_collater(list(map(without_empty, items)), materialize_4d_mask=False)
    assert_same(ours, theirs, more={"shift_labels"})


def test_its_thd_collater_makes_the_same_batch(items):
    """Ours has what kernels are called with, too: there it is made of these lengths later."""
    ours = neat_packed_vlm_collater(items, attn_implementation="thd")
    more = {"cu_seqlens", "cu_seqlens_padded", "max_seqlen", "mm_token_type_ids", "_packed_seq_ids", "shift_labels"}
    assert_same(ours, collates.packed_sequence_thd_vlm_collater(list(map(without_empty, items))), more=more)


@pytest.fixture(scope="module")
def finetune():
    try:
        return importlib.import_module("nemo_automodel.recipes.vlm.finetune")
    except ModuleNotFoundError as error:
        pytest.skip(f"NeMo Automodel's recipe wants {error.name}: pip install --no-deps {error.name}")


def test_its_own_train_step_takes_our_batches(items, finetune):
    """Its optimizer step, as it is, on a recipe that was not set up, against `model(**batch)`: loss and new weights."""

    def batches():
        return [neat_packed_vlm_collater(items[:2]), neat_packed_vlm_collater(items[2:3])]

    recipe = finetune.FinetuneRecipeForVLM.__new__(finetune.FinetuneRecipeForVLM)
    model = tiny_model("qwen2_5_vl").float().train()
    recipe.__dict__.update(
        dist_env=SimpleNamespace(device=torch.device("cpu")),
        step_scheduler=SimpleNamespace(step=1, epoch=0, is_remote_logging_step=False),
        checkpointer=SimpleNamespace(maybe_wait_for_staging=lambda: None),
        mesh_context=SimpleNamespace(cp_size=1),
        optimizer=[torch.optim.SGD(model.parameters(), lr=0.1)],
        model_parts=[model], loss_fn=finetune.MaskedCrossEntropy(), cfg={}, timestamp=time.perf_counter(),
        **dict.fromkeys(["device_mesh", "moe_mesh", "pp", "distributed_config", "lr_scheduler"]), pp_enabled=False,
    )  # fmt: skip
    theirs = recipe._run_train_optim_step(batches(), max_grad_norm=1e9).metrics

    ours = tiny_model("qwen2_5_vl").float().train()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    loss = sum(ours(**batch, num_items_in_batch=num_items_in_batch(batches())).loss for batch in batches())
    loss.backward()
    optimizer.step()
    assert float(theirs["loss"]) == pytest.approx(float(loss), rel=1e-5)
    trained = dict(model.named_parameters())
    assert all(torch.allclose(weight, trained[name], atol=1e-6) for name, weight in ours.named_parameters())
    assert any(
        not torch.equal(weight, trained[name])
        for name, weight in tiny_model("qwen2_5_vl").float().train().named_parameters()
    )
