"""What a value is, as JSON: whatever shapes a result is in a family's fingerprint by construction."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any


def identity_of(value: Any) -> Any:
    """A value as JSON that changes whenever it does: dataclasses by class and fields, HF objects by their own config.

    Fields marked `compare=False` are left out. What cannot be told is an error, and not left out.
    """
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value) if f.compare]
        return [type(value).__name__, {name: identity_of(getattr(value, name)) for name in fields}]
    if isinstance(value, Mapping):
        return {str(key): identity_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [identity_of(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "to_json_string"):
        return json.loads(value.to_json_string())
    raise TypeError(f"a {type(value).__name__} has no identity; give the numbers that it stands for")
