"""`model(**batch).loss` of packs, with models of transformers as they are, is the loss of their documents alone.

The documents alone are what transformers trains on without packing: whole ids, labels that the model shifts, positions
and masks that it makes itself.
"""

import copy
import inspect
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.utils import convert_outputs_to_fp32, send_to_device
from model_cases import CASES, rows
from support.data import TinyData
from support.errors import logged, raises
from support.outputs import read_family
from support.packed import documents_of, tiny_config
from tiny_models import (
    attention,
    tiny_model,
    tiny_phi4_mm,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from neatpack import PackCollater, PackedShards, restore_pixels, run_pack
from neatpack.loaders.mended import mend

pytestmark = [pytest.mark.slow, pytest.mark.net]


@dataclass(frozen=True)
class Made:
    out: Path
    model: Any
    packs: list[dict[str, Any]]
    documents: list[dict[str, Any]]

    @property
    def looks_both_ways(self) -> bool:
        text = self.model.get_decoder().config
        return self.is_gemma3 or getattr(text, "use_bidirectional_attention", None) == "vision"

    @property
    def is_gemma3(self) -> bool:
        return getattr(self.model.config, "model_type", "") == "gemma3"

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """Pixels and sounds as the model's numbers: some of the models are in float64."""
        numbers = {name: value.to(self.model.dtype) if torch.is_tensor(value) and value.is_floating_point() else value
                   for name, value in batch.items()}  # fmt: skip
        return self.model(**numbers).loss

    def unpacked(self, document: dict[str, Any]) -> dict[str, Any]:
        """A document before the shift: the last label is its last token."""
        batch = PackCollater()([document])
        labels = batch["labels"]
        last = labels[:, -1:].clamp(min=0)  # of -100, any token
        ours = ("position_ids", "shift_labels", "mm_token_type_ids")
        types = "token_type_ids" if self.is_gemma3 else "mm_token_type_ids"  # as its processor names them
        return {name: value for name, value in batch.items() if name not in ours} | {
            "input_ids": torch.cat([batch["input_ids"], last], dim=1),
            "labels": torch.cat([torch.full_like(last, -100), labels], dim=1),
            types: torch.nn.functional.pad(batch["mm_token_type_ids"], (0, 1)),
            "attention_mask": torch.ones(1, labels.shape[1] + 1, dtype=torch.long),
        }

    def gradients(self, batches: list[dict[str, Any]], counts: list[int]) -> tuple[float, dict[str, torch.Tensor]]:
        """The loss summed over all target tokens, and its gradients, by the name of the weight."""
        self.model.zero_grad()
        total = 0.0
        for batch, count in zip(batches, counts, strict=True):
            if count:
                loss = self.loss(batch) * count
                total += float(loss.detach())
                loss.backward()
        found = {name: weight.grad for name, weight in self.model.named_parameters() if weight.grad is not None}
        self.model.zero_grad()  # to None: what was found stays as it is
        return total, found

    @cached_property
    @torch.enable_grad()
    def apart(self) -> tuple[float, dict[str, torch.Tensor]]:
        """`gradients` of all documents, each of which runs by itself: once, for its loss and for its gradients."""
        return self.gradients([self.unpacked(document) for document in self.documents], self.counts)

    @property
    def counts(self) -> list[int]:
        """Target tokens of each document."""
        return [int((document["labels"] != -100).sum()) for document in self.documents]

    @property
    def alone(self) -> tuple[float, int]:
        """The mean over the target tokens of all documents alone, and how many these are."""
        return self.apart[0] / sum(self.counts), sum(self.counts)


@pytest.fixture(scope="module", params=CASES)
def made(request, tmp_path_factory) -> Made:
    case, folder = CASES[request.param], tmp_path_factory.mktemp(request.param)
    make = case.processor or import_module(f"processors.{case.family}").make
    processor = str(make(folder / "processor"))
    family = "default" if case.family == "default" else ""
    chosen = {"pack_size": 4096, "processor": processor, "family": family, **dict(case.chosen)}
    meta = rows(TinyData(folder / "data"), case.kinds, case.sizes)
    run_pack(tiny_config(meta, folder / "out", **chosen))
    (pack,) = PackedShards(folder / "out", pixels="fp32")
    assert all(pack[f"n_{kind}s"] >= 4 for kind in case.kinds.split())
    assert len(pack["seq_lens"]) == 3 + 2 * len(case.kinds.split()) + (len(case.kinds.split()) == 2)
    documents = list(documents_of(folder / "out", pack))
    model = case.model(read_family(folder / "out"))
    # The first document once more, as a row that is filled up to the length of the other.
    return Made(folder / "out", model, [pack, documents[0]], [*documents, documents[0]])


def test_gradients_of_packs_are_those_of_documents_alone(made):
    """Those of the vision and audio towers, too: of every weight that any document moves."""
    _, alone = made.apart
    _, packed = made.gradients([PackedShards(made.out).collater(made.model)(made.packs)], [sum(made.counts)])
    moved = [name for name, gradient in alone.items() if gradient.abs().max() > 1e-6]
    assert any("embed" in name or "visual" in name or "vision" in name for name in moved)
    for name in moved:
        theirs = alone[name]
        assert float((packed[name] - theirs).norm()) <= 1e-3 * float(theirs.norm()), name
    largest = max(float(gradient.abs().max()) for gradient in alone.values())
    for name in packed.keys() - set(moved):  # as good as nothing, as alone
        assert float(packed[name].abs().max()) <= 1e-5 * largest, name


# Beside sdpa with positions, which is what models have by default: see below.
PATHS = [("sdpa", "mask"), ("eager", "mask"), ("eager", "positions"), ("flex_attention", "positions"),
         ("flash_reference", "varlen")]  # fmt: skip


def without(batch: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in batch.items() if key != name}


@torch.no_grad()
def test_the_loss_of_packs_is_that_of_documents_alone(made):
    alone, count = made.alone
    expected, packs = pytest.approx(alone, rel=1e-5), PackedShards(made.out)
    collater = packs.collater(made.model)
    assert (collater.way, collater.unshifted_labels) == ("positions", False), "what this transformers allows"
    assert made.model.get_decoder().config._attn_implementation == "sdpa"
    assert packs.collater(made.model, isolate="positions") == collater
    batch = collater(made.packs)
    assert int((batch["labels"] != -100).sum()) == count
    assert float(made.loss(batch)) == expected
    unshifted = replace(collater, unshifted_labels=True)(made.packs)
    assert float(made.loss(unshifted)) == float(made.loss(without(unshifted, "shift_labels"))) == expected
    shifted_twice = without(batch, "shift_labels")
    running_on = batch["position_ids"].clone()
    running_on.view(-1, *running_on.shape[-2:])[0] = torch.arange(running_on.shape[-1])
    for wrong in (shifted_twice, {**batch, "position_ids": running_on}):
        assert float(made.loss(wrong)) != pytest.approx(alone, rel=3e-5)


@pytest.mark.parametrize(("name", "way"), PATHS)
@torch.no_grad()
def test_every_kind_of_attention_keeps_documents_apart(made, name, way):
    expected = pytest.approx(made.alone[0], rel=1e-5)
    with attention(made.model, name):
        if way == "varlen" and made.looks_both_ways:
            with raises(
                ValueError, "model-unsupported", attn_implementation="flash_reference", bidirectional_vision=True
            ):
                PackedShards(made.out).collater(made.model)
            return
        collater = PackedShards(made.out).collater(made.model, isolate=way)
        assert float(made.loss(collater(made.packs))) == expected


@torch.no_grad()
def test_a_picture_without_padding_beside_one_with_some(tmp_path):
    """60 x 60 fills its crop and 120 x 48 does not: in one batch, Phi-4's vision tower sees the first one otherwise."""
    processor = str(import_module("processors.phi4_mm").make(tmp_path / "processor"))
    data = TinyData(tmp_path / "data").image(60, 60).image(120, 48)
    run_pack(tiny_config(data.write(), tmp_path / "out", pack_size=4096, processor=processor))
    (pack,) = PackedShards(tmp_path / "out", pixels="fp32")
    model = tiny_phi4_mm(read_family(tmp_path / "out"))
    documents = list(documents_of(tmp_path / "out", pack))

    def difference() -> float:
        made = Made(tmp_path / "out", model, [pack], documents)
        packed = made.loss(PackedShards(tmp_path / "out").collater(model)([pack]))
        return abs(float(packed) - made.alone[0])

    assert difference() > 1e-3
    mend(model)
    assert difference() < 1e-5


# The model that a collater is made for


@pytest.fixture(scope="module")
def qwen_packs(tmp_path_factory) -> PackedShards:
    folder = tmp_path_factory.mktemp("wrapped")
    data = TinyData(folder / "data").image(60, 90).text("Who?", "Me.").image(40, 40).text("And?", "You, too.")
    run_pack(tiny_config(data.write(), folder / "out"))
    return PackedShards(folder / "out", pixels="fp32")


class Strict(torch.nn.Module):
    """A model whose forward names what it takes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inside, self.config = model, model.config

    def get_decoder(self) -> Any:
        return self.inside.get_decoder()

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None, shift_labels=None,
                use_cache=None, mm_token_type_ids=None, pixel_values=None, image_grid_thw=None,
                pixel_values_videos=None):  # fmt: skip
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        return self.inside(**given)


class Adapted(torch.nn.Module):
    """As PEFT wraps a model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.base_model = model

    def get_base_model(self) -> Any:
        return self.base_model

    def forward(self, *args, **kwargs):
        return self.base_model(*args, **kwargs)


@pytest.fixture
def alone_in_the_world(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "s"), 1)  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0,
                                         world_size=1)  # fmt: skip
    yield
    torch.distributed.destroy_process_group()


