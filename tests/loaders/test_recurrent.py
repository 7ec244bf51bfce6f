"""Models with layers that no attention mask reaches: packed = alone, or refused.

The kernels of flash-linear-attention and causal-conv1d need a GPU. In their places stand functions of plain torch with
their signatures, their arguments checked as they check them, which transformers takes as it would take the kernels: by
the packages' names.
"""

import inspect
import json
import sys
from importlib import import_module
from itertools import pairwise
from types import ModuleType

import pytest
import torch
import transformers
from helpers import TinyData, clip, documents_of, picture, tiny_config
from processors import qwen3_vl
from support.errors import raises
from tiny_models import attention, tiny_model, with_large_weights
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback
from transformers.models.qwen3_5 import modeling_qwen3_5

from neatpack import PackCollater, PackedShards, neat_packed_vlm_collater
from neatpack.format.manifest import Manifest
from neatpack.loaders.probes import isolates_by_positions, isolates_recurrent_layers
from neatpack.loaders.recurrent import recurrent_layers, run_by_document
from neatpack.pipeline.run import run_pack

KINDS = ["qwen3_5", "qwen3_5_moe"]
TORCH_RULE = inspect.unwrap(modeling_qwen3_5.torch_chunk_gated_delta_rule)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Text, pictures and a video, aligned to 4, with a processor whose config.json is Qwen3.5's; several packs."""
    folder = tmp_path_factory.mktemp("recurrent")
    processor = qwen3_vl.make(folder / "processor")
    config = processor / "config.json"
    model = json.loads(config.read_text()) | {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}
    config.write_text(json.dumps(model))
    data = TinyData(folder / "data")
    for number in range(3):
        picture(data.folder / f"{number}.png", 60 + 30 * number, 90, seed=number)
    clip(data.folder / "a.mp4", frames=4)
    data.row([("user", "<image>and<image>?"), ("assistant", "Both of these.")], images=["0.png", "1.png"])
    data.row([("user", "<video>What?"), ("assistant", "A film.")], videos=["a.mp4"])
    data.row([("user", "<image>Who?"), ("assistant", "Tom.")], images=["2.png"])
    for number in (1, 3, 30, 40, 50, 60):
        data.text(f"Count to {number}.", " ".join(map(str, range(1, number + 2))))
    run_pack(tiny_config(data.write(), folder / "out", processor=str(processor), pack_size=352, align=4))
    return folder / "out"


# The two kernels


def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False,
                           use_qk_l2norm_in_kernel=False, cu_seqlens=None, **kwargs):  # fmt: skip
    """fla.ops.gated_delta_rule: transformers' own torch code, sequence by sequence."""
    assert not output_final_state and initial_state is None
    assert cu_seqlens is None or (len(q) == 1 and cu_seqlens.dtype in (torch.int32, torch.int64)), "as fla checks it"
    bounds = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    found = []
    for first, last in pairwise(bounds):
        one = (x[:, first:last] for x in (q, k, v, g, beta))
        found.append(TORCH_RULE(*one, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel)[0])
    return torch.cat(found, dim=1), None


def causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False,
                     final_states_out=None, activation=None):  # fmt: skip
    """causal_conv1d: a token sees the last four, of its own sequence."""
    assert activation == "silu" and initial_states is None
    if seq_idx is not None:
        assert seq_idx.dtype == torch.int32 and seq_idx.shape == (len(x), x.shape[-1]) and x.stride(1) == 1
    result = torch.zeros_like(x) if bias is None else torch.zeros_like(x) + bias[:, None]
    width = weight.shape[-1]
    for back in range(min(width, x.shape[-1])):
        seen = x[..., : x.shape[-1] - back] * weight[:, width - 1 - back, None]
        if seq_idx is not None:
            seen = seen * (seq_idx[:, back:] == seq_idx[:, : x.shape[-1] - back])[:, None]
        result = result + torch.nn.functional.pad(seen, (back, 0))
    return torch.nn.functional.silu(result)


@pytest.fixture
def kernels(monkeypatch):
    """Both packages, as far as transformers looks at them, and its models' functions chosen anew."""
    fla, rule, conv = ModuleType("fla"), ModuleType("fla.ops.gated_delta_rule"), ModuleType("causal_conv1d")
    rule.chunk_gated_delta_rule, conv.causal_conv1d_fn = chunk_gated_delta_rule, causal_conv1d_fn  # type: ignore[attr-defined]
    for module in (fla, rule, conv):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for kind in KINDS:
        model = import_module(f"transformers.models.{kind}.modeling_{kind}")
        for name, ours, package in (
            ("torch_chunk_gated_delta_rule", "chunk_gated_delta_rule", "fla"),
            ("causal_conv1d_fn", "causal_conv1d_fn", "causal_conv1d"),
        ):
            chosen = use_kernel_func_from_hub_with_fallback(ours, package)
            monkeypatch.setattr(model, name, chosen(inspect.unwrap(getattr(model, name))))


