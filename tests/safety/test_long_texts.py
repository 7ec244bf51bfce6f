"""Rows of many megabytes of text: they cost themselves, whichever tokenizer reads them."""

from typing import Any

import pytest
from format_rows import dataset
from helpers import DEMO_PROCESSOR

from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.families.tokens import Own
from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.measure.length import LONG_TEXT, measure
from neatpack.pipeline.media.limits import LIMITS, Limits, limits
from neatpack.pipeline.records import Example, Measured, Skip

SPACES = " " * 11_000_000 + "x"  # the regex engine of `tokenizers` gives up after 10 million steps, by a panic


@pytest.fixture(scope="module")
def family() -> Family:
    return family_for(ProcessorKey(processor=str(DEMO_PROCESSOR)))


def example(question: str, answer: str = "Me.") -> Example:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    found = convert({"messages": turns}, dataset("messages"))
    assert isinstance(found, Example)
    return found


@pytest.mark.parametrize("text", [SPACES, "\u3000" * 11_000_000 + "x", f"<|im_start|>{SPACES}"])
def test_text_that_the_tokenizer_gives_up_on_costs_its_row(text: str, family: Family) -> None:
    good, bad, other = measure([example("a"), example(text), example("b")], family)
    assert isinstance(good, Measured) and isinstance(other, Measured)
    assert isinstance(bad, Skip) and bad.reason in ("bad_row", "overlong"), bad
    if text == SPACES:
        assert (bad.reason, "the tokenizer gives up on the text" in bad.detail) == ("bad_row", True)


def test_only_the_text_that_panics_is_lost_of_a_batch(family: Family) -> None:
    """As a family without tiktoken encodes them: many at once."""
    chat = family.chat.__class__(family.chat.format, family.chat.tokenizer, source=family.source, takes=())
    chat.encoder = Own(chat.tokenizer)
    found = chat.encode([example("a"), example(SPACES), example("b")], [()] * 3)
    assert [isinstance(each, Skip) for each in found] == [False, True, False]


@pytest.mark.parametrize("unit", ["1 ", "<|im_end|>", "\u4e2d", "a", "<image", "x\n"])
def test_text_is_tokenized_as_far_as_rows_are_measured(
    unit: str, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else 60 MB of it take Gemma 4's tokenizer minutes and 9 GB."""
    most, longest = limits().max_row_tokens, 0
    encoder = type(family.chat.encoder)
    real = encoder.bare

    def bare(self: Any, text: str) -> list[int]:
        nonlocal longest
        longest = max(longest, len(text))
        return real(self, text)

    monkeypatch.setattr(encoder, "bare", bare)
    text = unit * (24_000_000 // len(unit))
    (found,) = measure([example("Count.", text)], family)
    assert isinstance(found, Skip) and found.reason == "overlong", found
    assert longest == LONG_TEXT and most < found.tokens < most + 2 * LONG_TEXT
    assert found.detail.startswith(f"at least {found.tokens} tokens by its text")


def test_long_text_that_may_be_measured_is_noted_first(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that such a row ends leaves it out the next time."""
    monkeypatch.setenv(LIMITS, Limits(max_row_tokens=1 << 30).as_text())
    noted: list[int] = []
    text = "=" * (LONG_TEXT + 1)
    short, whole = measure([example("a"), example("a", text)], family, before=noted.append)
    assert isinstance(whole, Measured) and isinstance(short, Measured) and noted == [1]
    assert family.chat.tokenizer.decode(whole.ids).count("=") == len(text)
