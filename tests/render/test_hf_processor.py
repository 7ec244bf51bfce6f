"""The default path against the whole HF processor as users run it: torchvision backend, one call, every tensor."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import REAL_PROCESSORS, ROOT, picture
from PIL import Image

from loaders.pixels import looked_up
from pipeline.families.registry import family_for
from pipeline.measure.length import measure
from pipeline.records import Example, MediaRef, Turn
from pipeline.render.media import pixel_table
from pipeline.render.sample import render_sample

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
    processors = [str(shared / "processors" / name) for name in REAL_PROCESSORS]
    spec, out = folder / "spec.json", folder / "out.npz"
    spec.write_text(json.dumps({path: [_messages(turns) for turns in conversations] for path in processors}))
    for extra in ([], ["--declare"]):
        search = os.pathsep.join(filter(None, [str(ROOT / ".venv" / "torchvision"), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, str(Path(__file__).with_name("hf_processor.py")), str(spec), str(out), *extra]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True)
        if done.returncode != 3:
            break
    if done.returncode == 3:
        pytest.skip("torchvision cannot be imported here (the Makefile installs it into .venv/torchvision)")
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(out) as saved:
        return dict(saved), conversations


def _messages(turns):
    def content(part):
        return {"type": "image", "path": part} if os.path.isabs(part) else {"type": "text", "text": part}

    return [{"role": role, "content": [content(part) for part in parts]} for role, parts in turns]


def _example(turns):
    parts = [tuple(MediaRef(kind="image", path=p) if os.path.isabs(p) else p for p in parts) for _, parts in turns]
    return Example(turns=tuple(Turn(role=role, parts=part) for (role, _), part in zip(turns, parts, strict=True)))


@pytest.mark.parametrize("name", REAL_PROCESSORS)
def test_the_default_path_equals_the_hf_processor(name, hf, shared):
    tensors, conversations = hf
    family = family_for(str(shared / "processors" / name))
    table = torch.from_numpy(pixel_table(family.image, "torch"))
    for number, turns in enumerate(conversations):
        expected = {
            key.rsplit("/", 1)[1]: value for key, value in tensors.items() if key.startswith(f"{name}/{number}/")
        }
        (measured,) = measure([_example(turns)], family)
        sample = render_sample(measured, family, "torch")
        assert sample.input_ids.tolist() == expected["input_ids"][0, :-1].tolist()
        assert sample.mm_token_type_ids.tolist() == expected["mm_token_type_ids"][0, :-1].tolist()
        assert np.array_equal(sample.image_grid_thw, expected["image_grid_thw"])
        stored, pixels = torch.from_numpy(sample.pixel_values), torch.from_numpy(expected["pixel_values"])
        for dtype in (torch.float32, torch.bfloat16):
            restored = looked_up(stored, table, family.image.temporal_patch_size, dtype)
            assert torch.equal(restored, pixels.to(dtype)), f"conversation {number}"
