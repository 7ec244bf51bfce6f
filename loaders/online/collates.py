"""Conversations of the online datasets straight into a batch, one collater per kind of processor.

All of them render with the family's own functions, as packing does; they differ in what else the model wants. Each
takes, where its documented arguments do not have them,

    max_length    tokens of every row before the shift: longer samples are dropped, logged, and a ValueError if that
                  leaves none; shorter ones are padded, so that pipelines and torch.compile see one shape
    pixel_dtype   of pixel_values and pixel_values_videos; None: float32, as the processor gives them
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from neatpack.errors import UserError
from neatpack.format.layout import IGNORE

from ...pipeline.families.base import Family
from ..pixels import cast_pixels
from .gemma4 import _inject_thinking_prefix_tokens, cut_to, without_prefix_labels
from .kimi import expanded_example
from .labels import _extract_assistant_text, build_labels_from_template
from .padded import padded_batch, shifted_batch
from .phi4 import input_mode, with_sound
from .processor import family_of
from .steps import (
    _count_media_per_sample,
    _drop_overlong_samples,
    _ensure_rgb,
    _extract_media_from_conversations,
    all_overlong,
    as_rgb,
)
from .tokenized import tokenized_example

logger = logging.getLogger(__name__)

Batch = dict[str, Any]
Examples = Sequence[dict[str, Any]]

_NEMOTRON_TASK = "</s><s><predict_bbox><predict_classes><output_markdown>"


def default_collate_fn(
    examples: Examples,
    processor: Any,
    max_length: int | None = None,
    _post_tokenize_hook: Callable[[Batch, Any], Batch] | None = None,
    *,
    pixel_dtype: torch.dtype | None = torch.bfloat16,
) -> Batch:
    """Any processor: conversations -> padded, labelled and shifted.

    _post_tokenize_hook  (batch, processor) -> batch, before labels are built
    """
    _ensure_rgb([example["conversation"] for example in examples])
    family = family_of(processor)
    return _collated(examples, processor, family, max_length, pixel_dtype=pixel_dtype, hook=_post_tokenize_hook)


def qwen2_5_collate_fn(
    examples: list[dict[str, Any]],
    processor: Any,
    *,
    max_length: int | None = None,
    pixel_dtype: torch.dtype | None = None,
) -> Batch:
    """Qwen2.5-VL: as the default, with pixels as its processor gives them."""
    return _collated(examples, processor, family_of(processor), max_length, pixel_dtype=pixel_dtype)


def qwen3_omni_collate_fn(
    examples: Examples,
    processor: Any,
    use_audio_in_video: bool = False,
    *,
    max_length: int | None = None,
    pixel_dtype: torch.dtype | None = None,
) -> Batch:
    """Qwen3-Omni; `use_audio_in_video`: the sound track of a video is used, interleaved with its frames."""
    family = family_of(processor, use_audio_in_video=use_audio_in_video)
    return _collated(examples, processor, family, max_length, pixel_dtype=pixel_dtype)


def kimi_vl_collate_fn(
    examples: Examples, processor: Any, max_length: int | None = None, *, pixel_dtype: torch.dtype | None = None
) -> Batch:
    """Kimi-VL."""
    return _collated(examples, processor, family_of(processor, family="kimi_vl"), max_length, pixel_dtype=pixel_dtype)


def kimi_k25_vl_collate_fn(
    examples: Examples, processor: Any, max_length: int | None = None, *, pixel_dtype: torch.dtype | None = None
) -> Batch:
    """Kimi K2.5: placeholders are expanded here, and rows are of one length, so that no pipeline stage changes it."""
    family = family_of(processor, family="kimi_k25")
    return _collated(examples, processor, family, max_length, pixel_dtype=pixel_dtype, tokenized=expanded_example)


def phi4_mm_collate_fn(
    examples: Examples,
    processor: Any,
    *,
    max_length: int | None = None,
    pixel_dtype: torch.dtype | None = None,
) -> Batch:
    """Phi-4-multimodal. A sound may also be the example's `audio`, with <|audio_1|> in its text or before it."""
    family = family_of(processor, family="phi4_mm")
    heard = [with_sound(example) for example in examples]
    batch = _collated(heard, processor, family, max_length, pixel_dtype=pixel_dtype)
    return batch | {"input_mode": input_mode(batch)}


def gemma4_prefix_collate_fn(
    examples: Examples,
    processor: Any,
    max_length: int | None = None,
    *,
    pixel_dtype: torch.dtype | None = torch.bfloat16,
) -> Batch:
    """default_collate_fn for the Gemma 4 models that always think: all model turns begin with an empty thinking
    channel, which is put there before labels are built, and not trained on. It counts against max_length.
    """
    tokenizer = family_of(processor).chat.tokenizer

    def inject(batch: Batch, of: Any) -> Batch:
        longer = _inject_thinking_prefix_tokens(batch, tokenizer)
        return longer if max_length is None else cut_to(longer, max_length)

    conversations = [example["conversation"] for example in examples]
    _, kept = _drop_overlong_samples(conversations, family_of(processor, empty_thought=True), max_length)
    thinking = [examples[index] for index in kept]
    batch = default_collate_fn(thinking, processor, max_length, _post_tokenize_hook=inject, pixel_dtype=pixel_dtype)
    return without_prefix_labels(batch, tokenizer)


