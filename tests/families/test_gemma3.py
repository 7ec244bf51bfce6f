"""Gemma 3: what is refused, and who sees whom. Tensors: test_parity.py; the model: test_model_loss.py."""

import pytest
import torch
from helpers import TinyData, asked, picture, tiny_config
from processors import gemma3
from support.errors import raises

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.run import run_pack


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return load_family(ProcessorKey(processor=str(gemma3.make(tmp_path_factory.mktemp("gemma3") / "processor"))))


def test_a_literal_token_is_no_picture(family, tmp_path):
    image = {"type": "image", "image": str(picture(tmp_path / "a.png", 40, 60))}
    talk = asked(image, {"type": "text", "text": "not <start_of_image>"})
    (measured,) = measure([from_conversation({"conversation": talk})], family)
    assert len(family.chat.places(measured.ids)) == 1 and measured.visual_tokens == gemma3.TOKENS_OF_A_PICTURE


def test_what_is_refused(family):
    with raises(UserError, "option-conflict", option="max_pixels", family="gemma3"):
        load_family(ProcessorKey(processor=family.source, max_pixels=5))


@pytest.mark.parametrize("with_model", [True, False])
def test_a_picture_sees_itself_both_ways_in_all_layers(with_model, tmp_path):
    data = TinyData(tmp_path / "data").image(40, 40).text("Who?", "Me.").image(50, 30)
    processor = str(gemma3.make(tmp_path / "p", with_model=with_model))
    run_pack(tiny_config(data.write(), tmp_path / "out", processor=processor, pack_size=400))
    packs = PackedShards(tmp_path / "out", pixels="fp32")
    if not with_model:
        with raises(ValueError, "option-missing", argument="model"):
            packs.collater()
        return
    batch = packs.collater()(list(packs))
    types, documents = batch["token_type_ids"][0], next(iter(packs))["attention_mask"]
    assert "mm_token_type_ids" not in batch
    here = torch.arange(len(types))
    runs = torch.where(types == 1, torch.cumsum(torch.diff(types, prepend=types[:1] * 0).clamp(min=0), 0), 0)
    together = (runs[:, None] == runs[None]) & (runs != 0)[:, None]
    full = (documents[:, None] == documents[None]) & ((here[:, None] >= here[None]) | together)
    assert torch.equal(batch["attention_mask"]["full_attention"][0, 0], full)
    near = here[:, None] - here[None] < gemma3.SLIDING_WINDOW
    assert torch.equal(batch["attention_mask"]["sliding_attention"][0, 0], full & near)
    with raises(ValueError, "model-unsupported", attn_implementation="flash_attention_2"):
        packs.collater(attn_implementation="flash_attention_2")
    with raises(ValueError, "model-unsupported", attn_implementation="flex_attention"):
        neat_packed_vlm_collater(list(packs), attn_implementation="flex_attention", bidirectional_vision="all")