@torch.no_grad()
def test_wrapped_models(qwen_packs, alone_in_the_world):
    model = tiny_model("qwen2_5_vl")
    expected = qwen_packs.collater(model)
    assert expected.takes is None
    batch = expected(list(qwen_packs))
    loss = model(**batch).loss
    compiled = torch.compile(model, backend="eager")
    wrapped = [DistributedDataParallel(model), Adapted(model), DistributedDataParallel(Adapted(model)), compiled,
               torch.compile(DistributedDataParallel(model), backend="eager"), FullyShardedDataParallel(
                   copy.deepcopy(model), device_id=torch.device("cpu"), use_orig_params=True),
               fully_shard(copy.deepcopy(model), mesh=init_device_mesh("cpu", (1,)))]  # fmt: skip
    for number, wrapper in enumerate(wrapped):
        assert qwen_packs.collater(wrapper) == expected, number
        with torch.compiler.set_stance("force_eager"):
            assert torch.allclose(wrapper(**batch).loss, loss), number  # type: ignore[operator]


def test_a_forward_that_accelerate_has_put_in_its_place(qwen_packs):
    """It belongs to the model itself, and is asked of the copy all the same: labels stay as they are on disk."""
    model = tiny_model("qwen2_5_vl")
    expected = qwen_packs.collater(model)
    assert expected.way == "positions" and not expected.unshifted_labels
    mixed, hooked = copy.deepcopy(model), copy.deepcopy(model)
    mixed.forward = MethodType(convert_outputs_to_fp32(mixed.forward.__func__), mixed)  # mixed_precision="bf16"
    for module in hooked.modules():  # device_map="auto"
        add_hook_to_module(module, ModelHook())
    assert qwen_packs.collater(mixed) == qwen_packs.collater(hooked) == expected


