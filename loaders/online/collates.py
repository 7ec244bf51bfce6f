"""Conversations of the online datasets straight into a batch, one collater per kind of processor.

All of them render with the family's own functions, as packing does; they differ in what else the model wants.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch.nn.functional import pad

from ...pipeline.families.base import Family
from ...pipeline.families.gemma4 import EMPTY_THOUGHT, MODEL_TURN
from ...pipeline.measure.length import expansions
from ...pipeline.media.image import rgb_image
from ...pipeline.records import IGNORE, MediaRef
from .labels import _extract_assistant_text, build_labels_from_template
from .padded import pad_collate_fn, padded_batch, padding_id, shifted_batch
from .phi4 import input_mode
from .processor import family_of
from .tokenized import SampleError, measured_example, tokenized_example

logger = logging.getLogger(__name__)

Conversation = Sequence[Mapping[str, Any]]
Batch = dict[str, Any]

_GEMMA4_MODEL_TURN, _GEMMA4_THINKING_PREFIX = MODEL_TURN, EMPTY_THOUGHT
_AUDIO_TAG = "<|audio_1|>"
_NEMOTRON_TASK = "</s><s><predict_bbox><predict_classes><output_markdown>"


def default_collate_fn(
    examples: Sequence[dict[str, Any]],
    processor: Any,
    max_length: int | None = None,
    _post_tokenize_hook: Callable[[Batch, Any], Batch] | None = None,
) -> Batch:
    """Any processor: conversations -> padded, labelled and shifted.

    max_length           longer samples are dropped, logged; a ValueError if that leaves none
    _post_tokenize_hook  (batch, processor) -> batch, before labels are built
    """
    return _collated(examples, processor, family_of(processor), max_length, hook=_post_tokenize_hook)


def qwen2_5_collate_fn(examples: list[dict[str, Any]], processor: Any) -> Batch:
    """Qwen2-VL, 2.5-VL and 3-VL."""
    return default_collate_fn(examples, processor)


def qwen3_omni_collate_fn(
    examples: Sequence[dict[str, Any]], processor: Any, use_audio_in_video: bool = False
) -> Batch:
    """Qwen3-Omni; `use_audio_in_video`: the sound track of a video is used, interleaved with its frames."""
    return _collated(examples, processor, family_of(processor, use_audio_in_video=use_audio_in_video))


def kimi_vl_collate_fn(examples: Sequence[dict[str, Any]], processor: Any, max_length: int | None = None) -> Batch:
    """Kimi-VL; every row has max_length tokens before the shift, where it is given."""
    return _collated(examples, processor, family_of(processor, family="kimi_vl"), max_length, fixed_length=True)


def kimi_k25_vl_collate_fn(examples: Sequence[dict[str, Any]], processor: Any, max_length: int | None = None) -> Batch:
    """Kimi K2.5: placeholders are expanded here, and rows are of one length, so that no pipeline stage changes it."""
    return _collated(examples, processor, family_of(processor, family="kimi_k25"), max_length, fixed_length=True)


def phi4_mm_collate_fn(examples: Sequence[dict[str, Any]], processor: Any) -> Batch:
    """Phi-4-multimodal. A sound may also be the example's `audio`, with <|audio_1|> in its text or before it."""
    heard = [_with_sound(example) for example in examples]
    batch = _collated(heard, processor, family_of(processor, family="phi4_mm"))
    return batch | {"input_mode": input_mode(batch)}


def gemma4_prefix_collate_fn(
    examples: Sequence[dict[str, Any]], processor: Any, max_length: int | None = None
) -> Batch:
    """Gemma4, whose model turns all begin with an empty thinking channel: put there, and not trained on."""

    def inject(batch: Batch, of: Any) -> Batch:
        return _inject_thinking_prefix_tokens(batch, family_of(of).chat.tokenizer)

    return default_collate_fn(examples, processor, max_length, _post_tokenize_hook=inject)


