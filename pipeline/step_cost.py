"""What a model spends on a pack, as `--cost` says it: weights of tokens, of what encoders do, of squared lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

from neatpack.errors import UserError

if TYPE_CHECKING:  # flags and --help do without
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

VOCABULARY = 152_064
# Forward FLOPs of the towers for a token that the language model gets; the backward pass doubles all of them.
VISION_FLOPS = 2 * 0.65e9 * 4  # a vision tower of 0.65B parameters sees 4 patches for each visual token
AUDIO_FLOPS = 2 * 0.63e9 * 2  # an audio tower of 0.63B (32 layers of width 1280) two frames for each audio token
UNITS = 10_000_000  # of the largest weight: what 1e-7 of it makes, nobody measures


class Shape(NamedTuple):
    """A language model: width of its layers, of their feed-forward parts, and of the keys of grouped attention."""

    layers: int
    width: int
    feed_forward: int
    keys: int

    def cost(self) -> StepCost:
        """7b: a token meets 28 * (2 * 3584^2 + 2 * 3584 * 512 + 3 * 3584 * 18944) + 3584 * 152064 = 7.07e9 weights,
        with 2 FLOPs each: 1.41e10. A visual token adds 5.2e9 = 0.37 of that, an audio token 2.5e9 = 0.18. A pair of
        tokens takes two products of 2 * 3584 in each layer, and causal attention half of the pairs: 2.0e5, 1.4e-5.
        """
        layer = 2 * self.width**2 + 2 * self.width * self.keys + 3 * self.width * self.feed_forward
        token = 2 * (self.layers * layer + self.width * VOCABULARY)
        visual, audio, square = VISION_FLOPS / token, AUDIO_FLOPS / token, 2 * self.layers * self.width / token
        return StepCost(tokens=1.0, visual=_two_digits(visual), audio=_two_digits(audio), square=_two_digits(square))


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """The modelled cost of a pack: of its tokens, of visual and audio ones on top, and of squared document lengths."""

    tokens: float
    visual: float
    audio: float
    square: float

    def of_encoders(self, visual_tokens: Ints, audio_tokens: Ints) -> Ints:
        """What the towers spend, of samples or packs: visual tokens in another unit, where there is no sound.

        Integers, so that the order of packs is the same on every machine.
        """
        _, visual, audio, _ = self._units()
        return visual * visual_tokens + audio * audio_tokens

    def of_packs(self, tokens: Ints, encoders: Ints, squares: Ints) -> Ints:
        """All of it. `squares`: sum of squared document lengths."""
        of_token, _, _, of_square = self._units()
        return of_token * tokens + encoders + of_square * squares

    def _units(self) -> tuple[int, int, int, int]:
        """The weights as integers. A square is reckoned as in a document of 10k tokens, so that none overflows."""
        largest = max(self.tokens, self.visual, self.audio, self.square * 1e4)
        tokens, visual, audio, square = (
            round(weight / largest * UNITS) for weight in (self.tokens, self.visual, self.audio, self.square)
        )
        return tokens, visual, audio, square


NAMES = tuple(field.name for field in fields(StepCost))
# The shapes of Qwen2 and Qwen2.5 of these sizes. Others of about their size have about their ratios.
PRESETS = {
    name: shape.cost()
    for name, shape in {
        "2b": Shape(layers=28, width=1536, feed_forward=8960, keys=256),
        "7b": Shape(layers=28, width=3584, feed_forward=18944, keys=512),
        "32b": Shape(layers=64, width=5120, feed_forward=27648, keys=1024),
        "72b": Shape(layers=80, width=8192, feed_forward=29568, keys=1024),
    }.items()
}
DEFAULT_COST = "7b"


def step_cost(text: str) -> StepCost:
    """A preset by its name, or weights: `tokens=1,visual=0.37,square=1.4e-5`. Those not named are 7b's."""
    if preset := PRESETS.get(text.strip().lower()):
        return preset
    expected = f"expected {', '.join(PRESETS)}, or weights like tokens=1,visual=0.37,square=1.4e-5"
    weights: dict[str, float] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or name not in NAMES:
            raise UserError(
                f"cost: {item.strip()!r} is no weight; {expected} (known: {', '.join(NAMES)})",
                code="option-invalid",
                option="cost",
                got=item.strip(),
            )
        if name in weights:
            raise UserError(f"cost: {name} is given twice", code="option-invalid", option="cost", name=name)
        try:
            weights[name] = float(value)
        except ValueError:
            raise UserError(
                f"cost: {name} is {value!r}, which is no number; {expected}",
                code="option-invalid",
                option="cost",
                name=name,
                got=value,
            ) from None
        if not 0 <= weights[name] < math.inf:
            raise UserError(
                f"cost: {name} is {value}; a weight must be a number that is not negative",
                code="option-invalid",
                option="cost",
                name=name,
                got=value,
            )
    default = PRESETS[DEFAULT_COST]
    cost = StepCost(**{name: weights.get(name, getattr(default, name)) for name in NAMES})
    if not any(getattr(cost, name) for name in NAMES):
        raise UserError(
            "cost: all weights are 0; one at least must be above, or all packs would cost the same",
            code="option-invalid",
            option="cost",
        )
    return cost
