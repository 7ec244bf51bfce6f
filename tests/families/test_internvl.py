"""InternVL against transformers: every tensor of its processor, and packed against alone with its model."""

import numpy as np
import pytest
import torch
from helpers import SHARED, TinyData, assert_verified, differences, picture, run_hf, tiny_config
from processors import internvl
from tiny_models import tiny_internvl

from neatpack import PackedShards
from neatpack.loaders.pixels import Stored, restored
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure, shrunk, truncated
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.run import run_pack

# One tile, several, more than max_patches allows, and the shapes between which the choice is close.
SIZES = [(56, 56), (40, 30), (112, 112), (57, 170), (400, 120), (300, 300), (1, 90), (168, 112)]


def asked(*paths, question="What is it?", answer="It is so."):
    images = [{"type": "image", "image": str(path), "path": str(path)} for path in paths]
    return [
        {"role": "user", "content": [*images, {"type": "text", "text": question}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    made = internvl.make(tmp_path_factory.mktemp("internvl") / "processor")
    return load_family(ProcessorKey(processor=str(made)))


@pytest.fixture(scope="module", params=["tiny", "real"])
def hf(request, tiny, tmp_path_factory):
    """(family, conversations, their HF tensors); the real processor where ../shared is."""
    folder = tmp_path_factory.mktemp("internvl_media")
    family, factor = tiny, 1
    if request.param == "real":
        if not (SHARED / "processors" / "internvl3").is_dir():
            pytest.skip("../shared/processors/internvl3 is not here")
        family, factor = load_family(ProcessorKey(processor=str(SHARED / "processors" / "internvl3"))), 8
    paths = [picture(folder / f"{i}.png", factor * high, factor * wide, seed=i) for i, (high, wide) in enumerate(SIZES)]
    conversations = [asked(path) for path in paths]
    conversations += [asked(), asked(*paths[:3]), [*asked(paths[3]), *asked(paths[4], answer="\n\nYes.")]]
    return family, conversations, run_hf({family.source: conversations}, folder)


def test_every_tensor(hf):
    family, conversations, tensors = hf
    table = torch.from_numpy(family.tables("torch")["image"])
    name = family.source.rsplit("/", 1)[1]
    for number, messages in enumerate(conversations):
        (measured,) = measure([from_conversation({"conversation": messages})], family)
        whole = render_whole(measured, family, "torch")
        assert whole.input_ids.tolist() == tensors[f"{name}/{number}/input_ids"][0].tolist()
        assert measured.tokens == len(whole.input_ids) - 1
        assert family.media_tokens(whole.media, family.facts) == np.count_nonzero(whole.mm_token_type_ids)
        assert measured.media_bytes == sum(array.nbytes for array in whole.media.values())
        if not measured.media:
            assert not len(whole.media["pixel_values"])
            continue
        expected = torch.from_numpy(tensors[f"{name}/{number}/pixel_values"])
        for dtype in (torch.float32, torch.bfloat16):
            ours = restored(torch.from_numpy(whole.media["pixel_values"]), Stored(table), dtype)
            assert torch.equal(ours, expected.to(dtype)), number


def test_smaller_and_shorter(tiny, tmp_path):
    path = picture(tmp_path / "a.png", 170, 110)  # 3 x 2 tiles and the whole
    (whole,) = measure([from_conversation({"conversation": [*asked(), *asked(path)]})], tiny)
    assert [shrunk(whole, level, tiny).tokens - whole.tokens for level in (1, 2, 3)] == [-16, -24, -24]
    cut = truncated(whole, tiny.chat.places(whole.ids)[0][0] + 10, tiny)
    assert not cut.media and "<img>" not in tiny.chat.tokenizer.decode(cut.ids)


def test_what_is_refused(tiny):
    with pytest.raises(UserError, match="--max-pixels 5: internvl has tiles of one size; set max_patches"):
        load_family(ProcessorKey(processor=tiny.source, max_pixels=5))


@torch.no_grad()
def test_packed_equals_alone(tiny, tmp_path):
    data = TinyData(tmp_path / "data")
    for number, (height, width) in enumerate(SIZES):
        data.image(height, width, answer=f"Picture {number}.")
    data.row([("user", "<image>and<image>?"), ("assistant", "No.")], images=["0.png", "3.png"])
    for number in (1, 5, 20, 60, 120, 180, 180, 180):
        data.text("How many?", "so many " * number)
    out = tmp_path / "out"
    run_pack(tiny_config(data.write(), out, processor=tiny.source, pack_size=400))
    assert assert_verified(out).counts.skipped == {}
    model = tiny_internvl(tiny)

    def logits_of(batch):
        keys = ("input_ids", "attention_mask", "position_ids", "pixel_values")
        given = {key: batch[key].double() if key == "pixel_values" else batch[key] for key in keys if key in batch}
        return model(**given).logits

    packs = list(PackedShards(out, pixels="fp32"))
    assert any(pack["n_images"] > 1 and len(pack["seq_lens"]) > 1 for pack in packs)
    assert any(pack["seq_lens"][-1] == 6 for pack in packs), "a fake image"
    for pack in packs:
        assert max(differences(logits_of, out, pack)) < 1e-9
