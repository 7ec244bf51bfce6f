"""Expects errors by their code and fields. Their wording is in tests/golden/messages.txt alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Caught:
    """What `raises` caught: `error`, set when the block has ended."""

    error: Exception


@contextmanager
def raises(kind: type[Exception], code: str, **fields: Any) -> Iterator[Caught]:
    """Expect an error of a type, a code and at least these fields."""
    caught = Caught()
    with pytest.raises(kind) as info:
        yield caught
    caught.error = info.value
    assert info.value.code == code, f"{info.value.code}: {info.value}"
    found = {name: info.value.fields.get(name) for name in fields}
    assert found == fields, f"{info.value.fields}: {info.value}"


def printed_code(text: str) -> str:
    """Return the code that a command printed: the last [code] at the end of a line."""
    codes = [line.rpartition("[")[2][:-1] for line in text.splitlines() if line.endswith("]") and "[" in line]
    assert codes, f"no code in: {text}"
    return codes[-1]
