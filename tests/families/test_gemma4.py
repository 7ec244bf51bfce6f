"""Gemma 4: its labels, packed against alone with both its masks. Its tensors: test_parity.py."""

import shutil

import numpy as np
import pytest
import torch
from helpers import DEMO_PROCESSOR, TinyData, asked, clip, documents_of, picture, tiny_config, tone
from hypothesis import given, settings, strategies as st
from processors import gemma4
from support.errors import assert_skipped, raises
from tiny_models import tiny_gemma4
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.format.manifest import Manifest
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import family_for, load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.labels import TrainOn
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.media.image import decode_image
from neatpack.pipeline.media.pixels import resize_torch
from neatpack.pipeline.records import Example, Skip, Turn
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import verify_ledger, verify_shard

pytestmark = pytest.mark.slow

NO_VIDEO = {"video_position_ids": np.zeros((0, 630, 2), dtype=np.int16)}
HEADER = "<|turn>model\n"
EMPTY = "<|channel>thought\n<channel|>"


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    return gemma4.make(tmp_path_factory.mktemp("gemma4") / "processor")


@pytest.fixture(scope="module")
def family(processor):
    return load_family(ProcessorKey(processor=str(processor)))


@pytest.fixture(scope="module")
def thinking(processor):
    return load_family(ProcessorKey(processor=str(processor), empty_thought=True))


@settings(max_examples=200)
@given(st.one_of(st.integers(161, 4000), st.integers(161, 600_000)))
def test_frames_of_a_sound_are_counted_without_hearing_it(family, num_samples):
    heard = Gemma4AudioFeatureExtractor()([np.zeros(num_samples, dtype=np.float32)])["input_features_mask"][0]
    assert family.sound.frames(num_samples) == heard.sum() == np.argmin(np.append(heard, False))


def test_too_short_a_sound_is_refused(family):
    assert family.sound.frames(161) == 1
    with pytest.raises(ValueError, match="0.0100 s"):
        family.sound.frames(160)


def trained(family, whole):
    runs = np.split(whole.labels, np.flatnonzero(np.diff(whole.labels == -100)) + 1)
    return [family.chat.tokenizer.decode(run) for run in runs if run[0] != -100]


def rendered(family, *turns):
    (measured,) = measure([Example(turns=tuple(Turn(role=role, parts=(text,)) for role, text in turns))], family)
    assert not isinstance(measured, Skip)
    whole = render_whole(measured, family, "torch")
    return family.chat.tokenizer.decode(whole.input_ids), trained(family, whole), whole


def test_answers_are_trained_and_no_thought_is_added(family):
    text, targets, whole = rendered(family, ("user", "Hi"), ("assistant", "Yo."), ("user", "?"), ("assistant", "\nA"))
    assert text == f"<bos><|turn>user\nHi<turn|>\n{HEADER}Yo.<turn|>\n<|turn>user\n?<turn|>\n{HEADER}A<turn|>\n"
    assert targets == ["Yo.<turn|>", "A<turn|>"]
    assert whole.input_ids.tolist().count(family.chat.tokenizer.bos_token_id) == 1


def test_an_empty_thought_where_it_is_asked_for_is_not_trained_on(family, thinking):
    turns = (("user", "Hi"), ("assistant", "Yo."), ("user", "?"), ("assistant", "A"))
    text, targets, _ = rendered(thinking, *turns)
    assert text == rendered(family, *turns)[0].replace(HEADER, HEADER + EMPTY)
    assert targets == ["Yo.<turn|>", "A<turn|>"]
    assert thinking.fingerprint != family.fingerprint, "measured anew"


def test_other_families_have_no_empty_thought():
    with raises(UserError, "option-conflict", option="empty_thought", family="qwen2_vl"):
        load_family(ProcessorKey(processor=str(DEMO_PROCESSOR), empty_thought=True))


SAID = "<|channel>thought\nHm, <|image|>…<channel|>Yes."


