"""Every tensor of transformers' processors, bit by bit: one line per processor.

Each is asked for the same conversations: pictures of many sizes, several of them, several turns, text alone, and videos
and sounds where the family takes them. Compared are the ids, and the media as a batch of one document has them: what
the model is given. Real processors are those of ../shared; `tests/processors` has small ones on the demo's vocabulary.
What they are compared with is `theirs` of a line: see tests/references.py.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import DEMO_PROCESSOR, SHARED, asked, clip, film, picture, tone
from PIL import Image
from references import Talk, Tensors, by_double, by_pil, by_torchvision, omni_axes, pictures_by_pil, three_axes

from neatpack.format.layout import TOKEN_TYPES
from neatpack.loaders.media import LAYOUT_KEY, concatenated_media
from neatpack.loaders.pixels import restored, stored_arrays
from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.labels import TrainOn, shifted
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.media.audio import decode_audio
from neatpack.pipeline.records import MediaRef, Sample, Skip
from neatpack.pipeline.render.sample import render_whole

pytestmark = pytest.mark.slow

Sizes = list[tuple[int, int]]  # heights and widths
# Small, at a boundary, a line, larger than most bounds, and shapes between which choices are close.
SIZES: Sizes = [(56, 56), (90, 61), (150, 140), (33, 200), (448, 900), (640, 480), (30, 400)]
# In tiles of 56: one, several, more than there may be, and shapes between which the choice is close.
TILES = [*SIZES, (40, 30), (112, 112), (57, 170), (400, 120), (300, 300), (1, 90), (168, 112)]
LARGE: Sizes = [(301, 517), (64, 48), (333, 90), (28, 5000), (1100, 800)]
GEMMA: Sizes = [(301, 517), (3, 4), (1500, 90), (48, 5000), (336, 480), (1, 1)]
ODD: Sizes = [(301, 517), (3, 5), (700, 33), (200, 200), (112, 224)]
KIMI_VL: Sizes = [(28, 28), (29, 57), (200, 130), (13, 15), (400, 700), (141, 141), (10, 600), (139, 140)]
KIMI: Sizes = [(28, 28), (29, 29), (200, 130), (1, 1), (13, 300), (400, 700), (280, 281), (500, 20), (2000, 3)]
# Of every ratio, smaller and larger than the tiles; the fourth has more tokens than anyres_max_4 leaves it.
LLAVA: Sizes = [(42, 42), (43, 41), (60, 130), (165, 168), (400, 300), (1, 90), (300, 2), (20, 21)]
# One crop and many, more than fit, exact ones, very long ones, and those with the aspect ratio of several grids.
PHI: Sizes = [
    (40, 50), (64, 64), (301, 517), (128, 192), (33, 640), (700, 71), (500, 500), (10, 64), (131, 129), (1, 1),
]  # fmt: skip
SOUND = {  # features and masks of sounds, by the array that they are made from
    "input_features": "input_features", "input_features_mask": "input_features",
    "feature_attention_mask": "input_features", "audio_input_features": "audio_input_features",
    "audio_attention_mask": "audio_input_features",
}  # fmt: skip
TEXT = {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "labels"}  # that is no medium
# Arrays that no processor gives, or not all: how many rows are whose, seconds that only Qwen2.5-VL needs, other names
# of a grid, and what is put before others.
OURS = {
    "num_tiles", "num_frames", "num_patches", "visual_kinds", "num_frames_per_video", "num_chunks_per_video",
    "second_per_grid_ts", "grid_thws", "image_grid_hws", "audio_feature_lengths", "audio_frames", "image_crops",
    "image_global_view", "image_global_mask",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Clip:
    frames: int
    height: int
    width: int
    rate: int = 8
    asked: float | None = None  # frames per second that the row asks for


CLIPS = (Clip(frames=40, height=96, width=64), Clip(frames=33, height=60, width=120))


def at(fps: float, *clips: Clip) -> tuple[Clip, ...]:
    return tuple(Clip(frames=c.frames, height=c.height, width=c.width, rate=c.rate, asked=fps) for c in clips or CLIPS)


@dataclass(frozen=True, kw_only=True)
class Line:
    family: str
    theirs: Callable[[Family, list[Talk], Path], Iterable[Tensors]] = by_torchvision
    resize: str = "torch"  # what pictures are rendered with
    real: str = ""  # a folder of ../shared/processors; else the one of tests/processors
    named: bool = False  # whether its files do not tell the family
    kinds: tuple[str, ...] = ("image", "video", "audio")  # of those that the family takes
    make: str = "make"  # of the module in tests/processors
    made: tuple[tuple[str, Any], ...] = ()  # what it is given
    sizes: Sizes | tuple[()] = ()  # of pictures; none: SIZES
    photos: bool = False  # pictures as JPEGs, turned ones, of every mode, and photos and films of ../shared
    clips: tuple[Clip, ...] = CLIPS
    seconds: tuple[float, ...] = (0.5, 1.237)  # of sounds
    sound_rate: int = 16_000
    films: tuple[float, ...] = ()  # with their sound tracks heard, at these rates
    rope: Callable[[Sample, Family, Tensors], np.ndarray] | None = None  # positions on three axes
    without: tuple[str, ...] = ()  # tensors of the processor that are all ones, and that we leave out
    types: bool = True  # whether its mm_token_type_ids are of the placeholders alone
    system: bool = True  # whether its template takes a system prompt in parts
    stop: int = 0  # tokens that we write behind the last answer, and the template does not
    loose_ends: bool = False  # whether it takes the features of several sounds with the padding: their ends differ
    empty_thought: bool = False  # whether its template writes one into answers


QWEN: Any = {"photos": True, "sizes": LARGE, "rope": partial(three_axes, "")}
OMNI: Any = {"family": "qwen3_omni", "clips": at(1.0) + at(3.0, CLIPS[1]), "seconds": (0.31, 4.2), "films": (1.0, 2.0),
             "rope": omni_axes, "loose_ends": True}  # fmt: skip
PIL: Any = {"theirs": by_pil, "resize": "pil", "kinds": ("image",), "photos": True, "sizes": ODD,
            "rope": partial(three_axes, "")}  # fmt: skip
IDEFICS: Any = {"family": "idefics3", "types": False, "without": ("pixel_attention_mask",)}
PIL_PICTURES: Any = {"resize": "pil", "kinds": ("image",)}
SMOL: Any = {**IDEFICS, "family": "smolvlm"}
DOUBLED: Any = {"family": "kimi_vl", "theirs": by_double, "sizes": KIMI_VL}
LINES = {
    "qwen2-vl": Line(family="qwen2_vl", real="qwen2-vl", **QWEN),
    "qwen2-vl-pil": Line(family="qwen2_vl", real="qwen2-vl", **PIL),
    "qwen2.5-vl": Line(family="qwen2_vl", real="qwen2.5-vl", **QWEN),
    "qwen2.5-vl-pil": Line(family="qwen2_vl", real="qwen2.5-vl", **PIL),
    "qwen2_vl": Line(family="qwen2_vl", clips=at(2), rope=partial(three_axes, "")),
    "demo-pil": Line(family="qwen2_vl", make="demo", **PIL),
    "qwen3-vl": Line(family="qwen3_vl", real="qwen3-vl", **QWEN),
    "qwen3-vl-pil": Line(family="qwen3_vl", real="qwen3-vl", **PIL),
    "qwen3.5": Line(family="qwen3_vl", real="qwen3.5", rope=partial(three_axes, "Qwen3_5Model"), empty_thought=True),
    "qwen3-omni": Line(real="qwen3-omni", **OMNI),
    "qwen3_omni": Line(**OMNI),
    "qwen2.5-omni": Line(family="qwen2_5_omni", real="qwen2.5-omni", clips=at(2)),
    "qwen2_5_omni": Line(family="qwen2_5_omni", clips=at(2)),
    "gemma4": Line(family="gemma4", real="gemma4"),
    "gemma4-small": Line(
        family="gemma4", sizes=GEMMA, seconds=(0.5, 1.237, 31.0, 0.02),
        clips=(Clip(frames=40, height=64, width=96, rate=5), Clip(frames=70, height=96, width=64, rate=1)),
    ),
    "gemma4-pil": Line(
        family="gemma4", sizes=GEMMA, theirs=partial(pictures_by_pil, "Gemma4ImageProcessorPil"), **PIL_PICTURES
    ),
    "gemma3": Line(family="gemma3"),
    "kimi-vl": Line(real="kimi-vl", named=True, **DOUBLED),
    "kimi_vl": Line(**DOUBLED),
    "kimi-k2.5": Line(family="kimi_k25", real="kimi-k2.5", empty_thought=True),
    "kimi_k25": Line(  # videos of 1 frame at 2 a second, of 19 in 5 chunks, and of 9
        family="kimi_k25", sizes=KIMI,
        clips=(Clip(frames=3, height=64, width=96, rate=4), Clip(frames=48, height=90, width=66, rate=5),
               Clip(frames=48, height=90, width=66, rate=5, asked=1.0)),
    ),
    "phi4-mm": Line(family="phi4_mm", real="phi4-mm"),
    "phi4_mm": Line(family="phi4_mm", sizes=PHI, seconds=(0.5, 1.237, 6.0, 0.025)),
    # The processor of LLaVA-OneVision takes several videos where they have as many frames, and InternVL's too.
    "llava-onevision": Line(
        family="llava_onevision", real="llava-onevision", sizes=[(4 * high, 4 * wide) for high, wide in LLAVA],
        clips=(Clip(frames=4, height=64, width=96), Clip(frames=4, height=90, width=96)),
    ),
    "llava_onevision": Line(
        family="llava_onevision", sizes=LLAVA, made=(("video", {"num_frames": 4, "do_sample_frames": True}),),
        clips=(Clip(frames=4, height=64, width=96), Clip(frames=11, height=90, width=96)),
    ),
    "llava_onevision-pil": Line(
        family="llava_onevision", sizes=LLAVA, theirs=partial(pictures_by_pil, "LlavaOnevisionImageProcessorPil"),
        **PIL_PICTURES,
    ),
    "internvl3": Line(
        family="internvl", real="internvl3", types=False, sizes=SIZES + [(8 * h, 8 * w) for h, w in TILES[len(SIZES):]],
        clips=at(1, CLIPS[0], Clip(frames=45, height=60, width=120)),
    ),
    "internvl": Line(
        family="internvl", types=False, sizes=TILES,
        clips=(Clip(frames=9, height=96, width=64), Clip(frames=9, height=60, width=120)),
    ),
    "internvl-sampled": Line(family="internvl", make="make_sampled", types=False),
    "idefics3": Line(**IDEFICS),
    "idefics3-151": Line(make="make_uneven", **IDEFICS),
    "idefics3-whole": Line(make="make_whole", **IDEFICS),
    # Its processor tells of several videos as many frames as the longest has: those of one conversation have as many.
    # 5 frames of 5 s, the first and last of 11 s skipped, beyond a minute, one frame, at a rate of its row.
    "smolvlm": Line(
        clips=(CLIPS[0], Clip(frames=43, height=60, width=120), Clip(frames=90, height=33, width=200),
               Clip(frames=75, height=64, width=64, rate=1), Clip(frames=1, height=90, width=61),
               Clip(frames=24, height=64, width=96, asked=2.0)), **SMOL,
    ),
    "smolvlm-published": Line(make="make_published", clips=(CLIPS[0], Clip(frames=70, height=61, width=61)), **SMOL),
    "smolvlm-all": Line(
        make="make_all_frames", clips=(Clip(frames=21, height=96, width=64), Clip(frames=21, height=60, width=60)),
        **SMOL,
    ),
    "mistral3": Line(family="mistral3", real="mistral3", types=False, system=False),
    "mistral3-small": Line(family="mistral3", types=False),
    "pixtral": Line(family="mistral3", make="make_pixtral", types=False),
    "glm4.5v": Line(family="glm4v", real="glm4.5v", stop=1, rope=partial(three_axes, "Glm4vMoeModel")),
    "glm4v": Line(family="glm4v", stop=1, rope=partial(three_axes, "Glm4vModel")),
    "glm4.6v": Line(family="glm4v", make="make_46", stop=1, rope=partial(three_axes, "Glm46VModel")),
}  # fmt: skip


def part(kind: str, path: Any, **more: Any) -> dict[str, Any]:
    return {"type": kind, kind: str(path), "path": str(path), **more}


def pictures(folder: Path, line: Line) -> list[Any]:
    ending = "jpg" if line.photos else "png"
    paths = [picture(folder / f"{i}.{ending}", *size, seed=i) for i, size in enumerate(line.sizes or SIZES)]
    if line.photos:
        for turned in (6, 8):
            exif = Image.Exif()
            exif[0x0112] = turned
            paths.append(picture(folder / f"turned{turned}.jpg", 150, 260, exif=exif))
        paths += [picture(folder / f"{mode}.png", 200, 130, mode=mode) for mode in ("RGBA", "P", "L", "LA")]
        paths += sorted((SHARED / "data/media/coco_train2017").glob("*.jpg"))[:4]
    return [part("image", path) for path in paths]


def videos(folder: Path, line: Line) -> list[Any]:
    if line.photos:
        names = ("mllm_demo_data/4.mp4", "mantis/video/000001_000050/1066682446.mp4", "mllm_demo_data/3.mp4")
        paths = [SHARED / "data/media" / name for name in names]
        rates = [(0, 2), (1, 1), (0, 1), (0, 2.5), (2, 3)]
        whole = clip(folder / "all.mp4", frames=7, height=90, width=160).path
        return [*(part("video", paths[number], fps=fps) for number, fps in rates), part("video", whole)]
    made = []
    for number, c in enumerate(line.clips):
        path = clip(folder / f"{number}.mp4", frames=c.frames, rate=c.rate, height=c.height, width=c.width).path
        made.append(part("video", path, **({"fps": c.asked} if c.asked else {})))
    return made


def heard(path: Path, line: Line) -> str:
    samples = path.with_suffix(".npy")
    np.save(samples, decode_audio(MediaRef(kind="audio", path=str(path)), line.sound_rate))
    return str(samples)


def conversations(folder: Path, line: Line, takes: tuple[str, ...]) -> list[Any]:
    folder.mkdir()
    images, text = pictures(folder, line), {"type": "text", "text": " Look: 图片 𝄞 12"}
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    talks = [asked(image) for image in images]
    first = [system] if line.system else []
    talks += [asked(), [*first, *asked(answer="\n\nJa, 这个.\n")], asked(images[0], text, images[2], images[3])]
    talks += [asked(images[1], answer="") + asked(text, images[2], answer="\nNo. ")]
    if "video" in takes:
        films, space = videos(folder, line), {"type": "text", "text": " "}
        talks += [asked(video) for video in films]
        talks += [asked(films[0], images[2], space, films[1]), asked(text, films[1])]
    if "audio" in takes:
        paths = [tone(folder / f"{number}.wav", seconds) for number, seconds in enumerate(line.seconds)]
        paths.append(tone(folder / "stereo.wav", 0.8, rate=44_100, channels=2))
        sounds = [{"type": "audio", "audio": str(path), "samples": heard(path, line)} for path in paths]
        talks += [asked(sound) for sound in sounds] + [asked(sounds[0], text, sounds[1]), asked(images[0], sounds[1])]
        talks += [asked(images[0], sounds[1], images[2]) + asked(images[3], sounds[0], sounds[2], answer="No.")]
        if "video" in takes:
            talks += [asked(images[0], text, images[2], sounds[1], films[0]) + asked(images[1], answer="\n\nJa.\n")]
        for fps in line.films:
            path = film(folder / f"film{fps}.mp4")
            with_sound = part("video", path, fps=fps, sound=heard(path, line))
            talks += [asked(with_sound), asked(images[0], with_sound, sounds[0])]
    return talks


def processor_of(name: str, folder: Path) -> str:
    line = LINES[name]
    if line.make == "demo":
        return str(DEMO_PROCESSOR)
    if not line.real:
        return str(getattr(import_module(f"processors.{line.family}"), line.make)(folder / name, **dict(line.made)))
    if not (SHARED / "processors" / line.real).is_dir():
        pytest.skip(f"../shared/processors/{line.real} is not here")
    return str(SHARED / "processors" / line.real)


# Their frames and sizes are those of qwen-vl-utils otherwise: tests/families/test_qwen_vl_utils.py.
LEFT_TO_UTILS = ("qwen2_vl", "qwen2_5_omni", "qwen3_omni")


@pytest.mark.parametrize("name", LINES)
def test_every_tensor(name, tmp_path):
    line, processor = LINES[name], processor_of(name, tmp_path)
    rate = math.inf if line.family in LEFT_TO_UTILS else 0.0
    family = family_for(ProcessorKey(processor=processor, family=line.family if line.named else "", video_fps=rate))
    hearing = family
    if line.films:
        hearing = family_for(ProcessorKey(processor=processor, use_audio_in_video=True, video_fps=rate))
    assert family.name == line.family, "chosen by the processor's class"
    kinds = tuple(kind for kind in family.takes if kind in line.kinds)
    talks, seen = conversations(tmp_path / "media", line, kinds), set()
    for talk, theirs in zip(talks, line.theirs(family, talks, tmp_path), strict=True):
        is_heard = any("sound" in piece for turn in talk for piece in turn["content"])
        seen |= compare(talk, hearing if is_heard else family, theirs, line)
    filled = {key for key, array in family.media.items() if set(array.kinds) & set(kinds)}
    assert seen == filled, "no array was empty all along"
    if line.empty_thought:
        compare_thoughts(family)


def compare(messages: Talk, family: Family, theirs: Tensors, line: Line) -> set[str]:
    """The arrays that are filled."""
    (measured,) = measure([from_conversation({"conversation": messages})], family)
    assert not isinstance(measured, Skip), measured
    whole = render_whole(measured, family, line.resize)
    known = len(whole.input_ids) - line.stop
    if "input_ids" in theirs:
        assert whole.input_ids[:known].tolist() == theirs["input_ids"][0].tolist(), messages
    assert set(whole.input_ids[known:].tolist()) <= {family.chat.markers.end}
    assert measured.tokens == len(whole.input_ids) - 1, "the exact length"
    # Of an array with a row for several media (LLaVA-OneVision's batch_num_images), one for each is planned.
    sizes = {key: array.nbytes for key, array in whole.media.items()}
    sizes |= {key: a.row_bytes * int(whole.media[key].sum()) for key, a in family.media.items() if a.groups}
    assert measured.media_bytes == sum(sizes.values())
    assert family.media_tokens(whole.media, family.facts) in (None, np.count_nonzero(whole.mm_token_type_ids))
    types = theirs.get("mm_token_type_ids", theirs.get("token_type_ids"))
    if types is not None and line.types:
        assert whole.mm_token_type_ids[:known].tolist() == types[0].tolist()
    if not family.chat.format.video_span:
        kinds = {token: TOKEN_TYPES[kind] for kind, token in family.chat.placeholder_ids.items()}
        assert whole.mm_token_type_ids.tolist() == [kinds.get(token, 0) for token in whole.input_ids.tolist()]
    if line.rope:
        assert np.array_equal(whole.position_ids, line.rope(whole, family, theirs))
    elif family.position_axes == 1:
        assert whole.position_ids.tolist() == list(range(len(whole.input_ids)))
    compare_media(whole, family, theirs, line)
    trained = whole.labels[whole.labels != -100]
    if "labels" in theirs:
        assert whole.labels.tolist() == theirs["labels"][0].tolist()
    document = shifted(whole.per_token)
    assert len(document["input_ids"]) == measured.tokens
    for key, array in whole.per_token.items():
        part = array[1:] if key == "labels" else array[..., :-1]
        assert np.array_equal(document[key], part), key
    end = family.chat.tokenizer.decode([family.chat.markers.end])
    answers = [turn["content"][0]["text"] for turn in messages if turn["role"] == "assistant"]
    said = family.chat.tokenizer.decode(trained).replace("<think>\n\n</think>", "").replace("<think></think>", "")
    assert [word.strip() for word in said.split(end)] == [*(answer.strip() for answer in answers), ""]
    return {key for key, array in whole.media.items() if len(array)}


def compare_media(whole: Sample, family: Family, theirs: Tensors, line: Line) -> None:
    stored = stored_arrays(family.media, family.tables(line.resize))
    media = {key: torch.from_numpy(array) for key, array in whole.media.items()}
    batches = {}
    for dtype in (torch.float32, torch.bfloat16):
        pixels = {key: restored(media[key], table, dtype) for key, table in stored.items()}
        batches[dtype] = concatenated_media([media | pixels | {LAYOUT_KEY: family.media}])
    batch = batches[torch.float32]
    assert {key for key, array in whole.media.items() if len(array)} - theirs.keys() <= OURS
    assert not {array.deliver.first for array in family.media.values()} & batch.keys()
    for key, expected in theirs.items():
        if key in TEXT:
            continue
        if key in line.without:  # models take their absence for ones
            assert (expected == 1).all()
            continue
        if key in SOUND:
            array = family.media[SOUND[key]]
            compare_sounds(batch[key], expected, media[array.counts].tolist(), array.deliver.transposed, line)
            continue
        for dtype, found in (
            batches.items() if key in stored and not family.media[key].deliver.first else [(None, batch)]
        ):
            ours, wanted = found[key], expected if dtype is None else expected.to(dtype)
            if ours.ndim < wanted.ndim:  # of pictures that it pads to the most tiles of any
                counts = media[family.media[key].counts].tolist()
                wanted = torch.cat([tiles[:count] for tiles, count in zip(wanted, counts, strict=True)])
            assert dtype in (None, ours.dtype)
            assert torch.equal(ours if dtype else ours.to(wanted.dtype), wanted), key


def compare_sounds(
    ours: torch.Tensor, expected: torch.Tensor, lengths: list[int], transposed: bool, line: Line
) -> None:
    """Padded further, and alone otherwise than beside a longer one: what is not padding counts."""
    assert len(ours) == len(expected) == len(lengths)
    if expected.ndim == 2:  # a mask
        assert expected.sum(-1).tolist() == ours.sum(-1).tolist() == lengths
    for own, other, length in zip(ours, expected, lengths, strict=True):
        axis = -1 if transposed and own.ndim > 1 else 0
        loose = 2 if line.loose_ends and len(lengths) > 1 and own.ndim > 1 else 0
        own, other = (rows.narrow(axis, 0, length - loose) for rows in (own, other))
        if loose:
            assert torch.allclose(own, other.to(own.dtype), atol=1e-5)
        else:
            assert torch.equal(own.to(other.dtype), other)


def compare_thoughts(family: Family) -> None:
    """An empty thought of the template is trained on; --reasoning mask leaves it to the prompt."""
    said = {}
    for reasoning in ("train", "mask"):
        (measured,) = measure(
            [from_conversation({"conversation": asked()})], family, train_on=TrainOn(reasoning=reasoning)
        )
        labels = render_whole(measured, family, "torch").labels
        said[reasoning] = family.chat.tokenizer.decode(labels[labels != -100])
    assert "<think>" in said["train"] and said["mask"] == "It is.<|im_end|>"


def test_the_comparison_can_fail(tmp_path):
    """A picture rendered by the other backend differs: equality above is not a matter of loose comparison."""
    family, path = family_for(str(DEMO_PROCESSOR)), picture(tmp_path / "a.jpg", 301, 517)
    (measured,) = measure([from_conversation({"conversation": asked(part("image", path))})], family)
    pil, other = (render_whole(measured, family, resize).media["pixel_values"] for resize in ("pil", "torch"))
    assert pil.shape == other.shape
    assert not np.array_equal(pil, other)
