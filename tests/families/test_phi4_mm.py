"""Phi-4 multimodal: a batch of all media, what is refused, packed against alone. Its tensors: test_parity.py."""

import shutil

import numpy as np
import pytest
import torch
from helpers import TinyData, asked, documents_of, picture, run_hf, tiny_config, tone
from hypothesis import given, settings, strategies as st
from processors import phi4_mm
from support.errors import assert_skipped, raises
from tiny_models import tiny_phi4_mm
from transformers import Phi4MultimodalFeatureExtractor

from neatpack import PackedShards, neat_packed_vlm_collater
from neatpack.format.manifest import Manifest
from neatpack.loaders.media import concatenated_media
from neatpack.loaders.mended import mend
from neatpack.loaders.online.phi4 import input_mode, remote_code_batch
from neatpack.loaders.pixels import Stored, restore_pixels, restored
from neatpack.pipeline.cli import main
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure, shrunk
from neatpack.pipeline.media.audio import decode_audio
from neatpack.pipeline.records import Example, MediaRef, Skip, Turn
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import verify_ledger, verify_shard


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    return phi4_mm.make(tmp_path_factory.mktemp("phi4") / "processor")


@pytest.fixture(scope="module")
def family(processor):
    return load_family(ProcessorKey(processor=str(processor)))


@pytest.fixture(scope="module")
def hf(processor, tmp_path_factory):
    """A conversation with all media in one call, and what the HF processor makes of it."""
    folder = tmp_path_factory.mktemp("hf")
    sizes = [(40, 50), (301, 517), (128, 192)]
    paths = [str(picture(folder / f"{i}.png", *size, seed=i)) for i, size in enumerate(sizes)]
    images = [{"type": "image", "image": path, "path": path} for path in paths]
    sounds = []
    for number, seconds in enumerate((0.5, 1.237, 6.0)):
        path = tone(folder / f"{number}.wav", seconds)
        np.save(path.with_suffix(".npy"), decode_audio(MediaRef(kind="audio", path=str(path)), 16_000))
        sounds.append({"type": "audio", "audio": str(path), "samples": str(path.with_suffix(".npy"))})
    conversations = [asked(images[0], sounds[1], images[1]) + asked(images[2], sounds[0], sounds[2], answer="No.")]
    return conversations, run_hf({str(processor): conversations}, folder)


def tensors_of(found, processor, number):
    prefix = f"{processor.name}/{number}/"
    return {key.removeprefix(prefix): torch.from_numpy(value) for key, value in found.items() if key.startswith(prefix)}


def rendered(family, messages):
    (measured,) = measure([from_conversation({"conversation": messages})], family)
    assert not isinstance(measured, Skip), measured
    whole = render_whole(measured, family, "torch")
    assert measured.tokens == len(whole.input_ids) - 1
    return whole