def test_a_model_that_would_cut_batches_is_refused(qwen_packs):
    with raises(ValueError, "trainer-unsupported", trainer="DataParallel"):
        qwen_packs.collater(torch.nn.DataParallel(tiny_model("qwen2_5_vl")))


def test_a_model_of_another_processor_is_told(qwen_packs, caplog):
    model = tiny_model("qwen2_5_vl")
    model.config.image_token_id = 7
    with raises(ValueError, "model-mismatch", kind="image", got=7, expected=2046):
        qwen_packs.collater(model)
    model.config.image_token_id = 2046
    model.resize_token_embeddings(2000)
    with raises(ValueError, "model-mismatch", got=2000, expected=2035):
        qwen_packs.collater(model)
    assert not caplog.messages
    qwen_packs.collater(tiny_model("qwen2_vl"))
    assert logged(caplog, "loaders.model_inputs") == [("Qwen2VLForConditionalGeneration", None, 2)]


@pytest.mark.parametrize("options", [{}, {"isolate": "mask"}, {"unshifted_labels": True}])
@torch.no_grad()
def test_a_model_that_takes_no_other_arguments_gets_none(qwen_packs, options):
    model, packs = tiny_model("qwen2_5_vl"), list(qwen_packs)
    loss = model(**qwen_packs.collater(model)(packs)).loss
    batch = qwen_packs.collater(Strict(model), **options)(packs)
    assert batch.keys() <= set(inspect.signature(Strict.forward).parameters)
    assert torch.allclose(Strict(model)(**batch).loss, loss, rtol=1e-5)


def lacking(*names: str) -> type[Strict]:
    """Strict without some of its arguments."""
    signature = inspect.signature(Strict.forward)
    kept = [parameter for name, parameter in signature.parameters.items() if name not in names]

    class Lacking(Strict):
        def forward(self, **kwargs):  # type: ignore[override]
            raise NotImplementedError

    Lacking.forward.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return Lacking


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("shift_labels", {}),
        ("position_ids", {}),
        ("use_cache", {}),
        ("attention_mask", {"isolate": "mask"}),
        ("pixel_values", {}),
        ("cu_seq_lens_q", {"attn_implementation": "flash_attention_2"}),
    ],
)
def test_a_model_that_does_not_take_what_matters_is_refused(qwen_packs, name, options):
    model = lacking(name)(tiny_model("qwen2_5_vl"))
    with raises(ValueError, "model-unsupported", model="Lacking") as caught:
        qwen_packs.collater(model, **options)
    missing = caught.error.fields["missing"]
    assert name in missing
    if name == "cu_seq_lens_q":
        assert {"cu_seq_lens_k", "max_length_q", "max_length_k"} <= set(missing)


