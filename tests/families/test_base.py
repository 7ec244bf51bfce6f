"""What shapes a family's result is in its fingerprint by construction, and rows are joined as declared."""

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from helpers import DEMO_PROCESSOR
from support.errors import raises
from tokenizers.normalizers import Lowercase
from transformers.models.auto.auto_mappings import PROCESSOR_MAPPING_NAMES

from neatpack.format.layout import MediaArray
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.base import Family, ProcessorKey
from neatpack.pipeline.families.identity import identity_of
from neatpack.pipeline.families.media_rows import join_rows
from neatpack.pipeline.families.registry import FAMILIES, REFUSED, load_family


@dataclass(frozen=True)
class Inner:
    number: int


@dataclass(frozen=True)
class Outer:
    inner: Inner
    names: tuple[str, ...] = ("a",)
    handle: Any = field(default=None, compare=False)


def test_dataclasses_are_told_by_class_and_fields():
    assert identity_of(Outer(Inner(1))) == ["Outer", {"inner": ["Inner", {"number": 1}], "names": ["a"]}]
    assert identity_of({"a": (1, None, 0.5, True)}) == {"a": [1, None, 0.5, True]}
    assert identity_of(Outer(Inner(1), handle=object())) == identity_of(Outer(Inner(1)))


def test_what_cannot_be_told_is_an_error_and_not_left_out():
    with pytest.raises(TypeError, match="an? object has no identity"):
        identity_of(Outer(Inner(1), names=(object(),)))  # type: ignore[arg-type]


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return (*value, 1)
    if isinstance(value, dict):
        return value | {"more": 1}
    return 1  # None, or an object: any number is another


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in REFUSED])
def test_every_field_of_every_rule_is_in_the_fingerprint(name, tmp_path):
    processor = str(import_module(f"processors.{name}").make(tmp_path / "processor"))
    family = load_family(ProcessorKey(processor=processor, family=name))

    def with_rule(kind: str, rule: Any) -> Family:
        changed = Family.__new__(type(family))
        changed.__dict__ = {key: value for key, value in vars(family).items() if key not in ("fingerprint", "media")}
        changed.rules = {**family.rules, kind: rule}  # type: ignore[dict-item]
        changed.__dict__["media"] = family.media
        return changed

    seen = {family.fingerprint}
    for kind, rule in family.rules.items():
        assert with_rule(kind, rule).fingerprint == family.fingerprint
        for part in dataclasses.fields(rule):
            if not part.compare:
                continue
            changed = dataclasses.replace(rule, **{part.name: other(getattr(rule, part.name))})
            found = with_rule(kind, changed).fingerprint
            assert found not in seen, f"{kind}.{part.name}"
            seen.add(found)
    assert len(seen) > 1


def test_a_raised_revision_is_another_fingerprint(demo_family, monkeypatch):
    before = demo_family.fingerprint
    del demo_family.__dict__["fingerprint"]
    monkeypatch.setattr(type(demo_family), "revision", 99)
    assert demo_family.fingerprint != before
    del demo_family.__dict__["fingerprint"]


def test_the_whole_tokenizer_is_in_the_fingerprint_but_what_callers_leave_there(demo_family):
    backend, before = demo_family.chat.tokenizer.backend_tokenizer, demo_family.chat.identity()
    backend.enable_truncation(7)
    backend.enable_padding(length=9)
    assert demo_family.chat.identity() == before
    backend.no_truncation()
    backend.no_padding()
    normalizer = backend.normalizer
    backend.normalizer = Lowercase()
    assert demo_family.chat.identity() != before
    backend.normalizer = normalizer
    assert demo_family.chat.identity() == before


def test_another_models_processor_does_not_choose_its_positions(tmp_path):
    """LLaVA-OneVision-1.5 has Qwen2.5-VL's processor, and positions on one axis."""
    processor = shutil.copytree(DEMO_PROCESSOR, tmp_path / "processor")
    config = json.loads((processor / "config.json").read_text())
    (processor / "config.json").write_text(json.dumps(config | {"model_type": "llavaonevision1_5"}))
    named = {"processor": str(processor), "model_type": "llavaonevision1_5", "family": "qwen2_vl"}
    with raises(UserError, "processor-unsupported", **named) as caught:
        load_family(ProcessorKey(processor=str(processor)))
    assert all(text in str(caught.error) for text in ("--family qwen2_vl", "--family default"))
    told = load_family(ProcessorKey(processor=str(processor), family="qwen2_vl"))
    assert told.position_axes == 3, "who says so knows"
    (processor / "config.json").unlink()
    assert load_family(ProcessorKey(processor=str(processor))).name == "qwen2_vl", "nothing is known of the model"


def test_models_of_three_axes_are_those_of_transformers():
    """All that it gives one of the family's processors to; a model that is new there is looked at first."""
    for family in FAMILIES.values():
        theirs = {model for model, name in PROCESSOR_MAPPING_NAMES.items() if name in family.processor_classes}
        own = {name for name in family.model_types if not name.endswith("_thinker")}  # of a model without its talker
        assert own == (theirs if family.position_axes > 1 else set()), family.name


def test_rows_are_joined_as_declared():
    free = MediaArray(kinds=("image",), dtype="uint8", row=(-1, 2))
    one, two = np.ones((1, 1, 2)), np.full((1, 3, 2), 2)
    assert join_rows([], free).shape == (0, 0, 2)
    assert join_rows([one, two], free)[0].tolist() == [[1, 1], [0, 0], [0, 0]], "padded to the largest"
    assert join_rows([one], free).dtype == np.uint8


def test_the_fingerprint_is_of_the_processor_and_not_of_its_use(processor):
    fresh, used = (load_family(ProcessorKey(processor=processor)) for _ in range(2))
    used.chat.tokenizer(["a", "a b c"], padding=True, truncation=True, max_length=2)
    assert fresh.fingerprint == used.fingerprint
    changed = load_family(ProcessorKey(processor=processor))
    changed.chat.tokenizer.chat_template += " "
    assert changed.fingerprint != fresh.fingerprint
