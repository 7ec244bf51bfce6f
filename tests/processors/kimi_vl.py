"""Kimi-VL on the demo's vocabulary: its turn and media markers, and a template in its manner."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from processors.common import write_processor

PAD = "<|media_pad|>"
TOKENS = ["<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|media_start|>", "<|media_content|>",
          "<|media_pad|>", "<|media_end|>"]  # fmt: skip
TEMPLATE = """{%- if messages[0].role != 'system' -%}
<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>
{%- endif -%}
{%- for message in messages -%}
<|im_{{ message.role }}|>{{ message.role }}<|im_middle|>
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|media_start|>image<|media_content|><|media_pad|><|media_end|>
{%- else -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}<|im_end|>
{%- endfor -%}"""
IMAGE = {"processor_class": "KimiVLProcessor", "image_processor_type": "KimiVLImageProcessor", "patch_size": 14,
         "pad_input": True, "in_token_limit": 100, "merge_kernel_size": [2, 2],
         "image_mean": [0.48145466, 0.4578275, 0.40821073],
         "image_std": [0.26862954, 0.26130258, 0.27577711]}  # fmt: skip


def make(folder: Path, **image: Any) -> Path:
    """`image`: values of its preprocessor_config.json."""
    return write_processor(folder, tokens=TOKENS, template=TEMPLATE, preprocessor_config=IMAGE | image)


class Double:
    """processor(images=…, text=…) -> input_ids, pixel_values, image_grid_hws.

    Ours, written from the published processor's documented behaviour: Pillow's bicubic within a budget of patches,
    black to the right and below up to whole merged patches, x / 255, less mean, over std, patches row by row; each
    <|media_pad|> of the text becomes as many as the picture has merged patches.
    """

    def __init__(self, tokenizer, config):
        self.tokenizer, self.config = tokenizer, config

    def __call__(self, images, text):
        arrays = [self.image(image) for image in images]
        out = {}
        if arrays:
            out["pixel_values"] = torch.cat([patches for patches, _ in arrays])
            out["image_grid_hws"] = np.array([grid for _, grid in arrays])
        before, *after = text.split(PAD)
        counts = [rows * columns // 4 for _, (rows, columns) in arrays]
        text = before + "".join(PAD * count + words for count, words in zip(counts, after, strict=True))
        return out | {"input_ids": self.tokenizer(text)["input_ids"]}

    def image(self, image):
        side, limit = self.config["patch_size"], self.config["in_token_limit"]
        patches = (image.width // side) * (image.height // side)
        if patches > limit:
            scale = math.sqrt(limit / patches)
            smaller = (int(image.width * scale), int(image.height * scale))
            image = image.resize(smaller, Image.Resampling.BICUBIC)
        right, below = (-length % (2 * side) for length in image.size)
        image = ImageOps.expand(image, (0, 0, right, below))
        rows, columns = image.height // side, image.width // side
        if max(rows, columns) >= 512:
            raise ValueError("more patches than position embeddings")
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
        mean, std = (torch.tensor(self.config[name])[:, None, None] for name in ("image_mean", "image_std"))
        pixels = pixels.sub(mean).div(std)
        cut = [pixels[:, y : y + side, x : x + side]
               for y in range(0, image.height, side) for x in range(0, image.width, side)]  # fmt: skip
        return torch.stack(cut), (rows, columns)
