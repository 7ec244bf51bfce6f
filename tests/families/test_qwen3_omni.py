"""Qwen3-Omni against transformers: every tensor of its processor, the positions of its model, packed against alone."""

from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from helpers import (
    SHARED,
    TinyData,
    assert_verified,
    clip,
    differences,
    picture,
    run_hf,
    tiny_config,
    tone,
)
from hypothesis import given, strategies as st
from processors import qwen3_omni
from tiny_models import tiny_model
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoePreTrainedModelForConditionalGeneration as Positioned,
)
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

from neatpack import PackedShards
from neatpack.loaders.pixels import Stored, restored
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.qwen3_omni import audio_tokens
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.media.audio import decode_audio
from neatpack.pipeline.records import MediaRef
from neatpack.pipeline.render.sample import render_whole
from neatpack.pipeline.run import run_pack


@given(st.integers(1, 100_000))
def test_tokens_of_a_sound(frames):
    assert audio_tokens(frames) == int(_get_feat_extract_output_lengths(torch.tensor(frames)))


def film(path, seconds=3.0, rate=5):
    """A video with a sound track."""
    with av.open(str(path), "w") as container:
        video, audio = container.add_stream("mpeg4", rate=rate), container.add_stream("aac", rate=16_000)
        video.height, video.width, video.pix_fmt = 64, 96, "yuv420p"
        audio.layout = "mono"
        for number in range(int(seconds * rate)):
            frame = av.VideoFrame.from_ndarray(np.full((64, 96, 3), 12 * number, np.uint8), format="rgb24")
            container.mux(video.encode(frame))
        container.mux(video.encode())
        samples = (np.sin(np.arange(int(seconds * 16_000)) / 20) * 0.4).astype(np.float32)[None]
        for start in range(0, samples.shape[1], 1024):
            frame = av.AudioFrame.from_ndarray(samples[:, start : start + 1024], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 16_000, start  # type: ignore[attr-defined]
            container.mux(audio.encode(frame))
        container.mux(audio.encode())
    return path


@pytest.fixture(scope="module", params=["tiny", "real"])
def hf(request, tmp_path_factory):
    """(processor, conversations, their HF tensors); the real processor where ../shared is."""
    folder = tmp_path_factory.mktemp("omni")
    processor = qwen3_omni.make(folder / "processor")
    if request.param == "real":
        processor = SHARED / "processors" / "qwen3-omni"
        if not processor.is_dir():
            pytest.skip("../shared/processors/qwen3-omni is not here")

    def sound(path):
        np.save(path.with_suffix(".npy"), decode_audio(MediaRef(kind="audio", path=str(path)), 16_000))
        return str(path.with_suffix(".npy"))

    short, long = tone(folder / "short.wav", 0.31), tone(folder / "long.wav", 4.2, rate=44_100, channels=2)
    image = picture(folder / "a.png", 130, 200)
    video, heard = clip(folder / "mute.mp4").path, film(folder / "film.mp4")
    say = {"role": "assistant", "content": [{"type": "text", "text": "It is."}]}

    def user(*parts):
        return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}, say]

    def audio(path):
        return {"type": "audio", "audio": str(path), "samples": sound(path)}

    def picture_part():
        return {"type": "image", "image": str(image), "path": str(image)}

    def video_part(path, fps, **more):
        return {"type": "video", "video": str(path), "path": str(path), "fps": fps, **more}

    conversations = [
        user(audio(short)),
        user(audio(long)),
        user(picture_part(), audio(long), picture_part()),
        user(video_part(video, 1.0), audio(short)),
        user(video_part(video, 3.0)),  # positions that are no whole numbers
        user({"type": "text", "text": "Only text."}),
        user(video_part(heard, 1.0, sound=sound(heard))),
        user(picture_part(), video_part(heard, 2.0, sound=sound(heard)), audio(short)),
    ]
    return str(processor), conversations, run_hf({str(processor): conversations}, folder)


def positioned(input_ids, tensors, family):
    """Positions of the reference, which needs no weights."""
    model = Positioned.__new__(Positioned)
    torch.nn.Module.__init__(model)
    token = {f"{kind}_token_id": number for kind, number in family.chat.placeholder_ids.items()}
    start = {f"{name}_start_token_id": family.chat.token_id(f"<|{name}_start|>") for name in ("vision", "audio")}
    model.config = SimpleNamespace(
        **token, **start, position_id_per_seconds=13, audio_config=SimpleNamespace(n_window=50)
    )
    model.spatial_merge_size = 2
    mask = tensors.get("feature_attention_mask")
    return model.get_rope_index(
        input_ids,
        image_grid_thw=tensors.get("image_grid_thw"),
        video_grid_thw=tensors.get("video_grid_thw"),
        attention_mask=torch.ones_like(input_ids),
        use_audio_in_video=family.video.sound is not None,
        audio_seqlens=mask.sum(-1) if mask is not None else None,
        second_per_grids=tensors.get("video_second_per_grid"),
    )[0][:, 0]


