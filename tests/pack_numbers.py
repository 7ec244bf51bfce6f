"""A collate function for workers that are started anew: they import what it is in, and nothing heavy with it."""

from typing import Any


def numbers(items: list[dict[str, Any]]) -> list[int]:
    return [item["pack"] for item in items]
