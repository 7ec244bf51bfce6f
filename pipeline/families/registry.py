"""FAMILIES: one line per model family."""

from functools import lru_cache

from pipeline.families import qwen2_vl, qwen3_vl
from pipeline.families.base import Family, FamilySpec, ProcessorKey, load_family

FAMILIES: dict[str, FamilySpec] = {spec.name: spec for spec in (qwen2_vl.SPEC, qwen3_vl.SPEC)}


@lru_cache(maxsize=2)
def family_for(key: ProcessorKey | str) -> Family:
    """The family of a processor, loaded once in a process (a tokenizer takes half a second)."""
    return load_family(ProcessorKey(processor=key) if isinstance(key, str) else key, FAMILIES)
