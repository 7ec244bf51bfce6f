"""Conversations in the form of the online API, and samples of a foreign data set."""

from typing import Any

import torch


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