def test_thoughts_of_a_row_are_kept_where_the_template_writes_them(family, thinking):
    """As tokens of the channel; tokens inside of the thought are plain text, and so are those of a user."""
    text, targets, whole = rendered(family, ("user", SAID), ("assistant", SAID))
    assert text == f"<bos><|turn>user\n{SAID}<turn|>\n{HEADER}{SAID}<turn|>\n"
    assert targets == [f"{SAID}<turn|>"]
    for token, count in (("<|channel>", 1), ("<channel|>", 1), ("<|image|>", 0)):
        assert whole.input_ids.tolist().count(family.chat.token_id(token)) == count, token
    text, targets, _ = rendered(thinking, ("user", "Hi"), ("assistant", SAID))
    assert text.endswith(f"{HEADER}{EMPTY}{SAID}<turn|>\n") and targets == [f"{SAID}<turn|>"]


@pytest.mark.parametrize(("reasoning", "expected"), [("train", SAID), ("mask", "Yes."), ("drop", "Yes.")])
def test_thoughts_are_reasoning(family, reasoning, expected):
    turns = (Turn(role="user", parts=("Hi",)), Turn(role="assistant", parts=(SAID,)))
    (measured,) = measure([Example(turns=turns)], family, train_on=TrainOn(reasoning=reasoning))
    assert trained(family, render_whole(measured, family, "torch")) == [f"{expected}<turn|>"]


def test_thoughts_of_a_row_are_taken_out_where_the_template_does(tmp_path):
    """As the published one does; literally, the template would not see it, for it is guarded."""
    made = gemma4.make(tmp_path / "p")
    template = (made / "chat_template.jinja").read_text()
    stripped = template.replace("part['text'] | trim", "(part['text'].split('<channel|>') | last) | trim")
    assert stripped != template
    (made / "chat_template.jinja").write_text(stripped)
    text, targets, _ = rendered(load_family(ProcessorKey(processor=str(made))), ("user", "Hi"), ("assistant", SAID))
    assert text.endswith(f"{HEADER}Yes.<turn|>\n")
    assert targets == ["Yes.<turn|>"]


def test_the_published_template(shared):
    """Thoughts in the words are taken out, reasoning_content of the last turn is written, and nothing is added."""
    family = family_for(str(shared / "processors" / "gemma4"))
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": SAID}]
    for messages in (turns, [turns[0], {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}]):
        (measured,) = measure([from_conversation({"conversation": messages})], family)
        expected = family.chat.tokenizer.apply_chat_template(messages, tokenize=False)
        assert family.chat.tokenizer.decode(measured.ids) == expected
    assert expected.endswith("<|turn>model\n<|channel>thought\nHm.\n<channel|>Yes.<turn|>\n")


def test_structural_tokens_in_texts_are_plain(family):
    """Also of the assistant, where they are not a whole thought."""
    user, said = "a <|turn>model\nb <|image|> <bos>", "<|channel>c <turn|> d"
    text, targets, whole = rendered(family, ("user", user), ("assistant", said))
    assert text == f"<bos><|turn>user\n{user}<turn|>\n{HEADER}{said}<turn|>\n"
    assert targets == [f"{said}<turn|>"]
    for token, count in (("<|turn>", 2), ("<turn|>", 2), ("<|image|>", 0), ("<bos>", 1), ("<|channel>", 0)):
        assert whole.input_ids.tolist().count(family.chat.token_id(token)) == count, token


def test_bos_comes_once_whoever_writes_it(tmp_path, family):
    adding = load_family(ProcessorKey(processor=str(gemma4.make(tmp_path / "p", adds_bos=True))))
    turns = [("user", "Hi <bos>"), ("assistant", "Yo.")]
    assert rendered(adding, *turns)[2].input_ids.tolist() == rendered(family, *turns)[2].input_ids.tolist()
    turns = [("user", "Hi"), ("assistant", "Yo.")]
    assert rendered(adding, *turns)[2].input_ids.tolist() == rendered(family, *turns)[2].input_ids.tolist()


def test_frames(processor, tmp_path):
    def frames(total, fps=5.0, wish=None, **key):
        return load_family(ProcessorKey(processor=str(processor), **key)).video.choose(total, fps, wish).tolist()

    assert len(frames(40)) == len(frames(1000)) == 32
    assert frames(64) == list(range(0, 64, 2))
    assert frames(5) == [0, 1, 2, 3, 4], "transformers refuses a video of fewer than num_frames"
    assert frames(1) == [0]
    assert frames(50, wish=1.0) == frames(50, video_fps=1.0) == [0, 5, 10, 15, 20, 25, 30, 35, 40, 45]
    assert frames(2, wish=1.0) == [0]
    assert len(frames(1000, video_max_frames=8)) == len(frames(1000, wish=5.0, video_max_frames=8)) == 8
    assert len(frames(50, wish=0.1, video_min_frames=4)) == 4


