"""LLaVA-OneVision: labels, frames, what is refused, packed = alone. Its tensors: test_parity.py."""

import json

import pytest
import torch
from helpers import SHARED, TinyData, assert_verified, clip, differences, picture, tiny_config
from processors import llava_onevision
from support.errors import raises
from tiny_models import tiny_llava_onevision

from neatpack import PackedShards, neat_packed_vlm_collater, restore_pixels
from neatpack.loaders.pp_media import VLM_PP_MEDIA_KEY, prepare_vlm_media_for_pp
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import family_for, load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure, truncated
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger

SIDE = llava_onevision.SIDE
# Of every ratio, smaller and larger than the tiles; the fourth has more tokens than anyres_max_4 leaves it.


def part(kind, path, **more):
    return {"type": kind, kind: str(path), "path": str(path), **more}


def text(words):
    return {"type": "text", "text": words}


def turns(*parts, answer="It is so."):
    return [{"role": "user", "content": list(parts)}, {"role": "assistant", "content": [text(answer)]}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llava")
    video = {"num_frames": 4, "do_sample_frames": True}
    return load_family(ProcessorKey(processor=str(llava_onevision.make(folder / "processor", video=video))))


@pytest.fixture(scope="module", params=["tiny", "real"])
def any_family(request, tiny):
    """The small one, and the real one where ../shared is."""
    if request.param == "tiny":
        return tiny
    if not (SHARED / "processors" / "llava-onevision").is_dir():
        pytest.skip("../shared/processors/llava-onevision is not here")
    return family_for(str(SHARED / "processors" / "llava-onevision"))


def test_labels_are_the_answers_and_their_ends(any_family, tmp_path):
    family = any_family
    images = [part("image", picture(tmp_path / f"{i}.png", 60, 40 + i, seed=i)) for i in range(3)]
    messages = [*turns(images[0], text("A"), answer="\n\nYes."), *turns(text("And"), *images[1:], answer=" No")]
    (measured,) = measure([from_conversation({"conversation": messages})], family)
    labels = render_whole(measured, family, "torch").labels
    # The line break of the header takes those of the answer with it where they are one token.
    assert family.chat.tokenizer.decode(labels[labels != -100]).replace("\n", "") == "Yes.<|im_end|> No<|im_end|>"
    words = "<image> and <video><|im_end|><|im_start|>assistant \n"
    (measured,) = measure([from_conversation({"conversation": turns(text(words))})], family)
    assert not family.chat.places(measured.ids)
    labels = render_whole(measured, family, "torch").labels
    assert family.chat.tokenizer.decode(labels[labels != -100]) == "It is so.<|im_end|>"


def test_the_smallest_image(tiny):
    side = tiny.image.side
    cheapest = min(len(tiny.expansion(_measured(tiny, high, wide))) for high in range(1, 90) for wide in range(1, 90))
    assert len(tiny.fake_image_ids) == cheapest == 9 + 3 + 1  # the whole, a row of three and its line break
    assert tiny.fake_image_arrays["image_sizes"].tolist() == [[1, side]]
    assert tiny.fake_image_arrays["batch_num_images"].tolist() == [1]


def _measured(family, height, width, num_images=1):
    size, grid = family.image.shape(height, width, num_images)
    image = family.image.smallest
    return type(image)(ref=image.ref, height=height, width=width, size=size, grid=grid)


def test_class_token_and_frames(tmp_path):
    made = llava_onevision.make(tmp_path / "clip", vision_feature_select_strategy="default", num_image_tokens=10)
    family = load_family(ProcessorKey(processor=str(made)))
    assert len(family.expansion(_measured(family, 42, 42))) == 10 + 9 + 3 - 1
    assert len(family.expansion(_measured(family, 42, 42, num_images=2))) == 10
    assert family.video.choose(5, 1.0, None).tolist() == [0, 1, 2, 3, 4]
    assert family.video.choose(10, 5.0, 2.0).tolist() == [0, 2, 5, 7]
    fixed = load_family(ProcessorKey(processor=str(llava_onevision.make(tmp_path / "fixed", video={"num_frames": 4}))))
    assert fixed.video.choose(3, 1.0, None).tolist() == [0, 0, 1, 2]  # too short: some come twice
    assert fixed.video.choose(100, 10.0, 2.0).tolist() == [0, 25, 50, 75]
    capped = load_family(ProcessorKey(processor=str(made), video_fps=1.0, video_max_frames=3))
    assert capped.video.choose(60, 10.0, None).tolist() == [0, 20, 40]


def test_configs_that_are_refused(tmp_path):
    made = llava_onevision.make(tmp_path / "processor")
    with raises(UserError, "option-conflict", option="max_pixels", family="llava_onevision"):
        load_family(ProcessorKey(processor=str(made), max_pixels=5))
    with raises(UserError, "processor-unsupported", key="vision_aspect_ratio", got="square"):
        load_family(ProcessorKey(processor=str(llava_onevision.make(tmp_path / "a", vision_aspect_ratio="square"))))
    files = json.loads((made / "preprocessor_config.json").read_text())
    (made / "preprocessor_config.json").write_text(json.dumps(files | {"image_grid_pinpoints": [[50, 42]]}))
    with raises(UserError, "processor-unsupported", key="image_grid_pinpoints"):
        load_family(ProcessorKey(processor=str(made)))


def test_a_thin_picture_among_several_does_not_ask_for_a_huge_square(tiny, tmp_path):
    """60,000 pixels squared would be 10 GB when packing; alone it is resized as it is."""
    data = TinyData(tmp_path / "data")
    picture(data.folder / "thin.png", 1, 60_000)
    data.image(60, 90)
    data.row([("user", "<image>or<image>?"), ("assistant", "No.")], images=["0.png", "thin.png"])
    data.row([("user", "<image>What?"), ("assistant", "A line.")], images=["thin.png"])
    out = tmp_path / "out"
    run_pack(tiny_config(data.write(), out, processor=tiny.source, pack_size=400, max_skipped=1.0))
    lines = read_ledger(out, assert_verified(out)).to_pylist()
    assert [(line["status"], line["reason"]) for line in lines] == [
        ("packed", ""),
        ("skipped", "bad_media"),
        ("packed", ""),
    ]
    named = ("60000x1", "3600000000 pixels", "--max-image-pixels 100000000")
    assert all(name in lines[1]["detail"] for name in named)
    assert tiny.image.shape(10_000, 1, 2)[0] == (SIDE, SIDE), "what is not above it is taken"


def test_truncation_does_not_leave_one_of_several_pictures(tiny, tmp_path):
    """It has one tile, and the model would look for more where it is the only one."""
    one, two = (part("image", picture(tmp_path / f"{i}.png", 60, 90, seed=i)) for i in range(2))
    messages = [*turns(one, text("A"), answer="Yes."), *turns(two, text("B")), *turns(one, text("C"))]
    (whole,) = measure([from_conversation({"conversation": messages})], tiny)
    places = [place for place, _ in tiny.chat.places(whole.ids)]
    assert len(truncated(whole, places[2] + 2 * 9 + 2, tiny).media) == 2
    assert truncated(whole, places[1] + 9, tiny) is None


@pytest.fixture(scope="module")
def out(tiny, tmp_path_factory):
    """Lone pictures, several, videos, both, and text alone."""
    folder = tmp_path_factory.mktemp("llava_out")
    data = TinyData(folder / "data")
    for number, frames in enumerate((4, 26, 9)):
        clip(data.folder / f"{number}.mp4", frames=frames, rate=5)
    for number, (height, width) in enumerate([(60, 90), (28, 28), (300, 100), (5, 90)]):
        data.image(height, width, answer=f"Picture {number}.")
    ask = [("user", "<video>What?"), ("assistant", "Yes.")]
    data.row(ask, videos=["0.mp4"]).row(ask, videos=["1.mp4"])
    data.row([("user", "<image><image>?"), ("assistant", "No.")], images=["0.png", "2.png"])
    data.row([("user", "<image>and<video><video><image>?"), ("assistant", "No."), ("user", "<image>"),
              ("assistant", "All.")], videos=["1.mp4", "2.mp4"], images=["0.png", "2.png", "1.png"])  # fmt: skip
    for number in (1, 20, 50, 100, 150, 180, 180, 180):
        data.text("How many?", "so many " * number)
    made = folder / "out"
    run_pack(tiny_config(data.write(), made, processor=tiny.source, pack_size=400))
    return made


def test_the_output_is_right(out):
    assert assert_verified(out).counts.skipped == {}


def inputs(batch):
    """All that a batch has beside its labels: the model passes over what it does not know."""
    return {key: value for key, value in batch.items() if key not in ("labels", "_packed_seq_ids")}


@torch.no_grad()
def test_packed_equals_alone(out, tiny):
    model = tiny_llava_onevision(tiny)
    packs = list(PackedShards(out, pixels="fp32"))
    assert any(len(pack["batch_num_images"]) > 1 for pack in packs), "pictures of several documents"
    assert any(pack["n_videos"] > 1 and pack["n_images"] for pack in packs), "pictures and videos"
    assert any(pack["input_ids"][-13:].tolist() == tiny.fake_image_ids.tolist() for pack in packs), "a fake image"
    for pack in packs:
        assert max(differences(lambda batch: model(**inputs(batch)).logits, out, pack)) < 1e-5
    batch = neat_packed_vlm_collater(packs)
    model(**inputs(batch))  # the counts of features and tokens are compared in the model
    # Bytes that are restored after collating, videos as [videos, frames, …], are the same floats.
    late = restore_pixels(neat_packed_vlm_collater(list(PackedShards(out, pixels="uint8"))), dtype=torch.float32)
    assert late["pixel_values_videos"].shape[1:] == (4, 3, SIDE, SIDE)
    assert all(torch.equal(late[name], batch[name]) for name in ("pixel_values", "pixel_values_videos"))


def test_frames_that_pad_a_video_are_zero_however_they_are_restored(tmp_path):
    """Videos of 4 and 9 frames: restored before or after they are padded, their floats are the same."""
    processor = str(llava_onevision.make(tmp_path / "p"))
    data = TinyData(tmp_path / "data")
    for number, frames in enumerate((4, 9)):
        clip(data.folder / f"{number}.mp4", frames=frames)
        data.row([("user", "<video>What?"), ("assistant", "Yes.")], videos=[f"{number}.mp4"])
    run_pack(tiny_config(data.write(), tmp_path / "out", processor=processor, pack_size=512))
    early, late = (
        neat_packed_vlm_collater(list(PackedShards(tmp_path / "out", pixels=pixels))) for pixels in ("fp32", "uint8")
    )
    late = restore_pixels(late, dtype=torch.float32)
    assert late["pixel_values_videos"].shape[:2] == (2, 9)
    assert torch.equal(early["pixel_values_videos"], late["pixel_values_videos"])


def test_microbatches_have_their_own_media(out, tiny):
    with raises(ValueError, "batch-mismatch", arrays=["pixel_values_videos"]):
        collated = neat_packed_vlm_collater(list(PackedShards(out, pixels="uint8")))
        prepare_vlm_media_for_pp(collated, len(collated["input_ids"]), 1, tiny.media)
    packs = list(PackedShards(out, pixels="fp32"))
    whole = neat_packed_vlm_collater(packs)
    frames = whole["pixel_values_videos"].clone()
    chunks = prepare_vlm_media_for_pp(whole, len(packs), len(packs), tiny.media)[VLM_PP_MEDIA_KEY]
    for number, pack in enumerate(packs):
        for name in ("pixel_values", "num_tiles", "image_sizes", "batch_num_images", "num_frames"):
            assert torch.equal(chunks[name][number], pack[name]), name
    assert torch.equal(torch.cat(chunks["pixel_values_videos"]), frames)
    assert [len(chunk) for chunk in chunks["pixel_values_videos"]] == [pack["n_videos"] for pack in packs]