def nemotron_parse_collate_fn(
    examples: Sequence[dict[str, Any]], processor: Any, task_prompt: str = _NEMOTRON_TASK
) -> Batch:
    """Nemotron-Parse reads a page: the picture goes to the encoder, task prompt and answer to the decoder.

    It has no chat template, so the text is put together here; the prompt is masked. decoder_input_ids and labels are
    shifted against each other, as everywhere.
    """
    pages, texts = [], []
    tokenizer = processor.tokenizer
    for number, example in enumerate(examples):
        images, _ = _extract_media_from_conversations([example["conversation"]])
        if not images or len(images) != 1:
            raise ValueError(
                f"example {number} has {len(images or [])} images; Nemotron-Parse reads one page at a time"
            )
        answers = [_extract_assistant_text(turn) for turn in example["conversation"] if turn["role"] == "assistant"]
        pages.append(_as_rgb(images[0]))
        texts.append(f"{task_prompt}{''.join(answers)}{tokenizer.eos_token or ''}")
    batch = dict(processor(images=pages, text=texts, padding=True, add_special_tokens=False, return_tensors="pt"))
    ids, mask = batch.pop("input_ids"), batch.pop("attention_mask")
    prompt = tokenizer.encode(task_prompt, add_special_tokens=False)
    begins = mask.long().argmax(dim=1).tolist()  # rows may be padded on the left
    # The prompt's last token may have merged with the answer's first: what is not the prompt's own is trained on.
    ends = [begin + _common(row[begin:], prompt) for row, begin in zip(ids.tolist(), begins, strict=True)]
    trained = mask.bool() & (torch.arange(ids.shape[1])[None] >= torch.tensor(ends)[:, None])
    labels = torch.where(trained, ids, torch.full_like(ids, IGNORE))
    batch["decoder_input_ids"], batch["decoder_attention_mask"] = ids[:, :-1], mask[:, :-1]
    return batch | {"labels": labels[:, 1:]}


COLLATE_FNS: dict[str, Callable[..., Batch]] = {
    "Qwen2VLProcessor": qwen2_5_collate_fn,
    "Qwen2_5_VLProcessor": qwen2_5_collate_fn,
    "Qwen3VLProcessor": qwen2_5_collate_fn,
    "Qwen3VLMoeProcessor": qwen2_5_collate_fn,
    "Qwen3OmniMoeProcessor": qwen3_omni_collate_fn,
    "KimiVLProcessor": kimi_vl_collate_fn,
    "KimiK25Processor": kimi_k25_vl_collate_fn,
    "Kimi_K25Processor": kimi_k25_vl_collate_fn,
    "Phi4MMProcessor": phi4_mm_collate_fn,
    "Phi4MultimodalProcessor": phi4_mm_collate_fn,
    "NemotronParseProcessor": nemotron_parse_collate_fn,
    "Gemma4Processor": gemma4_prefix_collate_fn,
    "default": default_collate_fn,
}


def _collated(
    examples: Sequence[dict[str, Any]],
    processor: Any,
    family: Family,
    max_length: int | None = None,
    *,
    fixed_length: bool = False,
    hook: Callable[[Batch, Any], Batch] | None = None,
) -> Batch:
    if not examples:
        raise ValueError("a batch of no examples")
    if max_length is not None:
        conversations = [example["conversation"] for example in examples]
        _, kept = _drop_overlong_samples(conversations, family, max_length)
        examples = [examples[index] for index in kept]
    samples = [tokenized_example(example, family) for example in examples]
    length = max_length if fixed_length else None
    if hook is None:
        return pad_collate_fn(samples, family, length)
    batch = padded_batch(samples, family, length)
    del batch["labels"]
    batch = hook(batch, processor)
    labels = build_labels_from_template(
        batch["input_ids"], [example["conversation"] for example in examples], processor
    )
    return shifted_batch(batch | {"labels": labels.masked_fill(batch["attention_mask"] == 0, IGNORE)})


# Steps of collating, by their names in the online API


def _drop_overlong_samples(
    conversations: Sequence[Conversation], processor: Any, max_length: int
) -> tuple[list[Conversation], list[int]]:
    """Conversations of at most max_length tokens, media included, and where they were; a ValueError if none is."""
    kept, longest = [], 0
    for index, conversation in enumerate(conversations):
        try:
            length = measured_example({"conversation": list(conversation)}, family_of(processor)).tokens + 1
        except SampleError:
            kept.append(index)  # not too long but broken: reported when it is rendered
            continue
        longest = max(longest, length)
        if length <= max_length:
            kept.append(index)
        else:
            logger.warning("sample %d of the batch is dropped: %d tokens, max_length is %d", index, length, max_length)
    if conversations and not kept:
        raise ValueError(
            f"every sample of the batch is longer than max_length {max_length} (the longest has {longest} tokens)"
        )
    return [conversations[index] for index in kept], kept


def _estimate_media_tokens(conversation: Conversation, processor: Any) -> int:
    """Tokens that media add to one placeholder each; 0 for a conversation whose media cannot be opened."""
    family = family_of(processor)
    try:
        measured = measured_example({"conversation": list(conversation)}, family)
    except SampleError:
        return 0
    return sum(len(expansion) - 1 for _, expansion in expansions(measured.ids, measured.media, family))