def test_shrinking(processor, tmp_path):
    family = load_family(ProcessorKey(processor=str(processor), max_pixels=280 * 48 * 48))
    assert family.image.max_soft_tokens == 280
    picture(tmp_path / "a.png", 300, 500)
    image = {"type": "image", "image": str(tmp_path / "a.png")}
    video = {"type": "video", "video": clip(tmp_path / "a.mp4", frames=20).path}
    (measured,) = measure([from_conversation({"conversation": asked(image, video)})], family)
    for level, most in ((0, 280), (1, 140), (2, 70), (3, 70)):
        smaller = family.image.smaller(measured.media[0], level)
        assert most * 0.8 < family.image.tokens(smaller) <= most
        arrays = family.image.render(decode_image(smaller.ref), smaller, resize_torch)
        assert arrays["pixel_values"].shape == (1, 280 * 9, 768), "filled up to the processor's own budget"
        assert family.media_tokens(arrays | NO_VIDEO, family.facts) == family.image.tokens(smaller)
    assert [len(family.video.smaller(measured.media[1], level).frames) for level in range(4)] == [20, 10, 5, 4]
    assert family.video.smaller(measured.media[1], 3).grid[0] == 4


def test_what_is_refused(processor, tmp_path):
    with raises(UserError, "option-conflict", option="min_pixels", family="gemma4"):
        load_family(ProcessorKey(processor=str(processor), min_pixels=5))
    with raises(UserError, "option-invalid", option="max_pixels", got=5, least=161280):
        load_family(ProcessorKey(processor=str(processor), max_pixels=5))
    other = shutil.copytree(processor, tmp_path / "other")
    config = (other / "processor_config.json").read_text()
    for old, new, key in (
        ('"max_soft_tokens": 70', '"max_soft_tokens": 71', "max_soft_tokens"),
        ('"patch_size"', '"do_normalize": true, "image_mean": [0.5, 0.5, 0.5], "patch_size"', "image_mean"),
        ('"patch_size"', '"do_resize": false, "patch_size"', "do_resize"),
        ('Extractor"', 'Extractor", "dither": 0.1', "dither"),
    ):
        (other / "processor_config.json").write_text(config.replace(old, new))
        with raises(UserError, "processor-unsupported", key=key):
            load_family(ProcessorKey(processor=str(other)))


def test_a_model_that_does_not_hear(tmp_path):
    deaf = load_family(ProcessorKey(processor=str(gemma4.make(tmp_path / "p", audio_config=None))))
    assert "input_features" not in deaf.media
    path = tone(tmp_path / "a.wav", 0.5)
    (skip,) = measure([from_conversation({"conversation": asked({"type": "audio", "audio": str(path)})})], deaf)
    assert_skipped(skip, "audio_unsupported", kind="audio", family="gemma4")


# Packed against alone


@pytest.fixture(scope="module", params=[1, 8])
def out(request, processor, tmp_path_factory):
    """Text, pictures, videos and sounds, documents shorter and longer than the window, and a fake image."""
    folder = tmp_path_factory.mktemp("packed")
    data = TinyData(folder / "data")
    for number, seconds in enumerate((1.3, 0.4)):
        tone(data.folder / f"{number}.wav", seconds)
    clip(data.folder / "a.mp4", frames=3)
    clip(data.folder / "b.mp4", frames=5, height=80, width=40)
    data.row([("user", "<audio>What?"), ("assistant", "A tone.")], audios=["0.wav"])
    data.row([("user", "<video>See?"), ("assistant", "Yes, grey.")], videos=["a.mp4"])
    data.row([("user", "<audio>Or <audio>?"), ("assistant", "The second.")], audios=["1.wav", "0.wav"])
    data.image(60, 90).image(20, 300, question="<image>Long?", answer="Rather: " + "long, " * 20)
    picture(data.folder / "c.png", 90, 30)
    data.row([("user", "<image><image>and<video>?"), ("assistant", "Three."), ("user", "Sure?"), ("assistant", "No.")],
             images=["c.png", "3.png"], videos=["b.mp4"])  # fmt: skip
    for number in range(12):
        data.text(f"Count to {number}.", " ".join(map(str, range(1, number * 6 + 2))))
    made = folder / "out"
    chosen = {"processor": str(processor), "pack_size": 600, "align": request.param, "overlong": "shrink"}
    run_pack(tiny_config(data.write(), made, **chosen))
    manifest = Manifest.read(made)
    problems = verify_ledger(made, manifest)
    for number in range(len(manifest.shards)):
        problems += verify_shard(made, manifest, number)
    assert problems == []
    assert manifest.counts.packed == 18
    assert manifest.family["facts"]["sliding_window"] == gemma4.SLIDING_WINDOW
    return made


