"""Every tensor of transformers' processors, bit by bit: one line per processor.

Each is asked for the same conversations: pictures of many sizes, several of them, several turns, text alone, and videos
and sounds where the family takes them. Compared are the ids, and the media as a batch of one document has them: what
the model is given. Real processors are those of ../shared; `tests/processors` has small ones on the demo's vocabulary.
"""

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers import SHARED, asked, clip, picture, run_hf, tone

from neatpack.loaders.media import LAYOUT_KEY, concatenated_media
from neatpack.loaders.pixels import restored, stored_arrays
from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.families.registry import load_family
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.labels import TrainOn
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.media.audio import decode_audio
from neatpack.pipeline.records import MediaRef, Sample, Skip
from neatpack.pipeline.render.sample import render_whole

# Small, at a boundary, a line, larger than most bounds, and shapes between which choices are close.
SIZES = [(56, 56), (90, 61), (150, 140), (33, 200), (448, 900), (640, 480), (30, 400)]
# In tiles of 56: one, several, more than there may be, and shapes between which the choice is close.
TILES = [(56, 56), (40, 30), (112, 112), (57, 170), (400, 120), (300, 300), (1, 90), (168, 112)]
SOUND = {  # features and masks of sounds, by the array that they are made from
    "input_features": "input_features", "input_features_mask": "input_features",
    "feature_attention_mask": "input_features", "audio_input_features": "audio_input_features",
    "audio_attention_mask": "audio_input_features",
}  # fmt: skip
TEXT = {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids"}  # that is no medium


@dataclass(frozen=True, kw_only=True)
class Line:
    family: str
    real: str = ""  # a folder of ../shared/processors; else the one of tests/processors
    without: tuple[str, ...] = ()  # tensors of the processor that are all ones, and that we leave out
    frames: dict[str, Any] = field(default_factory=dict)  # of parts with a video: the rate that is asked for
    sound_rate: int = 16_000
    sizes: list[tuple[int, int]] = field(default_factory=list)  # of further pictures
    types: bool = True  # whether its mm_token_type_ids are of the placeholders alone
    make: str = "make"  # of the module in tests/processors
    system: bool = True  # whether its template takes a system prompt in parts
    stop: int = 0  # tokens that we write behind the last answer, and the template does not
    clips: tuple[tuple[int, int, int], ...] = ((40, 96, 64), (33, 60, 120))  # frames, height and width of videos
    rope: str = ""  # the model of transformers that counts positions on three axes, by its own get_rope_index


LINES = {
    "qwen3.5": Line(family="qwen3_vl", real="qwen3.5", rope="Qwen3_5Model"),
    "gemma4": Line(family="gemma4", real="gemma4"),
    "kimi-k2.5": Line(family="kimi_k25", real="kimi-k2.5"),
    "phi4-mm": Line(family="phi4_mm", real="phi4-mm"),
    "qwen2.5-omni": Line(family="qwen2_5_omni", real="qwen2.5-omni", frames={"fps": 2}),
    "qwen2_5_omni": Line(family="qwen2_5_omni", frames={"fps": 2}),
    # The processor of transformers takes several videos where they have as many frames: 5 each, at one in a second.
    "internvl3": Line(
        family="internvl", real="internvl3", types=False, sizes=[(8 * h, 8 * w) for h, w in TILES], frames={"fps": 1},
        clips=((40, 96, 64), (45, 60, 120)),
    ),
    "internvl": Line(family="internvl", types=False, sizes=TILES, clips=((9, 96, 64), (9, 60, 120))),
    "internvl-sampled": Line(family="internvl", make="make_sampled", types=False),
    "gemma3": Line(family="gemma3"),
    "idefics3": Line(family="idefics3", types=False, without=("pixel_attention_mask",)),
    "idefics3-150": Line(family="idefics3", make="make_uneven", types=False, without=("pixel_attention_mask",)),
    "idefics3-whole": Line(family="idefics3", make="make_whole", types=False, without=("pixel_attention_mask",)),
    "smolvlm": Line(family="idefics3", make="make_smolvlm", types=False, without=("pixel_attention_mask",)),
    "mistral3": Line(family="mistral3", real="mistral3", types=False, system=False),
    "mistral3-small": Line(family="mistral3", types=False),
    "pixtral": Line(family="mistral3", make="make_pixtral", types=False),
    "glm4.5v": Line(family="glm4v", real="glm4.5v", stop=1, rope="Glm4vMoeModel"),
    "glm4v": Line(family="glm4v", stop=1, rope="Glm4vModel"),
    "glm4.6v": Line(family="glm4v", make="make_46", stop=1, rope="Glm46VModel"),
}  # fmt: skip


def conversations(folder: Path, line: Line, takes: tuple[str, ...]) -> list[Any]:
    images, videos, sounds = [], [], []
    for number, size in enumerate(SIZES + line.sizes):
        path = str(picture(folder / f"{number}.png", *size, seed=number))
        images.append({"type": "image", "image": path, "path": path})
    for number, (frames, height, width) in enumerate(line.clips):
        path = clip(folder / f"{number}.mp4", frames=frames, rate=8, height=height, width=width).path
        videos.append({"type": "video", "video": path, "path": path, **line.frames})
    for number, seconds in enumerate((0.5, 1.237)):
        path = str(tone(folder / f"{number}.wav", seconds))
        samples = Path(path).with_suffix(".npy")
        np.save(samples, decode_audio(MediaRef(kind="audio", path=path), line.sound_rate))
        sounds.append({"type": "audio", "audio": path, "samples": str(samples)})
    text = {"type": "text", "text": " Look: 12"}
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    talks = [asked(image) for image in images]
    first = [system] if line.system else []
    talks += [asked(), [*first, *asked(answer="\n\nJa, 这个.\n")], asked(images[0], text, images[2], images[3])]
    talks += [asked(images[1]) + asked(text, images[2], answer="\nNo.")]
    if "video" in takes:
        talks += [asked(video) for video in videos] + [asked(videos[0], images[2], videos[1]), asked(text, videos[1])]
    if "audio" in takes:
        talks += [asked(sound) for sound in sounds] + [asked(sounds[0], text, sounds[1]), asked(images[0], sounds[1])]
    return talks


@pytest.fixture(scope="module")
def loaded(request, tmp_path_factory) -> dict[str, Family]:
    """Those that are here, and asked for: `-k glm4v` runs no other processor."""
    found = {}
    chosen = {item.callspec.params["name"] for item in request.session.items if item.module is request.module}
    for name, line in LINES.items():
        if name not in chosen:
            continue
        folder = SHARED / "processors" / line.real
        if not line.real:
            make = getattr(import_module(f"processors.{line.family}"), line.make)
            folder = make(tmp_path_factory.mktemp("made") / name)
        if folder.is_dir():
            found[name] = load_family(ProcessorKey(processor=str(folder)))
    return found


@pytest.fixture(scope="module")
def hf(loaded, tmp_path_factory) -> tuple[dict[str, list[Any]], dict[str, np.ndarray]]:
    """Conversations by line, and the tensors of all processors, in one process."""
    folder = tmp_path_factory.mktemp("parity")
    talks = {name: conversations(folder / name, LINES[name], family.takes) for name, family in loaded.items()}
    return talks, run_hf({family.source: talks[name] for name, family in loaded.items()}, folder)


def rope_positions(name: str, whole: Sample, family: Family) -> np.ndarray:
    """By transformers' own arithmetic, which needs no weights."""
    kind = getattr(transformers, name)
    model = kind.__new__(kind)
    torch.nn.Module.__init__(model)
    model.config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=family.facts["merge_size"]))
    tensors = {key: torch.from_numpy(array) for key, array in whole.media.items() if key.endswith("_grid_thw")}
    ids, types = (torch.from_numpy(array)[None].long() for array in (whole.input_ids, whole.mm_token_type_ids))
    positions, _ = model.get_rope_index(ids, types, **{key: grid for key, grid in tensors.items() if len(grid)})
    return positions[:, 0].numpy()


