"""Rows that ask for hostile numbers of frames: a named skip or a sane sample, within bounded memory and time.

Every family with videos is asked in another process, whose memory and CPU time the kernel bounds.
"""

import json
import math
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
from helpers import DEMO_PROCESSOR, SHARED, clip, torchvision_environment

from neatpack.pipeline.families.glm4v import by_rate

pytestmark = pytest.mark.slow

NUM_FRAMES = 10  # of the clip: 2 seconds of 64 x 96
HOSTILE: dict[str, dict[str, Any]] = {
    "nframes 2^31 - 1": {"nframes": 2147483647},
    "nframes 10^18": {"nframes": 10**18},
    "nframes 2^63 - 1": {"nframes": 2**63 - 1},
    "nframes 10^30": {"nframes": 10**30},
    "nframes 1e18": {"nframes": 1e18},
    "min_frames 10^18": {"min_frames": 10**18},
    "min_frames 10^18 beside a rate": {"min_frames": 10**18, "fps": 1},
    "max_frames 10^18": {"max_frames": 10**18},
    "fps 990000000": {"fps": 990000000},
    "fps 1e9": {"fps": 1e9},
    "fps 999999999.9 of a part": {"fps": 999999999.9, "video_start": 0.5},
    "fps 1e308": {"fps": 1e308},
    "fps infinite": {"fps": float("inf")},
    "fps not a number": {"fps": float("nan")},
    "fps 1e-300": {"fps": 1e-300},
    "fps 1e-4": {"fps": 1e-4},
    "fps 5e-324 of a part": {"fps": 5e-324, "video_end": 1.0},
    "fps and min_frames": {"fps": 990000000, "min_frames": 10**18},
    "frame_indices beyond the end": {"frame_indices": [0, 2147483647]},
    "frame_indices above 2^63": {"frame_indices": [0, 2**70]},
    "frame_indices a million times": {"frame_indices": [3] * 1_000_000},
    "frame_indices twice": {"frame_indices": [3] * NUM_FRAMES},
    "frame_indices none": {"frame_indices": []},
    "video_start 1e308": {"video_start": 1e308},
    "video_start 999999999": {"video_start": 999999999},
    "video_end 1e-300": {"video_end": 1e-300},
    "video_end below the start": {"video_start": 1.5, "video_end": 0.5},
    "video_end negative": {"video_end": -1e9},
    "video_start not a number": {"video_start": float("nan")},
    "total_pixels 1": {"total_pixels": 1},
    "total_pixels 2^62": {"total_pixels": 2**62, "nframes": 10**18},
    "max_pixels 1": {"max_pixels": 1},
    "min_pixels and nframes 1": {"nframes": 1, "max_pixels": 1},
}
# Beyond what the process has with its family loaded; the address space, so that nothing lazy is missed.
MEMORY = 2 << 30
CPU_SECONDS = 60

