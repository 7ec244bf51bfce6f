"""What a model spends on a pack: presets by arithmetic, weights as the user says, and what makes no sense refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.errors import raises

from neatpack.pipeline.config import PackConfig, UserError
from neatpack.pipeline.step_cost import PRESETS, StepCost, step_cost


def test_presets_are_what_docs_say() -> None:
    found = {name: (cost.tokens, cost.visual, cost.audio, cost.square) for name, cost in PRESETS.items()}
    assert found == {
        "2b": (1, 1.7, 0.82, 2.8e-5),
        "7b": (1, 0.37, 0.18, 1.4e-5),
        "32b": (1, 0.081, 0.039, 1e-5),
        "72b": (1, 0.036, 0.018, 9.2e-6),
    }


def test_weights_that_are_not_named_are_the_default() -> None:
    assert step_cost("7B") == step_cost("tokens=1, visual=0.37") == PRESETS["7b"]
    assert step_cost("visual=2,square=0") == StepCost(tokens=1, visual=2, audio=0.18, square=0)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("13b", {"got": "13b"}),
        ("", {"got": ""}),
        ("pictures=1", {"got": "pictures=1"}),
        ("visual=-0.1", {"name": "visual", "got": "-0.1"}),
        ("visual=nan", {"name": "visual"}),
        ("square=inf", {"name": "square"}),
        ("visual=many", {"name": "visual", "got": "many"}),
        ("visual=1,visual=2", {"name": "visual", "got": None}),
        ("tokens=0,visual=0,audio=0,square=0", {"name": None, "got": None}),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, fields: dict[str, Any]) -> None:
    with raises(UserError, "option-invalid", option="cost", **fields):
        PackConfig(cost=text)


def test_cost_by_hand() -> None:
    cost = step_cost("tokens=1,visual=0.5,audio=0.25,square=0.001")
    encoders = cost.of_encoders(np.array([0, 10]), np.array([8, 0]))
    assert (encoders / 1e6).tolist() == [2 * 1.0, 5 * 1.0]
    assert (cost.of_packs(np.array([100, 100]), encoders, np.array([0, 2000])) / 1e6).tolist() == [102, 107]


@given(st.tuples(*[st.floats(0, 1e9)] * 4).filter(any), st.integers(1, 1 << 20))
def test_no_weights_overflow(weights: tuple[float, float, float, float], length: int) -> None:
    """A pack of one document, half of it visual, in a group of 512."""
    cost = StepCost(**dict(zip(("tokens", "visual", "audio", "square"), weights, strict=True)))
    half, tokens = np.array([length // 2]), np.array([length])
    found = int(cost.of_packs(tokens, cost.of_encoders(half, tokens - half), tokens**2)[0])
    assert 0 <= found * 512 < 1 << 63
