"""Made-up samples for the planner, of kinds that are hard to pack or to balance, each the same for a seed."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Data(NamedTuple):
    """Of each sample, its tokens, and how many of them are visual and of sounds."""

    lengths: Ints
    visual: Ints
    audio: Ints


def mixed_samples(num_samples: int, capacity: int, seed: int, text_share: float = 0.25) -> tuple[Ints, Ints]:
    """Lengths and visual tokens: at capacity 16384 25% of the samples are text, 85% of the tokens visual."""
    rng = np.random.default_rng(seed)
    is_text = rng.random(num_samples) < text_share
    num_images = np.where(is_text, 0, np.minimum(rng.geometric(0.65, num_samples), 6))
    visual = np.zeros(num_samples)
    for image in range(6):
        visual += (num_images > image) * np.clip(rng.lognormal(np.log(450), 0.8, num_samples), 64, 4096)
    text = np.where(is_text, rng.lognormal(np.log(200), 1.0, num_samples), rng.lognormal(np.log(30), 1.0, num_samples))
    visual_tokens = np.minimum(visual, capacity * 9 // 10).astype(np.int64)
    return np.minimum(visual_tokens + np.maximum(text, 8).astype(np.int64), capacity), visual_tokens


def mixed(num_samples: int, capacity: int, seed: int) -> Data:
    return _data(*mixed_samples(num_samples, capacity, seed), capacity)


def captioned(num_samples: int, capacity: int, seed: int, picture: int = 256, caption: int = 45) -> Data:
    """Pictures of one size, a caption each."""
    rng = np.random.default_rng(seed)
    text = np.clip(rng.lognormal(np.log(caption), 0.6, num_samples), 8, 400)
    return _data(picture + text, np.full(num_samples, picture), capacity)


def video_heavy(num_samples: int, capacity: int, seed: int) -> Data:
    """Clips of more than half a pack, which no other fits beside, and every fifth a text of any length."""
    rng = np.random.default_rng(seed)
    is_clip = rng.random(num_samples) < 0.8
    visual = np.where(is_clip, rng.integers(capacity * 55 // 100, capacity * 9 // 10, num_samples), 0)
    clip_text = np.clip(rng.lognormal(np.log(60), 0.8, num_samples), 8, capacity // 10)
    text = np.where(is_clip, clip_text, np.clip(rng.lognormal(np.log(600), 1.0, num_samples), 8, capacity))
    return _data(visual + text, visual, capacity)


def mostly_text(num_samples: int, capacity: int, seed: int) -> Data:
    """Nine of ten are text."""
    rng = np.random.default_rng(seed)
    is_text = rng.random(num_samples) < 0.9
    picture = np.clip(rng.lognormal(np.log(600), 0.7, num_samples), 64, capacity * 9 // 10)
    text = np.clip(rng.lognormal(np.log(300), 1.1, num_samples), 8, capacity)
    caption = np.clip(rng.lognormal(np.log(40), 0.8, num_samples), 8, capacity // 10)
    visual = np.where(is_text, 0, picture).astype(np.int64)
    return _data(visual + np.where(is_text, text, caption), visual, capacity)


def heavy_tailed(num_samples: int, capacity: int, seed: int) -> Data:
    """Two of five are text; lengths of texts and media by a power law, up to a pack."""
    rng = np.random.default_rng(seed)
    is_text = rng.random(num_samples) < 0.4
    visual = np.where(is_text, 0, np.minimum(256 * (1 + rng.pareto(0.8, num_samples)), capacity * 9 // 10))
    text, caption = 100 * (1 + rng.pareto(0.8, num_samples)), 30 * (1 + rng.pareto(1.2, num_samples))
    return _data(visual + np.where(is_text, text, caption), visual, capacity)


def with_sounds(num_samples: int, capacity: int, seed: int) -> Data:
    """As mixed, but half of what has no picture is a sound of up to half a minute, 25 tokens a second."""
    lengths, visual = mixed_samples(num_samples, capacity, seed, text_share=0.5)
    rng = np.random.default_rng([seed, 1])
    is_sound = (visual == 0) & (rng.random(num_samples) < 0.5)
    audio = np.where(is_sound, np.clip(rng.lognormal(np.log(200), 0.7, num_samples), 25, 750), 0).astype(np.int64)
    return Data(np.minimum(lengths + audio, capacity), visual, audio)


def _data(lengths: NDArray[np.float64] | Ints, visual: NDArray[np.float64] | Ints, capacity: int) -> Data:
    visual_tokens = visual.astype(np.int64)
    return Data(np.minimum(lengths.astype(np.int64), capacity), visual_tokens, np.zeros_like(visual_tokens))


class Rows(NamedTuple):
    """Samples that are copies of rows, or of groups, as a dataset has them: in the order of its file."""

    data: Data
    rows: Ints
    groups: Ints


def text_lengths(num: int, capacity: int, seed: int) -> Ints:
    return np.clip(np.random.default_rng(seed).lognormal(np.log(200), 0.9, num), 8, capacity // 2).astype(np.int64)


def repeated_texts(num: int, capacity: int, seed: int, copies: int = 2) -> Rows:
    """Texts, each as often as that."""
    lengths = text_lengths(num // copies, capacity, seed)
    rows = np.tile(np.arange(len(lengths)), copies)
    return Rows(_data(lengths[rows], np.zeros(len(rows)), capacity), rows, rows)


def repeated_images(num: int, capacity: int, seed: int, copies: int = 8) -> Rows:
    """Three quarters images, each eight times, the others texts that come once."""
    rng = np.random.default_rng(seed)
    num_images, num_texts = num * 3 // 4 // copies, num // 4
    picture = np.clip(rng.lognormal(np.log(500), 0.7, num_images), 64, capacity // 2).astype(np.int64)
    caption = np.clip(rng.lognormal(np.log(40), 0.8, num_images), 8, 400).astype(np.int64)
    rows = np.concatenate([np.tile(np.arange(num_images), copies), num_images + np.arange(num_texts)])
    lengths = np.concatenate([picture + caption, text_lengths(num_texts, capacity, seed)])
    visual = np.concatenate([picture, np.zeros(num_texts, np.int64)])
    return Rows(_data(lengths[rows], visual[rows], capacity), rows, rows)


def sorted_texts(num: int, capacity: int, seed: int) -> Rows:
    """Texts by their length."""
    rows = np.arange(num)
    return Rows(_data(np.sort(text_lengths(num, capacity, seed)), np.zeros(num), capacity), rows, rows)


def sorted_heavy_tailed(num: int, capacity: int, seed: int) -> Rows:
    """Texts and images of heavy-tailed lengths, by their length."""
    data, rows = heavy_tailed(num, capacity, seed), np.arange(num)
    order = np.lexsort((data.visual, data.lengths))
    return Rows(Data(data.lengths[order], data.visual[order], data.audio), rows, rows)


def near_texts(num: int, capacity: int, seed: int) -> Rows:
    """Texts of 40 to 60 tokens, sorted."""
    rows = np.arange(num)
    lengths = np.sort(np.random.default_rng(seed).integers(40, 61, num))
    return Rows(_data(lengths, np.zeros(num), capacity), rows, rows)


def questions(num: int, capacity: int, seed: int, of_image: int = 10) -> Rows:
    """Ten questions about each image, one after the other."""
    rng = np.random.default_rng(seed)
    rows = np.arange(num)
    picture = np.clip(rng.lognormal(np.log(500), 0.5, num // of_image + 1), 64, capacity // 4).astype(np.int64)
    visual = picture[rows // of_image]
    text = np.clip(rng.lognormal(np.log(30), 0.5, num), 8, 200).astype(np.int64)
    return Rows(_data(visual + text, visual, capacity), rows, rows // of_image)
