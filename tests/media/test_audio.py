"""Sound is decoded, averaged and resampled; what cannot be heard is refused with a reason."""

import json

import av
import numpy as np
import pytest
from helpers import DEMO_PROCESSOR, SHARED, TinyData, clip, tiny_config, tone
from hypothesis import given, strategies as st
from processors import qwen3_omni
from support.errors import assert_skipped, raises, raises_media_error

from neatpack.format.manifest import Manifest
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import family_for, load_family
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.measure.media import measure_medium
from neatpack.pipeline.media.audio import _resampled, count_samples, decode_audio, has_audio, resampled_length
from neatpack.pipeline.records import Example, MediaError, MediaRef, Turn
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger, verify_ledger, verify_shard

RATES = [7_350, 8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_056, 44_100, 48_000, 96_000, 192_000]


@pytest.fixture(scope="module")
def processor(tmp_path_factory) -> str:
    return str(qwen3_omni.make(tmp_path_factory.mktemp("omni") / "processor"))


def sound(path) -> MediaRef:
    return MediaRef(kind="audio", path=str(path))


@pytest.mark.parametrize(("rate", "seconds"), [(16_000, 1.0), (8_000, 0.5), (44_100, 2.0), (48_000, 0.25)])
def test_the_rate_and_the_number_of_samples(tmp_path, rate, seconds):
    samples = decode_audio(sound(tone(tmp_path / "a.wav", seconds, rate=rate)), 16_000)
    assert samples.dtype == np.float32
    assert abs(len(samples) - seconds * 16_000) <= 2
    assert 0.3 < np.abs(samples).max() < 0.7


def test_samples_at_the_wanted_rate_are_untouched(tmp_path):
    samples = decode_audio(sound(tone(tmp_path / "a.wav", 0.1)), 16_000)
    raw = np.frombuffer((tmp_path / "a.wav").read_bytes()[44:], dtype="<i2")
    assert np.array_equal(samples, raw.astype(np.float32) / 32768)


def test_channels_are_averaged_and_not_added(tmp_path):
    mono, stereo = (decode_audio(sound(tone(tmp_path / f"{n}.wav", channels=n)), 16_000) for n in (1, 2))
    assert np.allclose(stereo, mono * 0.75, atol=1e-4), "the second channel is half as loud"


def test_decoding_is_the_same_every_time(tmp_path):
    path = sound(tone(tmp_path / "a.wav", 1.7, rate=44_100, channels=2))
    assert np.array_equal(decode_audio(path, 16_000), decode_audio(path, 16_000))


def test_a_sound_in_memory(tmp_path):
    path = tone(tmp_path / "a.wav", 0.5, rate=22_050)
    samples = decode_audio(sound(path), 22_050)
    held = MediaRef(kind="audio", path="(here)", held=(samples, 22_050))
    assert np.array_equal(decode_audio(held, 16_000), decode_audio(sound(path), 16_000))
    as_bytes = MediaRef(kind="audio", path="(here)", held=path.read_bytes())
    assert np.array_equal(decode_audio(as_bytes, 16_000), decode_audio(sound(path), 16_000))


def test_what_cannot_be_heard(tmp_path, processor):
    family = family_for(processor)
    (tmp_path / "no.mp3").write_text("no sound")
    cases = {
        str(tmp_path / "absent.wav"): "missing_media",
        str(tmp_path / "no.mp3"): "bad_media",
        clip(tmp_path / "mute.mp4").path: "bad_media",
        str(tone(tmp_path / "empty.wav", 0.0)): "bad_media",
        str(tone(tmp_path / "short.wav", 0.01)): "bad_media",
    }
    for path, reason in cases.items():
        with raises_media_error(reason, path):
            measure_medium(sound(path), family)
    assert not has_audio(MediaRef(kind="video", path=str(tmp_path / "mute.mp4")))


def test_a_mute_video_is_only_seen(tmp_path, processor):
    path = clip(tmp_path / "mute.mp4").path
    turns = (Turn(role="user", parts=(MediaRef(kind="video", path=path), "?")), Turn(role="assistant", parts=("Yes.",)))
    (heard,), (seen,) = (
        measure([Example(turns=turns)], load_family(ProcessorKey(processor=processor, use_audio_in_video=use)))
        for use in (True, False)
    )
    assert (heard.tokens, heard.media) == (seen.tokens, seen.media)


def test_a_family_that_does_not_hear_says_so(tmp_path, demo_family):
    turns = (
        Turn(role="user", parts=(sound(tone(tmp_path / "a.wav")), "?")),
        Turn(role="assistant", parts=("Yes.",)),
    )
    (skipped,) = measure([Example(turns=turns)], demo_family)
    assert_skipped(skipped, "audio_unsupported", kind="audio", family="qwen2_vl")