CHILD = """
import json, resource, sys
import with_torchvision  # family default asks processors of transformers, which need it
from neatpack.loaders.online.tokenized import SampleError, tokenized_example
from neatpack.pipeline.families.base import ProcessorKey
from neatpack.pipeline.families.registry import load_family

def sample(family, asked):
    parts = [{"type": "video", "video": clip, **asked}, {"type": "text", "text": "What?"}]
    turns = [{"role": "user", "content": parts}, {"role": "assistant", "content": "That."}]
    try:
        rendered = tokenized_example({"conversation": turns}, family)
    except SampleError as error:
        return {"reason": error.reason, "detail": str(error)}
    positions = rendered["position_ids"]
    return {"tokens": len(rendered["input_ids"]), "lowest": float(positions.min()), "highest": float(positions.max())}

def bound(kind, most):
    resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))

def used_bytes():
    return int(dict(line.split(":") for line in open("/proc/self/status"))["VmSize"].split()[0]) << 10

processors, clip, rows = json.load(sys.stdin)
for processor, name in processors:
    bound(resource.RLIMIT_AS, resource.RLIM_INFINITY)
    family = load_family(ProcessorKey(processor=processor, family=name))
    found = {"fps 2": sample(family, {"fps": 2})}  # whatever is loaded lazily is loaded now
    bound(resource.RLIMIT_AS, used_bytes() + MEMORY)
    bound(resource.RLIMIT_CPU, int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + CPU_SECONDS)
    for row, asked in rows.items():
        print(processor, row, file=sys.stderr)
        found[row] = sample(family, asked)
    print(json.dumps(found), flush=True)
""".replace("MEMORY", str(MEMORY)).replace("CPU_SECONDS", str(CPU_SECONDS))
SHARED_NAMES = (
    "gemma4", "glm4.5v", "internvl3", "kimi-k2.5", "llava-onevision", "qwen2-vl", "qwen2.5-omni", "qwen2.5-vl",
    "qwen3-omni", "qwen3-vl", "qwen3.5",
)  # fmt: skip
MADE_NAMES = ("smolvlm", "default")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, Any]]]:
    """What becomes of each hostile row, and of an ordinary one, by the processor's name."""
    folder = tmp_path_factory.mktemp("sampling")
    smolvlm = import_module("processors.smolvlm").make(folder / "smolvlm")
    processors = {"smolvlm": (str(smolvlm), ""), "default": (str(DEMO_PROCESSOR), "default")}
    if SHARED.is_dir():
        processors |= {name: (str(SHARED / "processors" / name), "") for name in SHARED_NAMES}
    asked = json.dumps([list(processors.values()), clip(folder / "a.mp4").path, HOSTILE])
    ran = subprocess.run(
        [sys.executable, "-c", CHILD], env=torchvision_environment(), input=asked, capture_output=True, text=True
    )
    if ran.returncode == 3:
        pytest.skip("torchvision cannot be imported here (the Makefile installs it into .venv/torchvision)")
    found = dict(zip(processors, map(json.loads, ran.stdout.splitlines()), strict=False))
    if ran.returncode:
        found["error"] = {ran.stderr[-2000:]: {}}
    return found


def assert_sane(found: dict[str, dict[str, Any]]) -> None:
    assert found.keys() == {"fps 2", *HOSTILE}
    ordinary = found["fps 2"]["tokens"]
    for name, result in found.items():
        if "reason" in result:
            assert result["reason"] in ("bad_row", "bad_media"), (name, result)
            assert len(result["detail"]) < 400, name
        else:
            assert result["tokens"] <= 40 * ordinary, (name, result)
            assert 0 <= result["lowest"] <= result["highest"] < 1e6, (name, result)
    for name in ("nframes 10^30", "fps 1e-300", "fps not a number", "video_end below the start"):
        assert "reason" in found[name], name
    for name in ("frame_indices above 2^63", "frame_indices a million times", "frame_indices none"):
        assert "frame_indices" in found[name]["detail"], found[name]


@pytest.mark.parametrize("name", [*MADE_NAMES, *SHARED_NAMES])
def test_hostile_numbers_of_frames_are_bounded(name: str, outcomes: dict[str, dict[str, dict[str, Any]]]) -> None:
    if name not in MADE_NAMES and not SHARED.is_dir():
        pytest.skip("../shared (real processors) is not here")
    assert name in outcomes, outcomes.get("error")
    assert_sane(outcomes[name])


def test_glm_rate_above_twice_the_source_takes_what_the_loop_over_all_steps_takes() -> None:
    for total, fps, wanted in ((10, 5.0, 11.0), (49, 29.97, 90.3), (50, 24.0, 1000.0), (7, 3.0, 6.01)):
        number = max(math.floor(total / fps * wanted), 1)
        steps = [min(total - 1, math.ceil(index * fps / wanted)) for index in range(number)]
        assert by_rate(total, fps, wanted, 300).tolist() == list(dict.fromkeys(steps))
