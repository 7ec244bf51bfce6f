"""What every family promises, asked of it in this process: test_contract.py asks its outputs."""

from importlib import import_module

import numpy as np
import pytest
import torch
from helpers import documents_of, packs_of, tiny_config
from support.errors import raises
from support.family_contract import data as data

from neatpack import (
    VLM_PP_MEDIA_KEY,
    PackedShards,
    make_meta_dataset,
    neat_packed_vlm_collater,
    wrap_vlm_collate_for_pp,
)
from neatpack.format.manifest import Manifest
from neatpack.loaders.online.processor import family_of
from neatpack.loaders.online.tokenized import tokenized_example
from neatpack.loaders.pixels import restored
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import FAMILIES, REFUSED, load_family
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger

PACKABLE = [name for name in FAMILIES if name not in REFUSED]


@pytest.fixture(scope="module", params=PACKABLE)
def packed(request, data, tmp_path_factory):
    """(family, output) of each family in turn. Small packs, so that there are several."""
    folder = tmp_path_factory.mktemp(request.param)
    processor = import_module(f"processors.{request.param}").make(folder / "processor")
    chosen = request.param if request.param == "default" else ""
    family = load_family(ProcessorKey(processor=str(processor), family=chosen))
    assert family.name == request.param, "chosen by the processor's class"
    run_pack(tiny_config(data, folder / "out", processor=str(processor), family=chosen, pack_size=2048, align=4))
    return family, folder / "out"


def test_planned_lengths_are_rendered_lengths(packed, data):
    family, out = packed
    planned = {(line["pack"], line["position"]): (line["row"], line["tokens"])
               for line in read_ledger(out, Manifest.read(out)).to_pylist() if line["pack"] >= 0}  # fmt: skip
    raw = make_meta_dataset(str(data))
    for pack in packs_of(out):
        for position, length in enumerate(pack.arrays["seq_lens"].tolist()):
            if pack.documents[position].row < 0:
                continue
            row, tokens = planned[pack.number, position]
            assert tokens == length == len(tokenized_example(raw[row], family)["input_ids"]) - 1


def test_packs_hold_what_samples_hold(packed, data):
    """Offline and online give the same tensors for the same sample."""
    family, out = packed
    raw = make_meta_dataset(str(data))
    for pack in PackedShards(out, pixels="fp32"):
        documents = next(p for p in packs_of(out) if p.number == pack["pack"]).documents
        for source, found in zip(documents, documents_of(out, pack), strict=True):
            if source.row < 0:
                continue
            sample = tokenized_example(raw[source.row], family_of(family))
            assert torch.equal(found["input_ids"], sample["input_ids"][:-1])
            assert torch.equal(found["labels"], sample["labels"][1:])
            assert torch.equal(found["position_ids"], sample["position_ids"][..., :-1])
            for name, array in family.media.items():
                same = sample[name]
                if -1 in array.row and len(same):  # padded to the largest of its pack
                    inside = tuple(slice(side) for side in same.shape)
                    assert not found[name][tuple(slice(s, None) for s in same.shape)].any()
                    assert torch.equal(found[name][inside], same), name
                else:
                    assert torch.equal(found[name], same), name


def test_bytes_are_split_and_restored_or_refused(packed):
    """Under pipeline parallelism, chunk by chunk: what pads a picture is zero, and no byte stands for that."""
    family, out = packed
    late, floats = (sorted(PackedShards(out, pixels=kind), key=lambda pack: pack["pack"]) for kind in ("uint8", "fp32"))
    collate = wrap_vlm_collate_for_pp(neat_packed_vlm_collater, len(late), family.media)
    if any(array.deliver.table and array.deliver.per_medium for array in family.media.values()):
        with raises(ValueError, "batch-mismatch"):
            collate(late)
        return
    batch, expected = collate(late), collate(floats).get(VLM_PP_MEDIA_KEY, {})
    for name, how in batch.get("stored_pixels", {}).items():
        for chunk, same in zip(batch[VLM_PP_MEDIA_KEY][name], expected[name], strict=True):
            assert torch.equal(restored(chunk, how, torch.float32), same), name


def test_literal_tokens_in_a_text_are_text(packed):
    """A user who writes the tokens of the structure changes neither turns nor media."""
    family, _ = packed
    end = family.chat.tokenizer.decode([family.chat.markers.end])
    for token in family.chat.format.structural_tokens:
        talk = {
            "conversation": [{"role": "user", "content": f"What is {token}?"}, {"role": "assistant", "content": "A."}]
        }
        sample = tokenized_example(talk, family)
        assert not sample["mm_token_type_ids"].any(), token
        assert family.chat.tokenizer.decode(sample["labels"][sample["labels"] != -100]).lstrip() == "A." + end, token


def test_the_same_input_gives_the_same_fingerprint(packed):
    family, _ = packed
    chosen = "default" if family.name == "default" else ""
    again = load_family(ProcessorKey(processor=family.source, family=chosen))
    assert again.fingerprint == family.fingerprint
    assert again.described() == family.described()


def test_text_advances_by_one_on_every_axis(packed):
    """What lays documents out together relies on it: of those without media it asks for no positions."""
    family, _ = packed
    positions = family.positions(np.zeros(5, dtype=np.uint8), family.joined([]), family.facts)
    assert positions.dtype == family.position_dtype
    assert np.array_equal(np.atleast_2d(positions), [np.arange(5)] * family.position_axes)