def nemotron_parse_collate_fn(
    examples: Examples,
    processor: Any,
    task_prompt: str = _NEMOTRON_TASK,
    *,
    max_length: int | None = None,
    pixel_dtype: torch.dtype | None = torch.bfloat16,
) -> Batch:
    """Nemotron-Parse reads a page: the picture goes to the encoder, task prompt and answer to the decoder.

    It has no chat template, so the text is put together here; the prompt is masked. decoder_input_ids and labels are
    shifted against each other, as everywhere; input_ids are the decoder's, once more.
    """
    tokenizer = processor.tokenizer
    conversations = [example["conversation"] for example in examples]
    texts, pages = [], []
    for number, conversation in enumerate(conversations):
        images, _ = _extract_media_from_conversations([conversation])
        if not images or len(images) != 1:
            raise UserError(
                f"example {number} has {len(images or [])} images; Nemotron-Parse reads one page at a time",
                code="row-invalid",
                example=number,
                images=len(images or []),
            )
        pages.append(images[0])
        answers = [_extract_assistant_text(turn) for turn in conversation if turn["role"] == "assistant"]
        texts.append(f"{task_prompt}{''.join(answers)}{tokenizer.eos_token or ''}")
    padding: dict[str, Any] = {"padding": True}
    if max_length is not None:
        padding = {"padding": "max_length", "max_length": max_length}
        kept = _fitting({number: len(tokenizer.encode(text, add_special_tokens=False))
                         for number, text in enumerate(texts)}, max_length)  # fmt: skip
        texts, pages, conversations = ([of_all[number] for number in kept] for of_all in (texts, pages, conversations))
    images = [as_rgb(page) for page in pages]
    batch = dict(processor(images=images, text=texts, add_special_tokens=False, return_tensors="pt", **padding))
    ids, mask = batch["input_ids"], batch["attention_mask"]
    prompt = tokenizer.encode(task_prompt, add_special_tokens=False)
    begins = mask.long().argmax(dim=1).tolist()  # rows may be padded on the left
    # The prompt's last token may have merged with the answer's first: what is not the prompt's own is trained on.
    ends = [begin + _common(row[begin:], prompt) for row, begin in zip(ids.tolist(), begins, strict=True)]
    trained = mask.bool() & (torch.arange(ids.shape[1])[None] >= torch.tensor(ends)[:, None])
    labels = torch.where(trained, ids, torch.full_like(ids, IGNORE))
    batch = shifted_batch(batch | {"labels": labels}) | _media_counts(conversations)
    batch |= {"decoder_input_ids": batch["input_ids"], "decoder_attention_mask": batch["attention_mask"]}
    return cast_pixels(batch, pixel_dtype)


COLLATE_FNS: dict[str, Callable[..., Batch]] = {
    "Qwen2VLProcessor": default_collate_fn,
    "Qwen2_5_VLProcessor": qwen2_5_collate_fn,
    "Qwen3VLProcessor": default_collate_fn,
    "Qwen3VLMoeProcessor": default_collate_fn,
    "Qwen3OmniMoeProcessor": qwen3_omni_collate_fn,
    "KimiVLProcessor": kimi_vl_collate_fn,
    "KimiK25Processor": kimi_k25_vl_collate_fn,
    "Kimi_K25Processor": kimi_k25_vl_collate_fn,
    "Phi4MMProcessor": phi4_mm_collate_fn,
    "Phi4MultimodalProcessor": phi4_mm_collate_fn,
    "NemotronParseProcessor": nemotron_parse_collate_fn,
    "Gemma4Processor": default_collate_fn,  # an empty thought is for the larger models only: gemma4_prefix_collate_fn
    "default": default_collate_fn,
}


def _collated(
    examples: Examples,
    processor: Any,
    family: Family,
    max_length: int | None,
    *,
    pixel_dtype: torch.dtype | None,
    hook: Callable[[Batch, Any], Batch] | None = None,
    tokenized: Callable[..., dict[str, Any]] = tokenized_example,
) -> Batch:
    if not examples:
        raise UserError("a batch of no examples", code="batch-mismatch", examples=0)
    _, kept = _drop_overlong_samples([example["conversation"] for example in examples], family, max_length)
    # As bytes: they are restored once, in the batch, as what it has.
    samples = {index: tokenized(examples[index], family, restore=False) for index in kept}
    if max_length is not None:  # what an example has beside its conversation (tools, sounds) was not counted yet
        fitting = _fitting({index: len(sample["input_ids"]) for index, sample in samples.items()}, max_length)
        samples = {index: samples[index] for index in fitting}
    conversations = [examples[index]["conversation"] for index in samples]
    batch = padded_batch([*samples.values()], family, max_length, pixel_dtype if hook is None else None)
    if hook is not None:
        del batch["labels"]
        batch = hook(batch, processor)
        labels = build_labels_from_template(batch["input_ids"], conversations, processor)
        batch["labels"] = labels.masked_fill(batch["attention_mask"] == 0, IGNORE)
    return cast_pixels(shifted_batch(batch) | _media_counts(conversations), pixel_dtype)


def _fitting(lengths: Mapping[int, int], max_length: int) -> list[int]:
    """Which samples fit, by what they came to; the others are logged, and a ValueError if none does."""
    for index, length in lengths.items():
        if length > max_length:
            logger.warning("sample %d of the batch is dropped: %d tokens, max_length is %d", index, length, max_length)
    kept = [index for index, length in lengths.items() if length <= max_length]
    if not kept:
        raise all_overlong(max_length, max(lengths.values()))
    return kept


def _media_counts(conversations: Sequence[Any]) -> dict[str, torch.Tensor]:
    """What pipeline parallelism divides media by; absent where no sample has any."""
    images, videos = _count_media_per_sample(conversations)
    counts = {"n_images_per_sample": images, "n_videos_per_sample": videos}
    return {name: torch.tensor(numbers) for name, numbers in counts.items() if any(numbers)}


def _common(ids: list[int], prefix: list[int]) -> int:
    """How many tokens both begin with."""
    same = [a == b for a, b in zip(ids, prefix, strict=False)]
    return same.index(False) if False in same else len(same)
