"""InternVL: smaller and shorter ones, what is refused, packed against alone. Its tensors: test_parity.py."""

import pytest
import torch
from helpers import TinyData, assert_verified, differences, picture, tiny_config
from processors import internvl
from tiny_models import tiny_internvl

from neatpack import PackedShards
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure, shrunk, truncated
from neatpack.pipeline.run import run_pack

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