def test_every_tensor_equals_the_hf_processors(hf):
    processor, conversations, found = hf
    name = processor.rsplit("/", 1)[1]
    for number, messages in enumerate(conversations):
        heard = any("sound" in part for turn in messages for part in turn["content"])
        family = load_family(ProcessorKey(processor=processor, use_audio_in_video=heard))
        tensors = {key.rsplit("/", 1)[1]: torch.from_numpy(value) for key, value in found.items()
                   if key.startswith(f"{name}/{number}/")}  # fmt: skip
        (measured,) = measure([from_conversation({"conversation": messages})], family)
        whole = render_whole(measured, family, "torch")
        assert measured.tokens == len(whole.input_ids) - 1
        assert whole.input_ids.tolist() == tensors["input_ids"][0].tolist(), number
        expected = positioned(tensors["input_ids"], tensors, family)
        assert np.array_equal(whole.position_ids, expected.numpy()), number
        tables = family.tables("torch")
        for key, layout in family.media.items():
            stored = whole.media[key]
            if key in ("pixel_values", "pixel_values_videos"):
                how = Stored(torch.from_numpy(tables[layout.deliver.table]), layout.deliver.repeat)
                stored = restored(torch.from_numpy(stored), how, torch.float32)
            if key == "input_features" and "input_features" in tensors:
                mask = tensors["feature_attention_mask"].bool()
                features = tensors["input_features"].permute(0, 2, 1)
                lengths = whole.media["audio_feature_lengths"].tolist()
                if len(lengths) == 1:
                    assert np.array_equal(stored, features[mask].numpy())
                else:  # transformers pads sounds before it takes their features: the end of a short one differs
                    pieces = np.split(stored, np.cumsum(lengths)[:-1])
                    for one, row, length in zip(pieces, features, lengths, strict=True):
                        assert np.allclose(one[:-2], row[: length - 2].numpy(), atol=1e-5)
            elif key in tensors:
                assert np.array_equal(stored, tensors[key].numpy()), (number, key)
            else:
                assert key == "audio_feature_lengths" or not len(stored), (number, key)


def test_the_sound_of_a_video_is_interleaved_by_time(tmp_path):
    path = film(tmp_path / "film.mp4")
    processor = qwen3_omni.make(tmp_path / "processor")
    messages = [{"role": "user", "content": [{"type": "video", "video": str(path), "fps": 1.0}]},
                {"role": "assistant", "content": "Yes."}]  # fmt: skip
    family = load_family(ProcessorKey(processor=str(processor), use_audio_in_video=True))
    (measured,) = measure([from_conversation({"conversation": messages})], family)
    whole = render_whole(measured, family, "torch")
    runs = [int(kind) for kind in whole.mm_token_type_ids[np.flatnonzero(np.diff(whole.mm_token_type_ids)) + 1]]
    assert runs[:4] == [2, 3, 2, 3], "seconds 0 and 1 of the video, what is heard, seconds 2 and 3, the rest"
    silent = load_family(ProcessorKey(processor=str(processor)))
    (deaf,) = measure([from_conversation({"conversation": messages})], silent)
    assert (measured.visual_tokens, deaf.visual_tokens) == (deaf.visual_tokens, deaf.visual_tokens)
    assert measured.audio_tokens == audio_tokens(family.sound.frames(measured.media[0].num_samples))
    assert measured.tokens - deaf.tokens == measured.audio_tokens + 2
    assert deaf.audio_tokens == 0


@pytest.mark.parametrize("heard", [False, True])
def test_packed_equals_alone(tmp_path, heard):
    """Sounds of several lengths, pictures and videos in one pack, through a tiny model of transformers' own."""
    data = TinyData(tmp_path / "data")
    tone(data.folder / "a.wav", 1.3)
    tone(data.folder / "b.wav", 0.4)
    film(data.folder / "c.mp4", seconds=2.0)
    data.row([("user", "<audio>What?"), ("assistant", "A tone.")], audios=["a.wav"])
    data.row([("user", "<video>See?"), ("assistant", "Yes, grey.")], videos=[{"path": "c.mp4", "fps": 2}])
    data.row([("user", "<audio>Or <audio>?"), ("assistant", "The second.")], audios=["b.wav", "a.wav"])
    data.image(60, 90)
    data.text("Nothing?", "Nothing.")
    processor = qwen3_omni.make(tmp_path / "processor")
    out = tmp_path / "out"
    small = {"video_min_pixels": 1024, "video_max_pixels": 65536, "max_pixels": 16384, "use_audio_in_video": heard}
    run_pack(tiny_config(data.write(), out, processor=str(processor), pack_size=2048, **small))
    assert assert_verified(out).counts.packed == 5
    (pack,) = PackedShards(out, pixels="fp32")
    assert pack["n_audios"] == (4 if heard else 3)
    model = tiny_model("qwen3_omni")
    keys = ("input_ids", "position_ids", "attention_mask", "pixel_values", "image_grid_thw", "pixel_values_videos",
            "video_grid_thw", "input_features", "feature_attention_mask")  # fmt: skip

    def logits(batch):
        return model(**{key: batch[key] for key in keys if key in batch}).logits

    found = differences(logits, out, pack)
    assert len(found) == len(pack["seq_lens"]) == 5
    assert max(found) < 1e-5
