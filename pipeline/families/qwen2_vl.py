"""Qwen2-VL and Qwen2.5-VL: ChatML turns, patches of 14 merged 2 x 2, three-axis positions."""

from pipeline.families.base import FamilySpec
from pipeline.mrope import mrope_positions

IMAGE_DEFAULTS = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "rescale_factor": 1 / 255,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}

SPEC = FamilySpec(
    name="qwen2_vl",
    processor_classes=("Qwen2VLProcessor", "Qwen2_5_VLProcessor"),
    takes=("image",),
    image_token="<|image_pad|>",
    video_token="<|video_pad|>",
    structural_tokens=(
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
    ),
    assistant_header="<|im_start|>assistant\n",
    end_of_turn="<|im_end|>",
    fake_image=("<|vision_start|>", "<|vision_end|>"),
    positions=mrope_positions,
    media_axes={"pixel_values": "patches", "image_grid_thw": "images"},
    image_defaults=IMAGE_DEFAULTS,
)
