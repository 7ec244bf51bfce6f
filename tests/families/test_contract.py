"""What every family promises, asked of each: render, labels, shift, pack, restore, split, exact length."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from golden.write import FAMILIES
from support.commands import assert_verified
from support.data import TinyData
from support.errors import raises
from support.family_contract import ANSWERS, data as data
from support.outputs import read_ledger, read_packs
from support.packed import documents_of, tiny_config
from transformers import AutoTokenizer

from neatpack import (
    VLM_PP_MEDIA_KEY,
    PackedShards,
    UserError,
    neat_packed_vlm_collater,
    restore_pixels,
    run_pack,
    wrap_vlm_collate_for_pp,
)

pytestmark = pytest.mark.net


KINDS = [(), ("image",), ("image",), ("image",), ("video",), ("audio",), ("video", "image"), ()]


@dataclass
class Family:
    name: str
    processor: Path
    described: Any  # by the manifest
    tokenizer: Any

    @property
    def chosen(self) -> str:
        return "default" if self.name == "default" else ""


@pytest.fixture(scope="module", params=FAMILIES)
def packed(request, data, tmp_path_factory):
    """(family, output) of each family in turn. Small packs, so that there are several."""
    folder = tmp_path_factory.mktemp(request.param)
    processor = import_module(f"processors.{request.param}").make(folder / "processor")
    chosen = "default" if request.param == "default" else ""
    run_pack(tiny_config(data, folder / "out", processor=str(processor), family=chosen, pack_size=2048, align=4))
    described = assert_verified(folder / "out").family
    assert described.name == request.param, "chosen by the processor's class"
    return Family(request.param, processor, described, AutoTokenizer.from_pretrained(processor)), folder / "out"


def test_every_row_is_packed_or_named(packed):
    family, out = packed
    manifest = assert_verified(out)
    told = {"kimi_vl": "pil", "default": "processor"}.get(family.name, "torch")
    assert manifest.pixels.resize == told, "what resized the pictures, which is not always what was asked for"
    for line in read_ledger(out):
        missing = [kind for kind in KINDS[line["row"]] if kind not in family.described.placeholder_ids]
        expected = ("skipped", f"{missing[0]}_unsupported") if missing else ("packed", "")
        assert (line["status"], line["reason"]) == expected, line


def test_ledger_lengths_are_rendered_lengths(packed):
    _, out = packed
    planned = {(line["pack"], line["position"]): line for line in read_ledger(out) if line["pack"] >= 0}
    for pack in read_packs(out):
        for position, length in enumerate(pack.arrays["seq_lens"].tolist()):
            document = pack.documents[position]
            if document.row >= 0:
                line = planned[pack.number, position]
                assert line["tokens"] == document.tokens == length and line["row"] == document.row


def test_answers_and_nothing_else_are_trained_on(packed):
    family, out = packed
    for pack in PackedShards(out):
        rows = [document.row for document in next(p for p in read_packs(out) if p.number == pack["pack"]).documents]
        for row, document in zip(rows, documents_of(out, pack), strict=True):
            labels = document["labels"]
            trained = family.tokenizer.decode(labels[labels != -100])
            end = family.tokenizer.decode([family.described.end_of_turn_id])
            answers = ANSWERS[row].split("\n\n") if row >= 0 else []
            # A space between header and answer is the answer's: with most words it is one token.
            said = [answer.strip() for answer in trained.replace("\n", "").split(end)]
            assert said == [*(answer.replace("\n", "") for answer in answers), ""]
            known = labels[:-1] != -100
            assert torch.equal(labels[:-1][known], document["input_ids"][1:][known]), "the shift"


def test_documents_are_padded_to_the_alignment(packed):
    _, out = packed
    for pack in PackedShards(out):
        assert (pack["seq_lens_padded"] % 4 == 0).all()
        assert pack["attention_mask"].bincount()[1:].tolist() == pack["seq_lens_padded"].tolist()
        assert pack["position_ids"].shape[-1] == len(pack["input_ids"])


def test_bytes_restore_to_the_same_floats(packed):
    _, out = packed
    stored, restored = (
        neat_packed_vlm_collater(sorted(PackedShards(out, pixels=kind), key=lambda pack: pack["pack"]))
        for kind in ("uint8", "fp32")
    )
    stored = restore_pixels(stored, "cpu", torch.float32)
    assert stored.keys() == restored.keys()
    for key, value in restored.items():
        assert torch.equal(stored[key], value) if isinstance(value, torch.Tensor) else stored[key] == value, key


def test_media_are_split_where_the_packs_are(packed):
    """As many microbatches as packs: each chunk is what the pack has alone."""
    _, out = packed
    dataset = PackedShards(out, pixels="fp32")
    packs = sorted(dataset, key=lambda pack: pack["pack"])
    if len(packs) == 1:
        packs *= 2
    split = wrap_vlm_collate_for_pp(neat_packed_vlm_collater, len(packs), dataset.layout)(packs)
    chunks = split[VLM_PP_MEDIA_KEY]
    assert not set(dataset.layout) & split.keys(), "torch would cut these wrongly"
    for number, pack in enumerate(packs):
        alone = neat_packed_vlm_collater([pack])
        for name, array in dataset.layout.items():
            chunk = chunks.get(name)
            if chunk is None:
                assert name not in alone
                continue
            own = alone.get(name, chunk[number][:0])
            assert len(chunk[number]) == len(own), name
            deliver = array.deliver
            longest = own.shape[1] if deliver.mask and not deliver.transposed and own.ndim > 1 else None
            cut = chunk[number][:, :longest] if longest is not None else chunk[number]
            cut = cut[..., : own.shape[-1]] if deliver.transposed else cut
            if cut.shape == own.shape:
                assert torch.equal(cut, own), name
            else:  # padded to the largest of the batch
                assert torch.equal(cut[tuple(slice(side) for side in own.shape)], own), name


def test_text_alone_carries_a_fake_image(packed, tmp_path):
    family, _ = packed
    meta = TinyData(tmp_path / "text").text("Who?", "Me.").write()
    out = tmp_path / "out"
    run_pack(tiny_config(meta, out, processor=str(family.processor), family=family.chosen, pack_size=4096))
    (pack,) = read_packs(out)
    assert pack.fake_image == (len(family.described.fake_image_ids) > 0)
    if pack.fake_image:
        assert pack.documents[-1].num_images == 1
        assert (pack.arrays["labels"][-len(family.described.fake_image_ids) :] == -100).all()


@pytest.mark.parametrize("name", ["nemotron_parse"])
def test_what_cannot_be_packed_says_so(name, data, tmp_path):
    processor = import_module(f"processors.{name}").make(tmp_path / "processor")
    with raises(UserError, "processor-unsupported", family=name):
        run_pack(tiny_config(data, tmp_path / "out", processor=str(processor)))
