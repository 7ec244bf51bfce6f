"""What a row asks of one picture or video: the sizes and frames of qwen-vl-utils, or a named refusal."""

import json
import math
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEMO_PROCESSOR, assert_verified, clip, packs_of, picture, run_hf, tiny_config
from hypothesis import given, strategies as st
from support.errors import assert_skipped, raises_media_error

from neatpack.loaders.online.tokenized import tokenized_example
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import family_for, load_family
from neatpack.pipeline.ingest.conversation import from_conversation, to_conversation
from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.ingest.media import media_reference
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.measure.length import measure, shrunk
from neatpack.pipeline.measure.media import measure_medium
from neatpack.pipeline.records import Example, Measured, MediaRef, Wishes
from neatpack.pipeline.run import run_pack


def talk(*parts: dict[str, Any]) -> dict[str, Any]:
    turns = [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]},
             {"role": "assistant", "content": "That."}]  # fmt: skip
    return {"messages": turns}


# ---------------------------------------------------------------- pictures


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Rows with one picture of 200 x 300 each, and a wish."""
    folder = tmp_path_factory.mktemp("sized")
    picture(folder / "a.png", 200, 300)
    wishes: list[dict[str, Any]] = [
        {},
        {"min_pixels": 200_704},
        {"max_pixels": 12_544},
        {"min_pixels": 3136, "max_pixels": 6272},
        {"resized_height": 100, "resized_width": 60},
        {"resized_height": 140, "resized_width": 140, "max_pixels": 784},  # a size goes before bounds
    ]
    return folder, wishes


def test_packed_pictures_have_the_size_that_their_rows_ask_for(sized: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, wishes = sized
    rows = [talk({"type": "image", "image": "a.png", **wish}) for wish in wishes]
    # In a column, an object has them itself.
    rows.append({"messages": [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "That."}],
                 "images": [{"path": "a.png", "max_pixels": 12_544}]})  # fmt: skip
    clip(folder / "a.mp4")
    rows += [talk({"type": "video", "video": "a.mp4", **wish})
             for wish in ({"nframes": 5}, {"max_frames": 7, "resized_height": 120, "resized_width": 60})]  # fmt: skip
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "meta.json").write_text(json.dumps({"a": {"file_name": "rows.jsonl", "media_dir": "."}}))
    out = folder / "out"
    run_pack(tiny_config(folder / "meta.json", out, pack_size=2048))
    assert_verified(out)
    grids: dict[int, list[int]] = {}
    films: dict[int, list[int]] = {}
    for pack in packs_of(out):
        for kind, found in (("image", grids), ("video", films)):
            rows_of = [document.row for document in pack.documents if getattr(document, f"num_{kind}s")]
            found |= dict(zip(rows_of, pack.arrays[f"{kind}_grid_thw"].tolist(), strict=True))
    patch = family_for(str(DEMO_PROCESSOR)).image.patch_size
    sizes = {row: (rows * patch, columns * patch) for row, (_, rows, columns) in grids.items()}
    assert sizes == {
        0: (168, 252),  # the processor's max_pixels are 50176
        1: (392, 560),  # 200704 of 2:3, rounded up to whole patches
        2: (84, 112),
        3: (56, 84),
        4: (112, 56),  # 100 and 60, to the next multiple of 28
        5: (140, 140),
        6: (84, 112),
    }
    assert films == {7: [2, 4, 6], 8: [2, 8, 4]}, "4 frames as the processor has them, and 4 of 112 x 56"


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
def test_pictures_equal_those_of_transformers_called_with_that_size(
    name: str, shared: Path, sized: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """`size` of the HF call, where a row has bounds; a picture that has the size already, where it has a size."""
    folder, wishes = sized
    processor = shared / "processors" / name
    family = family_for(str(processor))
    path = str(folder / "a.png")
    bounded = [wish for wish in wishes if "resized_height" not in wish]
    parts = [[{"type": "image", "path": path, **wish}, {"type": "text", "text": "What?"}] for wish in bounded]
    tensors = run_hf({str(processor): [[{"role": "user", "content": content}] for content in parts]}, tmp_path)
    sizes = set()
    for number, content in enumerate(parts):
        expected = {key: tensors[f"{name}/{number}/{key}"] for key in ("input_ids", "image_grid_thw", "pixel_values")}
        sample = tokenized_example({"conversation": [{"role": "user", "content": content}]}, family)
        assert sample["input_ids"].tolist() == expected["input_ids"][0].tolist(), content
        assert sample["image_grid_thw"].tolist() == expected["image_grid_thw"].tolist(), content
        assert torch.equal(sample["pixel_values"], torch.from_numpy(expected["pixel_values"])), content
        sizes.add(sample["image_grid_thw"].prod().item())
    assert len(sizes) == len(bounded), "each wish is another size"


@pytest.mark.parametrize(
    ("wishes", "size"),
    [
        ({"min_pixels": 200_704}, (392, 560)),
        ({"max_pixels": 12_544}, (84, 112)),
        ({"resized_height": 1, "resized_width": 1}, (56, 56)),  # 4 tokens at least
        ({"resized_height": 9000, "resized_width": 9000}, (3584, 3584)),  # 16384 at most
        ({"resized_height": 300, "resized_width": 200, "min_pixels": 10**6}, (308, 196)),
    ],
)
def test_a_picture_of_200_x_300(demo_family: Any, wishes: dict[str, int], size: tuple[int, int]) -> None:
    """The numbers of qwen-vl-utils 0.0.14."""
    assert demo_family.image.wished(wishes).shape(200, 300)[0] == size


def test_a_shrunk_picture_keeps_the_shape_that_was_asked_for(demo_family: Any, tmp_path: Path) -> None:
    path = str(picture(tmp_path / "a.png", 200, 300))

    def shapes(**wishes: int) -> list[tuple[int, int]]:
        example = from_conversation({"conversation": talk({"type": "image", "image": path, **wishes})["messages"]})
        assert isinstance(example, Example)
        (whole,) = measure([example], demo_family)
        assert isinstance(whole, Measured)
        levels = [shrunk(whole, level, demo_family) for level in (1, 2, 20)]
        return [whole.media[0].size, *(level.media[0].size if level else (0, 0) for level in levels)]

    assert shapes() == [(168, 252), (112, 168), (84, 112), (28, 56)]
    assert shapes(resized_height=560, resized_width=112) == [(560, 112), (392, 56), (280, 56), (112, 28)]
    assert shapes(max_pixels=784, min_pixels=1) == [(28, 28), (0, 0), (0, 0), (0, 0)], "as small as it is, it stays"


# ---------------------------------------------------------------- videos


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> str:
    """10 frames in 2 seconds, 64 x 96."""
    return clip(tmp_path_factory.mktemp("film") / "a.mp4").path


def seen(family: Any, film: str, **asked: Any) -> tuple[list[int], tuple[int, int]]:
    """Which frames are taken, and the size of each."""
    ref = media_reference({"path": film, **asked}, "video", "videos")
    assert isinstance(ref, MediaRef), ref
    medium = measure_medium(ref, family)
    return list(medium.frames), medium.size


@pytest.mark.parametrize(
    ("asked", "frames"),
    [
        ({}, 4),  # 2 a second, where neither the processor nor the user says
        ({"nframes": 5}, 4),  # round(5 / 2) * 2, as Python rounds
        ({"nframes": 3}, 4),
        ({"nframes": 1}, 2),
        ({"nframes": 64}, 10),  # there are no more
        ({"max_frames": 3}, 2),
        ({"max_frames": 64}, 4),
        ({"fps": 1}, 4),  # 2, but the processor's min_frames
        ({"fps": 1, "min_frames": 5}, 6),
        ({"fps": 5, "max_frames": 7}, 6),
        ({"fps": 1, "min_frames": 1}, 2),
    ],
)
def test_frames(demo_family: Any, film: str, asked: dict[str, Any], frames: int) -> None:
    assert len(seen(demo_family, film, **asked)[0]) == frames


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({"min_pixels": 50_000}, (196, 280)),  # the processor's max_pixels yield
        ({"max_pixels": 784}, (28, 28)),  # and so do its min_pixels
        ({"min_pixels": 784, "max_pixels": 3136}, (28, 56)),
        ({"min_pixels": 784, "total_pixels": 15_680, "nframes": 10}, (28, 56)),  # 15680 / 10 * 2 a frame
        ({"resized_height": 120, "resized_width": 60}, (112, 56)),
    ],
)
def test_pixels_of_a_frame(demo_family: Any, film: str, asked: dict[str, Any], size: tuple[int, int]) -> None:
    assert seen(demo_family, film, **asked)[1] == size


def test_pixels_of_qwen3_are_of_a_frame_too(film: str, tmp_path: Path) -> None:
    """Though its processor's own bounds are of the clip."""
    family = family_for(str(import_module("processors.qwen3_vl").make(tmp_path / "processor")))
    assert family.video.bounds_cover_clip
    assert seen(family, film, min_pixels=50_000)[1] == (196, 280)
    assert seen(family, film, max_pixels=3136)[1] == (28, 56)
    assert len(seen(family, film, nframes=7)[0]) == 8


