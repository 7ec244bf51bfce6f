"""Run whole HF processors (torchvision backend) over conversations and save their tensors; a process of its own.

python hf_processor.py, and on each line of its input ["SPEC.json", "OUT.npz"]; it answers by a line of
JSON, null or what went wrong. One process serves a whole run of tests: to import all this takes longer than most of it.

Exit 3: no usable torchvision.

SmolVLM's gives pictures and videos in one array, and of both only the videos; of several media of which one is a video,
they are here those of each medium alone, in text order.

A picture may have the min_pixels or max_pixels that the processor is called with; it is the only one then.

Sounds are given as .npy files of samples: {"type": "audio", "samples": …}, or "sound" of a video whose sound is used.
"""

import json
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
import with_torchvision  # noqa: F401 (first)
from PIL import Image, ImageOps
from transformers import AutoProcessor
from transformers.video_utils import read_video_pyav


def sampler(processor, fps):
    """The processor's own choice of frames; all of them where it is not configured to choose."""
    chooser = processor.video_processor
    # SmolVLM's apply_chat_template hands on what its config has; frames are chosen wherever something is asked for.
    is_configured = type(processor).__name__ == "SmolVLMProcessor" and chooser.fps is not None
    if fps is None and not chooser.do_sample_frames and not is_configured:
        return lambda metadata, **_: np.arange(metadata.total_num_frames)
    return lambda metadata, **_: chooser.sample_frames(metadata, fps=fps)


def alone(processor, part, images, videos):
    """The pixels of the next picture or video, [1, tiles, …]; both lists get shorter."""
    if part["type"] == "image":
        return processor.image_processor([[images.pop(0)]], return_tensors="pt")["pixel_values"]
    (frames,), metadata = videos["videos"], videos["video_metadata"]
    return processor.video_processor(
        [frames.pop(0)], video_metadata=[metadata.pop(0)], do_sample_frames=False, return_tensors="pt"
    )["pixel_values"]


def process(spec, out_path):
    arrays = {}
    for processor_path, conversations in json.loads(Path(spec).read_text()).items():
        processor = AutoProcessor.from_pretrained(processor_path)
        for number, messages in enumerate(conversations):
            paths = [part["path"] for turn in messages for part in turn["content"] if part["type"] == "image"]
            images = [ImageOps.exif_transpose(Image.open(path)) for path in paths]
            clips = [part for turn in messages for part in turn["content"] if part["type"] == "video"]
            videos = {}
            if clips:
                read = [read_video_pyav(clip["path"], sampler(processor, clip.get("fps"))) for clip in clips]
                frames, metadata = zip(*read, strict=True)
                videos = {"videos": list(frames), "video_metadata": list(metadata), "do_sample_frames": False}
            parts = [part for turn in messages for part in turn["content"]]
            sounds = [np.load(part[key]) for part in parts for key in ("samples", "sound") if key in part]
            more = {"audio": sounds} if sounds else {}
            if "Omni" in type(processor).__name__:  # takes the rate as told, and knows no token types
                if clips and clips[0].get("fps"):
                    more["fps"] = clips[0]["fps"]
                if any("sound" in part for part in parts):
                    more["use_audio_in_video"] = True
            else:
                more["return_mm_token_type_ids"] = True
            for part in parts:
                if bounds := {name: part[name] for name in ("min_pixels", "max_pixels") if name in part}:
                    own = processor.image_processor.size
                    most = bounds.get("max_pixels", own["longest_edge"])
                    more["size"] = {
                        "shortest_edge": bounds.get("min_pixels", min(own["shortest_edge"], most)),
                        "longest_edge": most,
                    }
            # Phi-4's processor leaves its template to the tokenizer.
            text = (processor if processor.chat_template else processor.tokenizer).apply_chat_template(
                messages, tokenize=False
            )
            if type(processor).__name__ == "LlavaOnevisionProcessor":  # a list for each text: else each image is alone
                images = [images] if images else None
            if type(processor).__name__ == "SmolVLMProcessor" and clips:
                videos["videos"] = [videos["videos"]]
            if processor.tokenizer.bos_token and text.startswith(processor.tokenizer.bos_token):
                more["add_special_tokens"] = False  # as apply_chat_template(tokenize=True) does
            out = processor(text=[text], images=images or None, return_tensors="pt", **videos, **more)
            if type(processor).__name__ == "SmolVLMProcessor" and clips and len(clips) + len(images) > 1:
                out["pixel_values"] = torch.cat([alone(processor, part, images, videos) for part in parts
                                                 if part["type"] != "text"], dim=1)  # fmt: skip
            for key, value in out.items():
                if isinstance(value, torch.Tensor):
                    arrays[f"{Path(processor_path).name}/{number}/{key}"] = value.numpy()
    np.savez(out_path, **arrays)


answers, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed is no answer
print("ready", file=answers, flush=True)
for line in sys.stdin:
    try:
        process(*json.loads(line))
        answer = None
    except Exception:  # whatever it is: it fails the test that asked
        answer = traceback.format_exc()
    print(json.dumps(answer), file=answers, flush=True)
