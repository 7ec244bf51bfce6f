"""FAMILIES: one line per model family."""

from functools import lru_cache

from pipeline.families import qwen2_vl, qwen3_vl
from pipeline.families.base import Family, FamilySpec, load_family

FAMILIES: dict[str, FamilySpec] = {spec.name: spec for spec in (qwen2_vl.SPEC, qwen3_vl.SPEC)}


@lru_cache(maxsize=2)
def family_for(processor: str, name: str = "", min_pixels: int = 0, max_pixels: int = 0) -> Family:
    """The family of a processor, loaded once in a process (a tokenizer takes half a second)."""
    return load_family(processor, FAMILIES, name=name, min_pixels=min_pixels, max_pixels=max_pixels)
