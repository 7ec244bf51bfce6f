"""The default path against the whole HF processor as users run it: torchvision backend, one call, every tensor."""

import os

import av
import numpy as np
import pytest
import torch
from helpers import REAL_PROCESSORS, bare_model, picture, run_hf
from PIL import Image

from neatpack.loaders.pixels import looked_up
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.records import Example, MediaRef, Sampling, Turn
from neatpack.pipeline.render.sample import render_sample

EXIF = Image.Exif()
EXIF[0x0112] = 8
SIZES = [(301, 517), (64, 48), (1100, 800), (333, 90), (28, 5000)]


@pytest.fixture(scope="module")
def hf(shared, tmp_path_factory):
    """Tensors of the HF processors, by processor, conversation and name; and the conversations."""
    folder = tmp_path_factory.mktemp("hf")
    paths = [str(picture(folder / f"{i}.jpg", *size, seed=i)) for i, size in enumerate(SIZES)]
    paths.append(str(picture(folder / "turned.jpg", 150, 260, exif=EXIF)))
    paths += [str(picture(folder / f"{mode}.png", 200, 130, mode=mode)) for mode in ("RGBA", "P", "L", "LA")]
    paths += sorted(str(path) for path in (shared / "data/media/coco_train2017").glob("*.jpg"))[:4]
    conversations = [[("user", [path, "What is it?"]), ("assistant", ["It."])] for path in paths]
    conversations.append([
        ("system", ["Be brief."]), ("user", [*paths[:3], "Which?"]), ("assistant", ["\n\nNone."]),
        ("user", ["And", paths[6], "now?"]), ("assistant", ["Ja, 这个."]),
    ])  # fmt: skip
    clips = [str(shared / "data/media" / name) for name in (
        "mllm_demo_data/4.mp4", "mantis/video/000001_000050/1066682446.mp4", "mllm_demo_data/3.mp4")]  # fmt: skip
    conversations += [[("user", [{"path": clip, "fps": fps}, "What happens?"]), ("assistant", ["This."])]
                      for clip, fps in [(clips[0], 1), (clips[0], 2.5), (clips[1], 1), (clips[2], 3)]]  # fmt: skip
    conversations.append([
        ("user", [{"path": clips[0], "fps": 2}, paths[0], "And", {"path": clips[1], "fps": 1}, "?"]),
        ("assistant", ["Two videos and a picture."]),
    ])  # fmt: skip
    conversations.append([("user", [{"path": make_clip(folder / "clip.mp4")}, "All of it?"]), ("assistant", ["Yes."])])
    messages = [_messages(turns) for turns in conversations]
    return run_hf({str(shared / "processors" / name): messages for name in REAL_PROCESSORS}, folder), conversations


def make_clip(path, num_frames=7, height=90, width=160):
    """A small video whose frames differ, of an odd number of frames."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        y, x = np.mgrid[0:height, 0:width]
        for number in range(num_frames):
            pixels = np.stack([(x + 20 * number) % 256, (y * 2) % 256, (x + y) % 256], axis=-1).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return str(path)


def _messages(turns):
    def content(part):
        if isinstance(part, dict):
            return {"type": "video", **part}
        return {"type": "image", "path": part} if os.path.isabs(part) else {"type": "text", "text": part}

    return [{"role": role, "content": [content(part) for part in parts]} for role, parts in turns]


def _example(turns):
    def part_of(part):
        if isinstance(part, dict):
            return MediaRef(kind="video", path=part["path"], sampling=Sampling(fps=part.get("fps")))
        return MediaRef(kind="image", path=part) if os.path.isabs(part) else part

    return Example(turns=tuple(Turn(role=role, parts=tuple(map(part_of, parts))) for role, parts in turns))


@pytest.mark.parametrize("name", REAL_PROCESSORS)
def test_the_default_path_equals_the_hf_processor(name, hf, shared):
    tensors, conversations = hf
    family = family_for(str(shared / "processors" / name))
    table, video_table = map(torch.from_numpy, family.tables("torch").values())
    model = bare_model(str(shared / "processors" / name))
    for number, turns in enumerate(conversations):
        expected = {
            key.rsplit("/", 1)[1]: value for key, value in tensors.items() if key.startswith(f"{name}/{number}/")
        }
        (measured,) = measure([_example(turns)], family)
        sample = render_sample(measured, family, "torch")
        assert sample.input_ids.tolist() == expected["input_ids"][0, :-1].tolist()
        assert sample.mm_token_type_ids.tolist() == expected["mm_token_type_ids"][0, :-1].tolist()
        for grids, key, values, repeat in (
            ("image_grid_thw", "pixel_values", table, family.image.temporal_patch_size),
            ("video_grid_thw", "pixel_values_videos", video_table, 1),
        ):
            assert np.array_equal(sample.media[grids], expected.get(grids, np.zeros((0, 3))))
            if key in expected:
                stored, pixels = torch.from_numpy(sample.media[key]), torch.from_numpy(expected[key])
                for dtype in (torch.float32, torch.bfloat16):
                    restored = looked_up(stored, values, repeat, dtype)
                    assert torch.equal(restored, pixels.to(dtype)), f"conversation {number}"
        if "second_per_grid_ts" in expected:
            assert sample.media["second_per_grid_ts"].tolist() == expected["second_per_grid_ts"].tolist()
        kinds = {key: torch.from_numpy(expected[key]) for key in ("input_ids", "mm_token_type_ids")}
        more = {
            k: torch.from_numpy(expected[k])
            for k in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
            if k in expected
        }
        assert np.array_equal(sample.position_ids, model.get_rope_index(**kinds, **more)[0][:, 0, :-1].numpy())