@pytest.fixture
def by_kernels(kernels):
    return lambda model: model


def prepared(model, how, request):
    return run_by_document(model) if how == "by document" else request.getfixturevalue("by_kernels")(model)


# Packed = alone


def sums(model, batch):
    """Logits, and gradients of the summed loss."""
    numbers = {name: value for name, value in batch.items() if name not in ("labels", "shift_labels")}
    logits = model(**numbers).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return logits.detach(), torch.autograd.grad(loss, parameters, allow_unused=True)


def unpacked(document):
    """As transformers runs a document alone: one row, no mask, its positions."""
    return neat_packed_vlm_collater([document]) | {"attention_mask": None, "_packed_seq_ids": None, "use_cache": False}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["by kernels", "by document"])
def test_logits_and_gradients_of_a_batch_are_those_of_its_documents(out, kind, how, request):
    alone = tiny_model(kind)
    packs = [pack for pack in PackedShards(out, pixels="fp32", shuffle=False) if len(pack["seq_lens"]) > 1][:2]
    assert len(packs) == 2 and sum(pack["n_images"] for pack in packs) > 1
    expected, documents = None, []
    for pack in packs:
        for document in documents_of(out, pack):
            logits, gradients = sums(alone, unpacked(document))
            documents.append(logits)
            expected = gradients if expected is None else [
                ours if theirs is None else theirs if ours is None else ours + theirs
                for ours, theirs in zip(gradients, expected, strict=True)
            ]  # fmt: skip
    model = prepared(tiny_model(kind), how, request)
    paths = [("sdpa", "positions"), ("sdpa", "mask"), ("eager", "mask"), ("flash_reference", "varlen")]
    for name, way in paths if (kind, how) == ("qwen3_5", "by kernels") else paths[:1]:
        with attention(model, name):
            batch = PackedShards(out).collater(model, isolate=way)(packs)
            assert batch["input_ids"].shape[0] == 1, "packs are one row, as fla wants it"
            logits, gradients = sums(model, batch)
        starts = [
            number * batch["input_ids"].shape[1] // len(packs) + int(start)
            for number, pack in enumerate(packs)
            for start in torch.nn.functional.pad(pack["seq_lens_padded"].cumsum(0), (1, 0))[:-1]
        ]
        for start, theirs in zip(starts, documents, strict=True):
            assert (logits[:, start : start + theirs.shape[1]] - theirs).abs().max() < 5e-5, (name, way)
        assert expected is not None
        for ours, theirs in zip(gradients, expected, strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or float((ours - theirs).norm()) <= 3e-4 * float(theirs.norm()) + 1e-6, (name, way)


@torch.no_grad()
def test_the_comparison_sees_a_leak(out):
    """By a mask alone, document 2 is told of document 1."""
    model = tiny_model("qwen3_5")
    pack = next(pack for pack in PackedShards(out, pixels="fp32") if len(pack["seq_lens"]) > 1)
    first, second = list(documents_of(out, pack))[:2]
    batch = PackCollater(attn_implementation="sdpa", recurrent=True)([pack])
    untold = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k")
    leaking = {name: value for name, value in batch.items() if name not in untold}
    logits = model(**leaking).logits[0]
    start = int(pack["seq_lens_padded"][0])
    alone = [model(**unpacked(document)).logits[0] for document in (first, second)]
    assert (logits[: len(alone[0])] - alone[0]).abs().max() < 2e-5
    assert (logits[start : start + len(alone[1])] - alone[1]).abs().max() > 1e-2


# What is refused


def test_the_manifest_and_packs_say_it(out):
    assert Manifest.read(out).family["recurrent_layers"] == ["linear_attention"]
    packs = list(PackedShards(out))
    assert packs[0]["recurrent_layers"] == ["linear_attention"]
    for name in ("sdpa", "eager", "flex_attention", "flash_attention_2", "thd"):
        with raises(ValueError, "model-layers", layers=["linear_attention"]):
            neat_packed_vlm_collater(packs, attn_implementation=name)
    with raises(ValueError, "model-layers", layers=["linear_attention"]):
        PackedShards(out).collater()
    assert PackedShards(out).collater(recurrent=True).recurrent


def test_a_model_without_kernels_is_refused(out):
    model = tiny_model("qwen3_5")
    assert isolates_by_positions(model, 3), "in its layers of full attention"
    with raises(ValueError, "model-layers", layers=["linear_attention"], model=type(model).__name__):
        PackedShards(out).collater(model)
    assert PackedShards(out).collater(run_by_document(model)).recurrent


def test_kernels_that_are_not_told_of_documents_are_found_out(kernels, monkeypatch):
    """As versions of transformers that leave one of the two arguments out."""
    model = tiny_model("qwen3_5")
    assert isolates_recurrent_layers(model)
    module = sys.modules[type(model.get_decoder().layers[0].linear_attn).__module__]
    for name, argument in (("torch_chunk_gated_delta_rule", "cu_seqlens"), ("causal_conv1d_fn", "seq_idx")):
        whole = getattr(module, name)
        with monkeypatch.context() as patched:
            patched.setattr(module, name, lambda *a, w=whole, n=argument, **k: w(*a, **{**k, n: None}))
            assert not isolates_recurrent_layers(model), name


@pytest.mark.parametrize("kind", ["Qwen3Next", "Lfm2", "Jamba", "NemotronH"])
def test_other_kinds_of_recurrent_layers(kind):
    """None keeps documents apart without kernels; document by document they do, if their model tells them of these."""
    model = hybrid(kind)
    assert recurrent_layers(model)
    assert not isolates_recurrent_layers(model)
    run_by_document(model)
    assert isolates_recurrent_layers(model) == (kind != "Jamba")
    if kind == "Jamba":  # it tells its layers nothing
        return
    ids = torch.arange(1, 13)[None]
    bounds = torch.tensor([0, 5, 12], dtype=torch.int32)
    told = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 7, "max_length_k": 7}
    inside = torch.cat([torch.arange(5), torch.arange(7)])[None]
    mask = torch.block_diag(torch.ones(5, 5), torch.ones(7, 7)).tril().bool()[None, None]
    with torch.no_grad():
        packed = model(input_ids=ids, position_ids=inside, attention_mask=mask, use_cache=False, **told).logits
        for first, last in pairwise(bounds.tolist()):
            alone = model(input_ids=ids[:, first:last], use_cache=False).logits
            assert (packed[:, first:last] - alone).abs().max() < 1e-5


