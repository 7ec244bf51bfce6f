"""Kimi-VL against a double of its processor, which exists as remote code only and cannot be run here.

The double is ours, written from the published processor's documented behaviour: Pillow's bicubic within a budget of
patches, black to the right and below up to whole merged patches, x / 255, less mean, over std, patches row by row;
each <|media_pad|> of the text becomes as many as the picture has merged patches.
"""

import math

import numpy as np
import pytest
import torch
from helpers import TinyData, picture, tiny_config
from PIL import Image, ImageOps
from processors import kimi_vl

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.loaders.pixels import Stored, restored
from neatpack.loaders.pp_media import VLM_PP_MEDIA_KEY, prepare_vlm_media_for_pp
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.manifest import Manifest
from neatpack.pipeline.measure.length import measure, shrunk
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import verify_ledger, verify_shard

PAD = "<|media_pad|>"
SIZES = [(28, 28), (29, 57), (200, 130), (13, 15), (400, 700), (141, 141), (10, 600), (139, 140)]


class Double:
    """processor(images=…, text=…) -> input_ids, pixel_values, image_grid_hws."""

    def __init__(self, tokenizer, config):
        self.tokenizer, self.config = tokenizer, config

    def __call__(self, images, text):
        arrays = [self.image(image) for image in images]
        out = {}
        if arrays:
            out["pixel_values"] = torch.cat([patches for patches, _ in arrays])
            out["image_grid_hws"] = np.array([grid for _, grid in arrays])
        before, *after = text.split(PAD)
        counts = [rows * columns // 4 for _, (rows, columns) in arrays]
        text = before + "".join(PAD * count + words for count, words in zip(counts, after, strict=True))
        return out | {"input_ids": self.tokenizer(text)["input_ids"]}

    def image(self, image):
        side, limit = self.config["patch_size"], self.config["in_token_limit"]
        patches = (image.width // side) * (image.height // side)
        if patches > limit:
            scale = math.sqrt(limit / patches)
            smaller = (int(image.width * scale), int(image.height * scale))
            image = image.resize(smaller, Image.Resampling.BICUBIC)
        right, below = (-length % (2 * side) for length in image.size)
        image = ImageOps.expand(image, (0, 0, right, below))
        rows, columns = image.height // side, image.width // side
        if max(rows, columns) >= 512:
            raise ValueError("more patches than position embeddings")
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
        mean, std = (torch.tensor(self.config[name])[:, None, None] for name in ("image_mean", "image_std"))
        pixels = pixels.sub(mean).div(std)
        cut = [pixels[:, y : y + side, x : x + side]
               for y in range(0, image.height, side) for x in range(0, image.width, side)]  # fmt: skip
        return torch.stack(cut), (rows, columns)


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return load_family(ProcessorKey(processor=str(kimi_vl.make(tmp_path_factory.mktemp("kimi_vl") / "processor"))))


def turns(*parts, answer="It is so."):
    return [{"role": "user", "content": list(parts)}, {"role": "assistant", "content": [text(answer)]}]


def text(words):
    return {"type": "text", "text": words}


def image(path):
    return {"type": "image", "image": str(path)}


def test_every_tensor(family, tmp_path):
    pictures = [picture(tmp_path / f"{i}.png", *size, seed=i) for i, size in enumerate(SIZES)]
    conversations = [turns(image(path), text("What is it?")) for path in pictures]
    conversations += [
        turns(text("Only text.")),
        turns(image(pictures[2]), text("and"), image(pictures[4]), image(pictures[0]), text("?")),
        [*turns(text("One:"), image(pictures[1]), answer=""), *turns(image(pictures[6]), answer="\n\nYes.")],
    ]
    double = Double(family.chat.tokenizer, kimi_vl.IMAGE)
    for messages in conversations:
        paths = [part["image"] for turn in messages for part in turn["content"] if part["type"] == "image"]
        templated = family.chat.tokenizer.apply_chat_template(messages, tokenize=False)
        expected = double([Image.open(path).convert("RGB") for path in paths], templated)
        (measured,) = measure([from_conversation({"conversation": messages})], family)
        whole = render_whole(measured, family, "torch")
        assert whole.input_ids.tolist() == expected["input_ids"]
        assert measured.tokens == len(whole.input_ids) - 1
        assert family.media_tokens(whole.media, family.facts) == int(np.count_nonzero(whole.mm_token_type_ids))
        assert measured.media_bytes == sum(array.nbytes for array in whole.media.values())
        if paths:
            assert np.array_equal(whole.media["image_grid_hws"], expected["image_grid_hws"])
            table = torch.from_numpy(family.tables("torch")["image"])
            for dtype in (torch.float32, torch.bfloat16):
                ours = restored(torch.from_numpy(whole.media["pixel_values"]), Stored(table), dtype)
                assert torch.equal(ours, expected["pixel_values"].to(dtype))


def test_labels_are_the_answers_and_their_ends(family):
    messages = [*turns(text("a <|im_end|> b"), answer=""), *turns(text("c"), answer="\n\nYes.")]
    (measured,) = measure([from_conversation({"conversation": messages})], family)
    labels = render_whole(measured, family, "torch").labels
    assert family.chat.tokenizer.decode(labels[labels != -100]) == "<|im_end|>\n\nYes.<|im_end|>"


def test_what_its_position_embedding_does_not_reach_is_refused(tmp_path):
    family = load_family(ProcessorKey(processor=str(kimi_vl.make(tmp_path / "processor", in_token_limit=4096))))
    assert family.image.shape(14, 14 * 510, 1)[1] == (1, 2, 510)
    with pytest.raises(ValueError, match=r"512 patches on a side, above 511 \(7141x14\); crop the picture"):
        family.image.shape(14, 14 * 510 + 1, 1)
    path = picture(tmp_path / "line.png", 3, 7500)
    (skip,) = measure([from_conversation({"conversation": turns(image(path))})], family)
    assert skip.reason == "bad_media"


def test_settings(tmp_path):
    made = str(kimi_vl.make(tmp_path / "processor"))
    assert load_family(ProcessorKey(processor=made, max_pixels=14 * 14 * 12)).image.max_patches == 12
    with pytest.raises(UserError, match="--min-pixels 5: kimi_vl never enlarges a picture; leave it out"):
        load_family(ProcessorKey(processor=made, min_pixels=5))
    with pytest.raises(UserError, match="pad_input is false"):
        load_family(ProcessorKey(processor=str(kimi_vl.make(tmp_path / "cropping", pad_input=False))))
    with pytest.raises(UserError, match=r"merge_kernel_size \[2, 4\] is not square"):
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
