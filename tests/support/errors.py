"""Expects errors by their code and fields. Their wording is in tests/golden/messages.txt alone."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from neatpack.pipeline.records import MediaError, Skip


class Caught:
    """What `raises` caught: `error`, set when the block has ended."""

    error: Any


@contextmanager
def raises(kind: type[Exception], code: str, /, **fields: Any) -> Iterator[Caught]:
    """Expect an error of a type, a code and at least these fields."""
    caught = Caught()
    info: pytest.ExceptionInfo[Any]
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


def numbers_in(text: str) -> list[float]:
    """Return the numbers of a message, whose words may change."""
    return [float(found.replace(",", "")) for found in re.findall(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?", text)]


def prints_code(text: str, code: str) -> bool:
    """Whether a command printed this code."""
    return printed_code(text) == code


def logged(caplog: pytest.LogCaptureFixture, module: str, level: int = logging.WARNING) -> list[Any]:
    """Return the arguments of the messages that a module such as "loaders.stream" logged at a level."""
    name = f"neatpack.{module}"
    return [record.args for record in caplog.records if (record.name, record.levelno) == (name, level)]


@contextmanager
def raises_media_error(reason: str, *named: object, **fields: Any) -> Iterator[None]:
    """Expect a medium that cannot be used: the reason, and what its detail names, such as a file or a limit."""
    with pytest.raises(MediaError) as info:
        yield
    assert_skipped(info.value.skip, reason, *named, **fields)


def assert_skipped(found: object, reason: str, *named: object, **fields: Any) -> Skip:
    """Expect a row that is skipped: the reason, what its detail names, and at least these fields."""
    assert isinstance(found, Skip), found
    assert found.reason == reason, found
    assert {name: found.fields.get(name) for name in fields} == fields, found
    assert [name for name in map(str, named) if name not in found.detail] == [], found.detail
    return found