def hybrid(kind):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip
    own = {
        "Qwen3Next": {"layer_types": ["linear_attention", "full_attention"], "head_dim": 16, "linear_num_key_heads": 2,
                      "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
                      "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32,
                      "shared_expert_intermediate_size": 32},
        "Lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
        "Jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False,
                  "mamba_d_state": 8, "mamba_dt_rank": 4},
        "NemotronH": {"layers_block_type": ["linear_attention", "full_attention"], "head_dim": 16,
                      "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1},
    }[kind]  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")
    return with_large_weights(model._from_config(config(**sizes, **own), attn_implementation="sdpa"))


def test_packs_are_one_row():
    """Two packs, the second one shorter: what fills it up is a document of its own for kernels, and none for masks."""
    packs = [
        {"input_ids": torch.arange(5), "labels": torch.arange(5), "position_ids": torch.tensor([0, 1, 2, 0, 1]),
         "attention_mask": torch.tensor([1, 1, 1, 2, 2]), "seq_lens": torch.tensor([3, 2]),
         "seq_lens_padded": torch.tensor([3, 2])},
        {"input_ids": torch.arange(3), "labels": torch.arange(3), "position_ids": torch.tensor([0, 1, 2]),
         "attention_mask": torch.tensor([1, 1, 1]), "seq_lens": torch.tensor([3]),
         "seq_lens_padded": torch.tensor([3])},
    ]  # fmt: skip
    batch = neat_packed_vlm_collater(packs, padding_idx=9, attn_implementation="sdpa", recurrent=True)
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 9, 9]]
    assert batch["labels"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 0, 0]]
    assert batch["_packed_seq_ids"].tolist() == [[1, 1, 1, 2, 2, 3, 3, 3, 0, 0]]
    assert batch["seq_idx"].tolist() == [[0, 0, 0, 1, 1, 2, 2, 2, 3, 3]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5, 8, 10]
    assert batch["attention_mask"].shape == (1, 1, 10, 10)
    with raises(ValueError, "option-conflict", argument="recurrent"):
        neat_packed_vlm_collater(packs, attn_implementation="thd", recurrent=True)
