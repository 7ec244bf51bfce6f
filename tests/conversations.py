"""Conversations in the form of the online API, and samples of a foreign data set."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer


@lru_cache
def tokenizer_of(processor: str) -> Any:
    return AutoTokenizer.from_pretrained(processor)


def trained(batch: dict[str, Any], tokenizer: Any, row: int = 0) -> str:
    """The text of the targets of a row."""
    labels = batch["labels"][row]
    return str(tokenizer.decode(labels[labels != -100]))


def talk(*turns: Any) -> dict[str, Any]:
    """("text or list of parts", …), user and assistant in turn."""
    roles = ("user", "assistant")
    return {"conversation": [
        {"role": roles[number % 2], "content": [{"type": "text", "text": turn}] if isinstance(turn, str) else turn}
        for number, turn in enumerate(turns)
    ]}  # fmt: skip


def saw(kind: str, value: Any, text: str = "What?") -> list[dict[str, Any]]:
    return [{"type": kind, kind: value}, {"type": "text", "text": text}]


def asked(question: str, answer: str, *media: tuple[str, Any]) -> dict[str, Any]:
    parts = [{"type": kind, kind: value} for kind, value in media]
    return {"conversation": [{"role": "user", "content": [*parts, {"type": "text", "text": question}]},
                             {"role": "assistant", "content": [{"type": "text", "text": answer}]}]}  # fmt: skip


def tokens(*numbers: int, first_target: int = 0) -> dict[str, torch.Tensor]:
    """A tokenized sample of a foreign dataset."""
    ids = torch.tensor(numbers)
    labels = ids.clone()
    labels[:first_target] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


class Page:
    """The call protocol of Nemotron-Parse's processor, which is remote code: pictures for the encoder, a text for the
    decoder, padded."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, images, text, **options):
        assert all(image.mode == "RGB" for image in images)
        shrunk = [np.asarray(image.resize((4, 4)), dtype=np.float32) / 255 for image in images]
        return {"pixel_values": torch.tensor(np.stack(shrunk)).movedim(-1, 1), **self.tokenizer(text, **options)}