def test_models_that_do_not_keep_documents_apart_by_positions(qwen_packs, monkeypatch):
    """They get a mask, unless nothing else would do."""
    model = tiny_model("qwen2_5_vl")
    text = model.get_decoder()
    assert qwen_packs.collater(model).way == "positions"
    forward = type(text).forward

    def deaf(self, position_ids, **given):
        return forward(self, position_ids=position_ids[-3:], **given)

    assert qwen_packs.collater(copy.deepcopy(model).to("meta")).way == "mask", "its mask cannot be looked at"
    monkeypatch.setattr(type(text), "forward", deaf)
    assert qwen_packs.collater(model).way == "mask"
    for options in ({"isolate": "positions"}, {"attn_implementation": "flex_attention"}):
        with raises(ValueError, "model-unsupported", isolate="positions"):
            qwen_packs.collater(model, **options)


class Forgetful(torch.nn.Module):
    """Mixed in: shift_labels do not reach the loss, as in Qwen3-VL of transformers 5.5 and before."""

    def forward(self, shift_labels=None, **given):
        return super().forward(**given)


class Inline(torch.nn.Module):
    """Mixed in: a loss of its own, as remote code has."""

    def forward(self, labels=None, shift_labels=None, **given):
        outputs = super().forward(**given)
        outputs.loss = torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return outputs


@pytest.mark.parametrize("kind", [Forgetful, Inline])
@pytest.mark.parametrize("length", [None, 64])
@torch.no_grad()
def test_models_that_shift_labels_all_the_same(qwen_packs, kind, length):
    model, (pack,) = tiny_model("qwen3_vl"), qwen_packs
    pack = {**pack, "labels": pack["input_ids"].clone()}  # the last one, too
    expected = model(**qwen_packs.collater(model)([pack])).loss
    model.__class__ = type("Other", (kind, type(model)), {})
    collater = qwen_packs.collater(model, max_length=length and len(pack["input_ids"]) + length)
    assert collater.unshifted_labels
    assert torch.allclose(model(**collater([pack])).loss, expected, rtol=1e-5)
    assert not torch.allclose(model(**replace(collater, unshifted_labels=False)([pack])).loss, expected, rtol=1e-4)


def test_ways_that_a_kernel_does_not_take():
    assert PackCollater(attn_implementation="kernels-community/flash-attn3").way == "varlen"
    for name, way, expected in (
        ("sdpa", "varlen", ["mask", "positions"]),
        ("flex_attention", "mask", ["positions"]),
        ("flash_attention_2", "positions", ["varlen"]),
        ("sdpa", "cosine", ["mask", "positions"]),
    ):
        with raises(ValueError, "model-unsupported", isolate=way, attn_implementation=name, possible=expected):
            PackCollater(attn_implementation=name, isolate=way)
    with raises(ValueError, "model-unsupported", attn_implementation="ring"):
        PackCollater(attn_implementation="ring")


@torch.no_grad()
def test_positions_need_a_model_without_a_cache(qwen_packs):
    """Where it has one, as configs have by default, documents would see each other."""
    model = tiny_model("qwen2_5_vl")
    batch = qwen_packs.collater(model)(list(qwen_packs))
    assert not torch.allclose(model(**{**batch, "use_cache": True}).loss, model(**batch).loss, rtol=1e-4)


def test_pixels_left_as_bytes_are_moved_by_trainers(qwen_packs):
    """They move what has `to`; Lightning refuses other frozen objects."""
    (batch, *_) = PackedShards(qwen_packs.reader.out, pixels="uint8").loader()
    moved = send_to_device(batch, torch.device("meta"))["pixel_values"]
    assert moved.rows.is_meta and moved.rows.dtype == torch.uint8


def test_pixels_left_as_bytes_can_be_restored(qwen_packs):
    """Also for a model that takes no other arguments."""
    model = Strict(tiny_model("qwen2_5_vl"))
    late = PackedShards(qwen_packs.reader.out, pixels="uint8")
    batch = restore_pixels(late.collater(model)(list(late)), dtype=torch.float32)
    expected = qwen_packs.collater(model)(list(qwen_packs))
    assert batch.keys() == expected.keys()
    assert torch.equal(batch["pixel_values"], expected["pixel_values"])


def test_no_model_takes_bytes_for_pixels(qwen_packs):
    """Forgotten, `restore_pixels` is missed at once: many models would cast bytes to floats and train on."""
    late = PackedShards(qwen_packs.reader.out, pixels="uint8")
    model = tiny_model("qwen2_5_vl")
    (batch, *_) = late.loader(model=model)
    assert not isinstance(batch["pixel_values"], torch.Tensor) and "stored_pixels" not in batch
    with pytest.raises(AttributeError, match="restore_pixels"):
        model(**batch)