@settings(max_examples=300)
@given(st.one_of(st.integers(400, 5000), st.integers(400, 400_000)))
def test_tokens_of_a_sound_are_counted_without_hearing_it(family, num_samples):
    frames = torch.tensor([(num_samples - 400) // 160 + 1])
    assert family.sound.frames(num_samples) == int(frames)
    assert family.sound.tokens_of(int(frames)) == int(
        Phi4MultimodalFeatureExtractor()._compute_audio_embed_size(frames)
    )


def test_what_cannot_be_taken(family, tmp_path):
    thin, short = picture(tmp_path / "a.png", 2, 900), tone(tmp_path / "a.wav", 0.02)
    for part, named in (
        ({"type": "image", "image": str(thin)}, ("900x2", "512x1")),
        ({"type": "audio", "audio": str(short)}, ("320", "400")),
    ):
        (skip,) = measure([from_conversation({"conversation": asked(part)})], family)
        assert_skipped(skip, "bad_media", *named)
    video = Example(turns=(Turn(role="user", parts=(MediaRef(kind="video", path="a.mp4"),)),))
    assert measure([video], family)[0].reason == "video_unsupported"


def test_labels(family):
    turns = asked(answer="\nFirst.") + asked(answer="a <|end|> b <|image|>")
    whole = rendered(family, turns)
    targets = whole.labels[whole.labels != -100]
    assert family.chat.tokenizer.decode(targets) == "\nFirst.<|end|>a <|end|> b <|image|><|end|>"
    assert whole.input_ids.tolist().count(family.chat.token_id("<|end|>")) == 4
    assert family.chat.token_id("<|image|>") not in whole.input_ids


def test_shrinking(family, tmp_path):
    path = picture(tmp_path / "a.png", 120, 250)
    (whole,) = measure([from_conversation({"conversation": asked({"type": "image", "image": str(path)})})], family)
    assert whole.media[0].grid == (1, 2, 4)
    smaller = [shrunk(whole, level, family) for level in (1, 2, 3)]
    assert [made.media[0].grid for made in smaller] == [(1, 1, 2), (1, 1, 2), (1, 1, 1)]
    assert render_whole(smaller[2], family, "torch").media["image_pixel_values"].shape == (1, 3, 64, 64)
    assert shrunk(smaller[2], 1, family) is None


def test_the_remote_codes_processor(family, tmp_path):
    """The same, but for the template and the tokens that stand for media."""
    remote = load_family(ProcessorKey(processor=str(phi4_mm.make_remote(tmp_path / "p"))))
    path = picture(tmp_path / "a.png", 70, 100)
    messages = asked({"type": "image", "image": str(path)})
    ours, theirs = rendered(family, messages), rendered(remote, messages)
    exchanged = np.where(theirs.input_ids == remote.chat.token_id("<|endoftext10|>"), family.chat.token_id("<|image|>"),
                         theirs.input_ids)  # fmt: skip
    assert exchanged.tolist() == [*ours.input_ids.tolist(), remote.chat.token_id("<|im_end|>")]
    assert theirs.labels.tolist() == [*ours.labels.tolist(), -100]


def test_what_is_refused(processor, tmp_path):
    with raises(UserError, "option-conflict", option="max_pixels", family="phi4_mm"):
        load_family(ProcessorKey(processor=str(processor), max_pixels=5))
    other = shutil.copytree(processor, tmp_path / "other")
    config = (other / "processor_config.json").read_text()
    (other / "processor_config.json").write_text(config.replace('"patch_size": 2', '"patch_size": 4'))
    with raises(UserError, "processor-unsupported", key="size"):
        load_family(ProcessorKey(processor=str(other)))


def test_input_mode():
    pixels, sound = torch.zeros(1, 2, 3, 4, 4), torch.zeros(1, 8, 80)
    assert input_mode({"input_ids": pixels}) == 0
    assert input_mode({"image_pixel_values": pixels}) == 1
    assert input_mode({"audio_input_features": sound, "image_pixel_values": None}) == 2
    assert input_mode({"audio_input_features": sound, "image_pixel_values": pixels[:0]}) == 2
    both = {"audio_input_features": sound, "image_pixel_values": pixels, "image_sizes": pixels}
    assert input_mode(both) == 3
    assert set(remote_code_batch(both)) == {"input_audio_embeds", "input_image_embeds", "image_sizes", "input_mode"}


# Packs


def packed(processor, folder, data, **chosen):
    out = folder / "out"
    run_pack(tiny_config(data.write(), out, processor=str(processor), pack_size=4096, **chosen))
    manifest = Manifest.read(out)
    problems = verify_ledger(out, manifest)
    for number in range(len(manifest.shards)):
        problems += verify_shard(out, manifest, number)
    assert problems == []
    return out, manifest


@pytest.fixture(scope="module")
def pictures(processor, tmp_path_factory):
    """Pictures of one and of many crops, two in a row, and text that needs the fake image."""
    folder = tmp_path_factory.mktemp("pictures")
    data = TinyData(folder / "data")
    data.image(40, 50).image(120, 250).image(64, 64).image(60, 120)
    picture(data.folder / "c.png", 150, 30)
    data.row([("user", "<image>and<image>?"), ("assistant", "Two."), ("user", "Sure?"), ("assistant", "No.")],
             images=["c.png", "0.png"])  # fmt: skip
    for number in range(20):
        data.text(f"Count to {number}.", " ".join(map(str, range(1, number * 15 + 2))))
    return packed(processor, folder, data)


@pytest.fixture(scope="module")
def sounds(processor, tmp_path_factory):
    """Sounds without pictures. All as long as each other: see the model's mask in pipeline/families/phi4_mm.py."""
    folder = tmp_path_factory.mktemp("sounds")
    data = TinyData(folder / "data")
    for number in range(3):
        tone(data.folder / f"{number}.wav", 0.7, hertz=300 + 200 * number)
    data.row([("user", "<audio>What?"), ("assistant", "A tone.")], audios=["0.wav"])
    data.row([("user", "<audio>Or <audio>?"), ("assistant", "The second.")], audios=["1.wav", "2.wav"])
    data.text("Hello?", "Yes.")
    return packed(processor, folder, data, fake_image=False)


def test_a_batch_has_the_tensors_of_the_hf_processor(hf, family, processor):
    """The whole conversation of several media in one call is what a batch holds, too."""
    conversations, found = hf
    theirs = tensors_of(found, processor, len(conversations) - 1)
    whole = rendered(family, conversations[-1])
    item = {"input_ids": torch.from_numpy(whole.input_ids), "media_layout": family.media}
    item |= {name: torch.from_numpy(array) for name, array in whole.media.items()}
    table = Stored(torch.from_numpy(family.tables("torch")["image"]))
    crops = restored(item["image_pixel_values"], table, torch.float32)
    batch = concatenated_media([item | {"image_pixel_values": crops}])
    for name in ("image_pixel_values", "image_sizes", "image_attention_mask", "audio_embed_sizes",
                 "audio_attention_mask"):  # fmt: skip
        assert torch.equal(batch[name].to(theirs[name].dtype), theirs[name]), name
    assert batch["audio_input_features"].shape == theirs["audio_input_features"].shape
    assert not {"image_global_view", "image_global_mask"} & set(batch)


def test_pixels_restored_late_are_the_same(pictures):
    """uint8 pixels, restored in the batch; crops that are padding are zero, their masks one."""
    out, _ = pictures
    early, late = (list(PackedShards(out, pixels=pixels, shuffle=False)) for pixels in ("fp32", "uint8"))
    assert sum(pack["n_images"] for pack in early) > 5
    ready = neat_packed_vlm_collater(early)
    batch = restore_pixels(neat_packed_vlm_collater(late), dtype=torch.float32)
    assert "image_global_view" not in batch
    assert torch.equal(batch["image_pixel_values"], ready["image_pixel_values"])
    for index, crops in enumerate(batch["image_crops"].prod(1).tolist()):
        assert not ready["image_pixel_values"][index, 1 + crops :].any()
        assert (ready["image_attention_mask"][index, 1 + crops :] == 1).all()
    assert len(set(batch["image_crops"].prod(1).tolist())) > 2


MODEL_KEYS = (
    "input_ids", "attention_mask", "position_ids", "image_pixel_values", "image_sizes", "image_attention_mask",
    "audio_input_features", "audio_embed_sizes", "audio_attention_mask",
)  # fmt: skip


def logits_of(model, batch):
    logits = model(**{key: batch[key] for key in MODEL_KEYS if key in batch}).logits
    assert torch.isfinite(logits).all()
    return logits


@pytest.mark.parametrize("kind", ["pictures", "sounds"])
@torch.no_grad()
def test_packed_equals_alone(kind, family, request):
    out, manifest = request.getfixturevalue(kind)
    model = tiny_phi4_mm(family)
    documents = 0
    for pack in PackedShards(out, pixels="fp32"):
        batch = neat_packed_vlm_collater([pack])
        assert input_mode(batch) == (1 if kind == "pictures" else 2)
        logits, start = logits_of(model, batch), 0
        for document in documents_of(out, pack):
            length = len(document["input_ids"])
            alone = neat_packed_vlm_collater([document])
            expected = logits_of(model, {k: v for k, v in alone.items() if k not in ("position_ids", "attention_mask")})
            assert (logits[:, start : start + length] - expected).abs().max() < 1e-4
            start, documents = start + length, documents + 1
    assert documents >= manifest.counts.packed


@torch.no_grad()
def test_sounds_beside_pictures_of_others_need_mending(family, tmp_path, caplog):
    """In the version that this is for. Alone, a mended model gives what it gave: also where a document has both."""
    data = TinyData(tmp_path / "data")
    tone(data.folder / "a.wav", 0.5)
    picture(data.folder / "a.png", 40, 60)
    data.row([("user", "<audio>What?"), ("assistant", "A tone.")], audios=["a.wav"])
    data.row([("user", "<image>What?"), ("assistant", "A picture.")], images=["a.png"])
    data.row([("user", "<image>or<audio>?"), ("assistant", "Both.")], images=["a.png"], audios=["a.wav"])
    run_pack(tiny_config(data.write(), tmp_path / "out", processor=family.source, pack_size=4096))
    packs = PackedShards(tmp_path / "out", pixels="fp32")
    (pack,) = packs
    model, batches = (
        tiny_phi4_mm(family),
        [neat_packed_vlm_collater([one]) for one in documents_of(tmp_path / "out", pack)],
    )
    alone = [logits_of(model, batch) for batch in batches]
    whole = neat_packed_vlm_collater([pack])
    lengths = [logits.shape[1] for logits in alone]

    def apart():
        cut = logits_of(model, whole).split(lengths, dim=1)
        return [float((one - other).abs().max()) for one, other in zip(cut, alone, strict=True)]

    speech = next(at for at, batch in enumerate(batches) if "image_pixel_values" not in batch)
    packs.collater(model)
    assert "Phi4MultimodalForCausalLM" in caplog.text
    assert apart()[speech] > 1e-2, "the trap is still there"
    mend(mend(model))
    assert max(apart()) < 1e-4
    for batch, expected in zip(batches, alone, strict=True):
        assert torch.allclose(logits_of(model, batch), expected, atol=1e-6)
    caplog.clear()
    packs.collater(model)
    assert not caplog.text


def test_a_pack_with_sounds_gets_no_fake_image(family, tmp_path):
    """The model would project its sounds by the weights that it has for speech beside pictures."""
    data = TinyData(tmp_path / "data")
    tone(data.folder / "a.wav", 0.5)
    data.row([("user", "<audio>What?"), ("assistant", "A tone.")], audios=["a.wav"])
    run_pack(tiny_config(data.write(), tmp_path / "out", processor=family.source, pack_size=1024))
    (pack,) = PackedShards(tmp_path / "out")
    assert (pack["n_audios"], pack["n_images"]) == (1, 0)
    assert family.wants_fake_image(0, 0) and not family.wants_fake_image(1, 0)


def test_packs_that_the_fake_image_fills_are_refused(tmp_path, capsys):
    """Phi's is of 290 tokens, and LLaVA-OneVision's of 757. Exit code 2, and a sentence."""
    processor = phi4_mm.make(tmp_path / "processor")
    size = len(load_family(ProcessorKey(processor=str(processor))).fake_image_ids)
    meta = TinyData(tmp_path / "data").text("Who?", "Me.").write()
    given = ["--meta", str(meta), "--processor", str(processor), "--engine", "inline"]
    for command in (["plan"], ["pack", "--out", str(tmp_path / "out")]):
        assert main([*command, *given, "--pack-size", str(size)]) == 2
        assert f"--pack-size {size}: " in capsys.readouterr().err
    assert main(["plan", *given, "--pack-size", str(size), "--no-fake-image"]) == 0