@pytest.mark.parametrize("name", LINES)
def test_every_tensor(name, request):
    line, families = LINES[name], request.getfixturevalue("loaded")
    if name not in families:
        pytest.skip(f"../shared/processors/{line.real} is not here")
    family, (talks, tensors) = families[name], request.getfixturevalue("hf")
    assert family.name == line.family, "chosen by the processor's class"
    stored, seen = stored_arrays(family.media, family.tables("torch")), set()
    for number, messages in enumerate(talks[name]):
        prefix = f"{Path(family.source).name}/{number}/"
        theirs = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        (measured,) = measure([from_conversation({"conversation": messages})], family)
        assert not isinstance(measured, Skip), measured
        whole = render_whole(measured, family, "torch")
        known = len(whole.input_ids) - line.stop
        assert whole.input_ids[:known].tolist() == theirs["input_ids"][0].tolist(), (number, messages)
        assert set(whole.input_ids[known:].tolist()) <= {family.chat.markers.end}
        assert measured.tokens == len(whole.input_ids) - 1, "the exact length"
        assert measured.media_bytes == sum(array.nbytes for array in whole.media.values())
        counted = family.media_tokens(whole.media, family.facts)
        assert counted in (None, np.count_nonzero(whole.mm_token_type_ids))
        types = theirs.get("mm_token_type_ids", theirs.get("token_type_ids"))
        if types is not None and line.types:
            assert whole.mm_token_type_ids[:known].tolist() == types[0].tolist()
        if line.rope:
            assert np.array_equal(whole.position_ids, rope_positions(line.rope, whole, family))
        media = {key: torch.from_numpy(array) for key, array in whole.media.items()}
        pixels = {key: restored(media[key], table, torch.float32) for key, table in stored.items()}
        batch = concatenated_media([media | pixels | {LAYOUT_KEY: family.media}])
        for key, value in theirs.items():
            if key in TEXT:
                continue
            if key in line.without:  # models take their absence for ones
                assert (value == 1).all()
                continue
            seen.add(key)
            ours, expected = batch[key], torch.from_numpy(value)
            if key in SOUND:  # padded further, and alone otherwise than beside a longer one: what is not padding counts
                assert len(ours) == len(expected)
                array = family.media[SOUND[key]]
                lengths = media[array.counts].tolist()
                axis = -1 if array.deliver.transposed else 0
                ours, expected = (
                    torch.cat([rows.narrow(axis, 0, number) for rows, number in zip(both, lengths, strict=True)], axis)
                    for both in (ours, expected)
                )
            assert torch.equal(ours.to(expected.dtype), expected), (number, key)
            if key in stored and not family.media[key].deliver.per_medium:
                rounded = restored(media[key], stored[key], torch.bfloat16)
                assert torch.equal(rounded.view(expected.shape), expected.to(torch.bfloat16)), (number, key)
        trained = whole.labels[whole.labels != -100]
        end = family.chat.tokenizer.decode([family.chat.markers.end])
        answers = [turn["content"][0]["text"] for turn in messages if turn["role"] == "assistant"]
        said = family.chat.tokenizer.decode(trained).replace("<think>\n\n</think>", "").replace("<think></think>", "")
        assert [word.strip() for word in said.split(end)] == [*(answer.strip() for answer in answers), ""]
    assert any("pixel_values" in key for key in seen)


@pytest.mark.parametrize("name", ["qwen3.5", "kimi-k2.5"])
def test_an_empty_thought_of_the_template_is_trained_on_or_not(name, loaded):
    """Their templates write one into answers; --reasoning mask leaves it to the prompt."""
    if name not in loaded:
        pytest.skip(f"../shared/processors/{LINES[name].real} is not here")
    family, example = loaded[name], from_conversation({"conversation": asked()})
    said = {}
    for reasoning in ("train", "mask"):
        (measured,) = measure([example], family, train_on=TrainOn(reasoning=reasoning))
        labels = render_whole(measured, family, "torch").labels
        said[reasoning] = family.chat.tokenizer.decode(labels[labels != -100])
    assert "<think>" in said["train"] and said["mask"] == "It is.<|im_end|>"