def logits_of(model, batch):
    keys = ("input_ids", "attention_mask", "position_ids", "mm_token_type_ids", "input_features", "input_features_mask",
            "pixel_values", "image_position_ids", "pixel_values_videos", "video_position_ids",
            "num_frames_per_video")  # fmt: skip
    batch = {key: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
             for key, value in batch.items()}  # fmt: skip
    inputs = {key: batch[key] for key in keys if key in batch}
    logits = model(**inputs).logits
    assert torch.isfinite(logits).all()
    return logits


def alone(batch):
    """As transformers runs a document: it makes positions and masks itself."""
    return {key: value for key, value in batch.items() if key not in ("position_ids", "attention_mask")}


def logits_of_documents(model, out, pack):
    return [logits_of(model, alone(neat_packed_vlm_collater([document]))) for document in documents_of(out, pack)]


def differences(logits, pack, expected):
    start = 0
    for length, padded, document in zip(pack["seq_lens"], pack["seq_lens_padded"], expected, strict=True):
        assert document.shape[1] == length
        yield float((logits[:, start : start + int(length)] - document).abs().max())
        start += int(padded)


@pytest.mark.parametrize("bidirectional", [None, "vision"])
@torch.no_grad()
def test_packed_equals_alone(out, family, bidirectional):
    model = tiny_gemma4(family, bidirectional)
    masks = {"sliding_window": gemma4.SLIDING_WINDOW, "bidirectional_vision": bidirectional == "vision"}
    packs = list(PackedShards(out, pixels="fp32"))
    counts = {kind: sum(pack[f"n_{kind}s"] for pack in packs) for kind in ("image", "video", "audio")}
    assert counts == {"image": 5, "video": 2, "audio": 3}, "one image is the fake one"
    assert any(int(length) > 2 * gemma4.SLIDING_WINDOW for pack in packs for length in pack["seq_lens"])
    singles = [logits_of(model, neat_packed_vlm_collater([pack], **masks)) for pack in packs]
    for pack, single in zip(packs, singles, strict=True):
        assert max(differences(single, pack, logits_of_documents(model, out, pack))) < 1e-5
    # several packs in a batch
    batch = neat_packed_vlm_collater(packs, max_length=640, **masks)
    logits = logits_of(model, batch)
    for row, single in enumerate(singles):
        assert (logits[row, : single.shape[1]] - single[0]).abs().max() < 1e-5


@pytest.mark.parametrize("bidirectional", [None, "vision"])
@torch.no_grad()
def test_the_comparison_sees_what_is_broken(out, family, bidirectional):
    model = tiny_gemma4(family, bidirectional)
    right = {"sliding_window": gemma4.SLIDING_WINDOW, "bidirectional_vision": bidirectional == "vision"}
    pack = max(PackedShards(out, pixels="fp32"), key=lambda pack: pack["n_images"])
    good = neat_packed_vlm_collater([pack], **right)
    wrong = [
        neat_packed_vlm_collater([pack]),  # one mask for all layers
        neat_packed_vlm_collater([pack], **{**right, "sliding_window": gemma4.SLIDING_WINDOW - 1}),
        neat_packed_vlm_collater([pack], **{**right, "bidirectional_vision": not right["bidirectional_vision"]}),
        {**good, "position_ids": good["position_ids"] * 2},  # that they go on between documents would not show
        {**good, "pixel_values": good["pixel_values"].flip(-1)},
    ]
    assert len(pack["seq_lens"]) > 1
    expected = logits_of_documents(model, out, pack)
    for number, batch in enumerate(wrong):
        assert max(differences(logits_of(model, batch), pack, expected)) > 0.01, number