def _extract_media_from_conversations(
    conversations: Sequence[Conversation],
) -> tuple[list[Any] | None, list[Any] | None]:
    """All images (PIL or paths) and all videos (paths), in order; None where there are none."""
    found: dict[str, list[Any]] = {"image": [], "video": []}
    for part in (part for conversation in conversations for part in _parts(conversation)):
        if part.get("type") in found:
            found[part["type"]].append(part.get(part["type"], part.get("path")))
    return found["image"] or None, found["video"] or None


def _count_media_per_sample(conversations: Sequence[Conversation]) -> tuple[list[int], list[int]]:
    """Images and videos of each conversation."""
    kinds = [[part.get("type") for part in _parts(conversation)] for conversation in conversations]
    return [row.count("image") for row in kinds], [row.count("video") for row in kinds]


def _ensure_rgb(conversations: Sequence[Conversation]) -> list[list[dict[str, Any]]]:
    """The same conversations with their PIL images in RGB."""

    def converted(part: Any) -> Any:
        if isinstance(part, Mapping) and isinstance(part.get("image"), Image.Image) and part["image"].mode != "RGB":
            return {**part, "image": _as_rgb(part["image"])}
        return part

    def content_of(turn: Mapping[str, Any]) -> Any:
        content = turn.get("content")
        return [converted(part) for part in content] if isinstance(content, list) else content

    return [[{**turn, "content": content_of(turn)} for turn in conversation] for conversation in conversations]


def _inject_thinking_prefix_tokens(batch: Batch, tokenizer: Any) -> Batch:
    """<|channel>thought\\n<channel|> behind every <|turn>model\\n, unless it is there already.

    Further integer tensors of the shape of input_ids get zeros in those places.
    """
    ids = batch["input_ids"]
    header, prefix = (
        tokenizer.encode(text, add_special_tokens=False) for text in (_GEMMA4_MODEL_TURN, _GEMMA4_THINKING_PREFIX)
    )
    places = [_ends_of(row, header, prefix) for row in ids.tolist()]
    longest = max((len(row) for row in places), default=0) * len(prefix)
    if not longest:
        return batch
    fills = {"input_ids": padding_id(tokenizer)}
    inserted = {"input_ids": torch.tensor(prefix), "attention_mask": torch.ones(len(prefix), dtype=torch.long)}
    result = dict(batch)
    for name, values in batch.items():
        if not isinstance(values, torch.Tensor) or values.shape != ids.shape or values.is_floating_point():
            continue
        what = inserted.get(name, torch.zeros(len(prefix), dtype=torch.long)).to(values)
        rows = []
        for row, ends in zip(values, places, strict=True):
            pieces = torch.tensor_split(row, ends)
            joined = torch.cat([part for piece in pieces[:-1] for part in (piece, what)] + [pieces[-1]])
            rows.append(pad(joined, (0, longest - len(ends) * len(prefix)), value=fills.get(name, 0)))
        result[name] = torch.stack(rows)
    return result


def _ends_of(ids: list[int], header: list[int], prefix: list[int]) -> list[int]:
    """Where each header ends that the prefix does not follow."""
    ends = [at + len(header) for at in range(len(ids)) if ids[at : at + len(header)] == header]
    return [end for end in ends if ids[end : end + len(prefix)] != prefix]


def _parts(conversation: Conversation) -> list[Mapping[str, Any]]:
    contents = [turn.get("content") for turn in conversation]
    return [part for content in contents if isinstance(content, list) for part in content if isinstance(part, Mapping)]


def _with_sound(example: dict[str, Any]) -> dict[str, Any]:
    """An example whose sound is in its `audio` column, and in its text at most by a tag, with a part for it."""
    conversation = example["conversation"]
    if example.get("audio") is None or any(part.get("type") == "audio" for part in _parts(conversation)):
        return example
    turns, placed_already = [], False
    for turn in conversation:
        if turn["role"] == "user" and not placed_already:
            placed_already = True
            content = (
                turn["content"] if isinstance(turn["content"], list) else [{"type": "text", "text": turn["content"]}]
            )
            texts = [
                {**part, "text": part["text"].replace(_AUDIO_TAG, "")} if part.get("type") == "text" else part
                for part in content
            ]
            turn = {**turn, "content": [{"type": "audio", "audio": example["audio"]}, *texts]}
        turns.append(turn)
    return {**example, "conversation": turns}


def _common(ids: list[int], prefix: list[int]) -> int:
    """How many tokens both begin with."""
    same = [a == b for a, b in zip(ids, prefix, strict=False)]
    return same.index(False) if False in same else len(same)


def _as_rgb(image: Any) -> Image.Image:
    """A picture or its path, decoded as packing does: turned by its EXIF orientation, alpha on white, 16 bits to 8."""
    held = isinstance(image, Image.Image)
    return rgb_image(MediaRef(kind="image", path="(in memory)" if held else str(image), held=image if held else None))