def test_a_family_that_does_not_hear_videos_says_so():
    with raises(UserError, "option-conflict", option="use_audio_in_video", family="qwen2_vl"):
        load_family(ProcessorKey(processor=str(DEMO_PROCESSOR), use_audio_in_video=True))


def test_sounds_from_end_to_end(tmp_path, processor):
    """Good and bad rows; sounds count in the ledger, the index and the manifest as pictures do."""
    data = TinyData(tmp_path / "data")
    tone(data.folder / "a.wav", 1.0)
    data.row([("user", "<audio>What?"), ("assistant", "A tone.")], audios=["a.wav"])
    data.row([("user", "<audio>What?"), ("assistant", "Nothing.")], audios=["absent.wav"])
    data.row([("user", "What?"), ("assistant", "No tag.")], audios=["a.wav"])
    run_pack(tiny_config(data.write(), tmp_path / "out", processor=processor))
    manifest = Manifest.read(tmp_path / "out")
    assert verify_ledger(tmp_path / "out", manifest) + verify_shard(tmp_path / "out", manifest, 0) == []
    assert manifest.counts.skipped == {"bad_placeholders": 1, "missing_media": 1}
    assert manifest.counts.packed == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared (real sounds) is not here")
@pytest.mark.parametrize("heard", [False, True])
def test_the_real_sounds(tmp_path, heard):
    """Every row of meta_audio.json is packed by Qwen3-Omni, and every nasty sound ends as documented."""
    processor = str(SHARED / "processors" / "qwen3-omni")
    chosen = {"processor": processor, "pack_size": 8192, "video_fps": 1.0, "use_audio_in_video": heard}
    run_pack(tiny_config(SHARED / "data" / "meta_audio.json", tmp_path / "out", **chosen))
    manifest = Manifest.read(tmp_path / "out")
    assert manifest.counts.packed == manifest.counts.rows == 6
    problems = [p for n in range(len(manifest.shards)) for p in verify_shard(tmp_path / "out", manifest, n)]
    assert verify_ledger(tmp_path / "out", manifest) + problems == []
    run_pack(tiny_config(SHARED / "data" / "nasty" / "meta_audio.json", tmp_path / "nasty", **chosen))
    manifest = Manifest.read(tmp_path / "nasty")
    rows = [json.loads(line) for line in (SHARED / "data/nasty/nasty_audio.jsonl").read_text().splitlines()]
    expected = {line["file"]: line["expected"] for line in map(json.loads, (
        SHARED / "data/nasty/expected.jsonl").read_text(encoding="utf-8").split("\n")[:-1])}  # fmt: skip
    for line in read_ledger(tmp_path / "nasty", manifest).to_pylist():
        outcome = expected[rows[line["row"]]["id"]]
        assert (line["status"], line["reason"]) in {
            "decode": {("packed", "")},
            "reject_or_partial": {("packed", ""), ("skipped", "bad_media")},
        }[outcome], line


@given(
    num_samples=st.integers(1, 200_000),
    rate=st.sampled_from(RATES),
    new_rate=st.sampled_from([16_000, 24_000, 44_100]),
    frame=st.sampled_from([17, 576, 1024, 4096]),
)
def test_how_many_samples_resampling_gives(num_samples, rate, new_rate, frame):
    """Whatever the frames are, in which the resampler gets them."""

    def frames():
        for start in range(0, num_samples, max(frame, num_samples // 500)):
            size = min(max(frame, num_samples // 500), num_samples - start)
            silence = av.AudioFrame.from_ndarray(np.zeros((1, size), np.float32), format="fltp", layout="mono")
            silence.sample_rate = rate
            yield silence

    assert resampled_length(num_samples, rate, new_rate) == sum(map(len, _resampled(frames(), new_rate)))


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared (real data and processors) is not here")
def test_counting_is_as_decoding(shared):
    """Of every file with sound in it; those that fail do so by the same words."""

    def told(function, path, rate) -> int | str:
        try:
            found = function(sound(path), rate)
        except MediaError as error:
            return str(error)
        return found if isinstance(found, int) else len(found)

    endings = (".mp3", ".wav", ".flac", ".ogg", ".m4a", ".opus", ".mp4", ".avi", ".mkv", ".mov", ".webm")
    paths = [path for path in sorted((shared / "data").rglob("*")) if path.suffix.lower() in endings]
    counts = [told(count_samples, path, rate) for path in paths for rate in (16_000, 24_000)]
    assert counts == [told(decode_audio, path, rate) for path in paths for rate in (16_000, 24_000)]
    assert sum(isinstance(count, int) for count in counts) > 20


def test_counting_a_sound_in_memory(tmp_path):
    held = MediaRef(kind="audio", path="(here)", held=(np.zeros((2, 3000), np.float32), 22_050))
    assert count_samples(held, 16_000) == len(decode_audio(held, 16_000))
