"""Phi-4 multimodal online: sounds in a column, and what its remote code takes otherwise than transformers.

transformers' Phi4MultimodalForCausalLM takes a batch's media arrays by their names, and no `input_mode`. The remote
code's Phi4MMForCausalLM (microsoft/Phi-4-multimodal-instruct) calls two of them otherwise, and chooses its LoRA adapter
by `input_mode`.
"""

from collections.abc import Mapping
from typing import Any

LANGUAGE, VISION, SPEECH, VISION_SPEECH = 0, 1, 2, 3
_AUDIO_TAG = "<|audio_1|>"
_REMOTE_NAMES = {"image_pixel_values": "input_image_embeds", "audio_input_features": "input_audio_embeds"}


def input_mode(batch: Mapping[str, Any]) -> int:
    """0 language, 1 vision, 2 speech, 3 both: by the media that a batch holds, a fake image included.

    One mode holds for the whole batch: a pack of pictures and sounds trains the vision adapter on both.
    """
    has_images, has_sounds = (batch.get(name) is not None and len(batch[name]) > 0 for name in _REMOTE_NAMES)
    return (VISION if has_images else LANGUAGE) | (SPEECH if has_sounds else LANGUAGE)


def remote_code_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch with the remote code's names and its input_mode."""
    return {_REMOTE_NAMES.get(name, name): value for name, value in batch.items()} | {"input_mode": input_mode(batch)}


def with_sound(example: dict[str, Any]) -> dict[str, Any]:
    """An example whose sound is in its `audio` column, and in its text at most by a tag, with a part for it."""
    conversation = example["conversation"]
    if example.get("audio") is None or any(_has_sound(turn) for turn in conversation):
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


def _has_sound(turn: Mapping[str, Any]) -> bool:
    content = turn.get("content")
    return isinstance(content, list) and any(part.get("type") == "audio" for part in content)
