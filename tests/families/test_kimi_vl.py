"""Kimi-VL: labels, what is refused, smaller pictures, a whole output. Its tensors are compared in test_parity.py."""

import pytest
import torch
from helpers import SHARED, TinyData, picture, tiny_config
from processors import kimi_vl
from support.errors import raises

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.format.manifest import Manifest
from neatpack.loaders.pp_media import VLM_PP_MEDIA_KEY, prepare_vlm_media_for_pp
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure, shrunk
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import verify_ledger, verify_shard


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return load_family(ProcessorKey(processor=str(kimi_vl.make(tmp_path_factory.mktemp("kimi_vl") / "processor"))))


@pytest.fixture(scope="module", params=["tiny", "real"])
def either(request, family):
    """The small one, and that of ../shared."""
    if request.param == "tiny":
        return family
    folder = SHARED / "processors" / "kimi-vl"
    if not folder.is_dir():
        pytest.skip("../shared/processors/kimi-vl is not here")
    return load_family(ProcessorKey(processor=str(folder), family="kimi_vl"))


def turns(*parts, answer="It is so."):
    return [{"role": "user", "content": list(parts)}, {"role": "assistant", "content": [text(answer)]}]


def text(words):
    return {"type": "text", "text": words}


def image(path):
    return {"type": "image", "image": str(path)}


def test_labels_are_the_answers_and_their_ends(either):
    family = either
    messages = [*turns(text("a <|im_end|> b"), answer=""), *turns(text("c"), answer="\n\nYes.")]
    (measured,) = measure([from_conversation({"conversation": messages})], family)
    labels = render_whole(measured, family, "torch").labels
    assert family.chat.tokenizer.decode(labels[labels != -100]) == "<|im_end|>\n\nYes.<|im_end|>"


def test_what_its_position_embedding_does_not_reach_is_refused(tmp_path):
    family = load_family(ProcessorKey(processor=str(kimi_vl.make(tmp_path / "processor", in_token_limit=4096))))
    assert family.image.shape(14, 14 * 510, 1)[1] == (1, 2, 510)
    with pytest.raises(ValueError, match=r"512 .* 511 \(7141x14\)"):
        family.image.shape(14, 14 * 510 + 1, 1)
    path = picture(tmp_path / "line.png", 3, 7500)
    (skip,) = measure([from_conversation({"conversation": turns(image(path))})], family)
    assert skip.reason == "bad_media"


def test_settings(tmp_path):
    made = str(kimi_vl.make(tmp_path / "processor"))
    assert load_family(ProcessorKey(processor=made, max_pixels=14 * 14 * 12)).image.max_patches == 12
    with raises(UserError, "option-conflict", option="min_pixels", family="kimi_vl"):
        load_family(ProcessorKey(processor=made, min_pixels=5))
    with raises(UserError, "processor-unsupported", key="pad_input"):
        load_family(ProcessorKey(processor=str(kimi_vl.make(tmp_path / "cropping", pad_input=False))))
    with raises(UserError, "processor-unsupported", key="merge_kernel_size"):
        load_family(ProcessorKey(processor=str(kimi_vl.make(tmp_path / "flat", merge_kernel_size=[2, 4]))))


def test_shrinking_halves_the_patches(family, tmp_path):
    path = picture(tmp_path / "a.png", 130, 200)
    (whole,) = measure([from_conversation({"conversation": turns(image(path))})], family)
    visual = [whole.visual_tokens]
    for level in range(1, 8):
        smaller = shrunk(whole, level, family)
        visual.append(smaller.visual_tokens if smaller else visual[-1])
    assert visual == sorted(visual, reverse=True)
    assert visual[0] > 20
    assert visual[-1] == 1


def test_the_output_is_right(family, tmp_path):
    data = TinyData(tmp_path / "data")
    for number, (height, width) in enumerate([(60, 90), (28, 28), (300, 100), (900, 20)]):
        data.image(height, width, answer=f"Picture {number}.")
    data.row([("user", "<image>and<image>?"), ("assistant", "No.")], images=["0.png", "2.png"])
    for number in range(8):
        data.text("How many?", "so many " * (20 * number))
    out = tmp_path / "out"
    run_pack(tiny_config(data.write(), out, processor=family.source, pack_size=300))
    manifest = Manifest.read(out)
    assert verify_ledger(out, manifest) == []
    assert not any(verify_shard(out, manifest, number) for number in range(len(manifest.shards)))
    packs = list(PackedShards(out, pixels="fp32"))
    assert len(packs) > 1
    assert all(pack["pixel_values"].shape[1:] == (3, 14, 14) for pack in packs)
    batch = neat_packed_vlm_collater(packs)
    chunks = prepare_vlm_media_for_pp(batch, len(packs), len(packs), family.media)[VLM_PP_MEDIA_KEY]
    for number, pack in enumerate(packs):
        for name in family.media:
            assert torch.equal(chunks[name][number], pack[name]), name