def test_most_frames_hold_without_a_rate(film: str) -> None:
    """As configured, and as the flag says; the class's own 768, too. transformers would take all frames."""
    bounded = load_family(ProcessorKey(processor=str(DEMO_PROCESSOR), video_fps=math.inf, video_max_frames=5))
    assert seen(bounded, film)[0] == [0, 2, 5, 7]
    plain = load_family(ProcessorKey(processor=str(DEMO_PROCESSOR), video_fps=math.inf))
    assert len(plain.video.choose(769, 25.0, None)) == 768
    assert plain.video.choose(767, 25.0, None).tolist() == list(range(767))


def test_most_frames_of_a_processor(film: str, tmp_path: Path) -> None:
    """`max_frames: 4` in the processor's config, which has no fps."""
    folder = tmp_path / "processor"
    shutil.copytree(DEMO_PROCESSOR, folder)
    config = json.loads((folder / "preprocessor_config.json").read_text()) | {"max_frames": 4}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(config))
    family = family_for(ProcessorKey(processor=str(folder), video_fps=math.inf))
    assert seen(family, film)[0] == [0, 2, 5, 7]


# ---------------------------------------------------------------- what is refused


BAD = {
    "one side": ({"resized_height": 56}, ('resized_height', 'resized_width')),
    "a fraction": ({"max_pixels": 0.5}, ('max_pixels', '1', '2147483647', '0.5')),
    "zero": ({"min_pixels": 0}, ('min_pixels', '1', '2147483647', '0')),
    "text": ({"max_pixels": "many"}, ('max_pixels', '1', '2147483647', "'many'")),
    "true": ({"max_pixels": True}, ('max_pixels',)),
    "not a number": ({"max_pixels": float("nan")}, ('max_pixels',)),
    "crossed": ({"min_pixels": 9, "max_pixels": 8}, ('min_pixels', '9', 'max_pixels', '8')),
}  # fmt: skip
BAD_OF_VIDEOS = {
    "both": ({"nframes": 4, "fps": 2}, ()),
    "bounded": ({"nframes": 4, "max_frames": 2}, ('max_frames',)),
    "listed": ({"max_frames": 4, "frame_indices": [0, 1]}, ('frame_indices', 'max_frames')),
    "crossed": ({"min_frames": 8, "max_frames": 4}, ('min_frames', '8', 'max_frames', '4')),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "named"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("kind", ["image", "video"])
def test_wishes_that_cannot_be(kind: Any, asked: dict[str, Any], named: tuple[str, ...]) -> None:
    found = from_conversation({"conversation": talk({"type": kind, kind: "a", **asked})["messages"]})
    assert_skipped(found, "bad_row", *named)


@pytest.mark.parametrize(("asked", "named"), BAD_OF_VIDEOS.values(), ids=BAD_OF_VIDEOS)
def test_frames_that_cannot_be(asked: dict[str, Any], named: tuple[str, ...]) -> None:
    found = from_conversation({"conversation": talk({"type": "video", "video": "a", **asked})["messages"]})
    assert_skipped(found, "bad_row", *named)


def test_what_is_of_videos_is_not_of_pictures() -> None:
    row = talk({"type": "image", "image": "a.png", "nframes": 4})
    found = convert(row, Dataset(name="a"))
    assert_skipped(found, "bad_row", "turn 0", "'image'", "'nframes'")
    frames = convert(talk({"type": "video", "video": ["a.png"], "max_frames": 2}), Dataset(name="a"))
    assert_skipped(frames, "bad_row", "max_frames")


@pytest.mark.parametrize(
    ("name", "taken"),
    [("kimi_vl", "max_pixels"), ("kimi_k25", "max_pixels"), ("gemma4", ""), ("llava_onevision", ""),
     ("internvl", ""), ("smolvlm", ""), ("phi4_mm", ""), ("default", "")],
)  # fmt: skip
def test_families_without_such_sizes_refuse_them_by_name(name: str, taken: str, tmp_path: Path) -> None:
    processor = import_module(f"processors.{name}").make(tmp_path / "processor")
    family = load_family(ProcessorKey(processor=str(processor), family=name if name == "default" else ""))
    path = str(picture(tmp_path / "a.png", 200, 300))
    ref = MediaRef(kind="image", path=path, wishes=Wishes(min_pixels=9))
    with raises_media_error("bad_row", f"{path}: ", "min_pixels", name, taken):
        measure_medium(ref, family)


def test_kimi_takes_a_budget(tmp_path: Path) -> None:
    family = family_for(str(import_module("processors.kimi_k25").make(tmp_path / "processor")))
    path = str(picture(tmp_path / "a.png", 200, 300))
    whole, bounded = (
        measure_medium(MediaRef(kind="image", path=path, wishes=wishes), family)
        for wishes in (Wishes(), Wishes(max_pixels=14 * 14 * 40))
    )
    assert math.prod(whole.grid) == 140
    assert math.prod(bounded.grid) <= 48, "40 patches, padded to whole merged ones"


@pytest.mark.parametrize("name", ["gemma4", "llava_onevision", "kimi_k25"])
def test_other_families_take_a_number_of_frames(name: str, film: str, tmp_path: Path) -> None:
    family = family_for(str(import_module(f"processors.{name}").make(tmp_path / "processor")))
    assert len(seen(family, film, nframes=3)[0]) == 3
    assert len(seen(family, film, max_frames=2, **({"min_frames": 1} if name == "gemma4" else {}))[0]) == 2


# ---------------------------------------------------------------- there and back


@given(
    wishes=st.fixed_dictionaries(
        {}, optional={"min_pixels": st.integers(1, 999), "max_pixels": st.integers(1000, 9999),
                      "nframes": st.integers(1, 99), "total_pixels": st.integers(1, 10**9)}
    )
)  # fmt: skip
def test_an_example_keeps_its_wishes(wishes: dict[str, int]) -> None:
    """As a conversation, which has them beside the medium, and back."""
    example = from_conversation({"conversation": talk({"type": "video", "video": "a.mp4", **wishes})["messages"]})
    assert isinstance(example, Example)
    assert example.media[0].wishes == Wishes(**wishes)
    again = to_conversation(example)
    assert again["conversation"][0]["content"][0] == {"type": "video", "video": "a.mp4", **wishes}
    assert from_conversation(again) == example
