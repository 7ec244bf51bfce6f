"""What an output is made from: told apart by fingerprint, and the difference in words."""

import dataclasses
import json

import pytest
from support.errors import raises

from neatpack import __version__
from neatpack.errors import OutputError
from neatpack.format.manifest import Identity
from neatpack.pipeline import measure
from neatpack.pipeline.extras import VERSIONED
from neatpack.pipeline.identity import own_code, versions

OLD = Identity(
    inputs={"coco": {"rows": 3, "content": "d1"}, "text": {"rows": 4, "content": "d2"}},
    processor="p1",
    config={"pack_size": 8192, "seed": 0},
    versions={"torch": "2.1"},
    code={"neatpack": "0.2.0", "measure": 1, "family": 1},
)


def test_differences_in_words() -> None:
    new = dataclasses.replace(
        OLD,
        config={"pack_size": 4096, "seed": 0},
        inputs={"coco": {"rows": 3, "content": "d3"}, "more": {"rows": 1}},
        code={"neatpack": "0.2.0", "measure": 2, "family": 1},
    )
    assert OLD.differences(new) == [
        "inputs.coco.content: d1 -> d3",
        "inputs.text: {'rows': 4, 'content': 'd2'} -> None",
        "inputs.more: None -> {'rows': 1}",
        "config.pack_size: 8192 -> 4096",
        "code.measure: 1 -> 2",
    ]
    assert OLD.differences(OLD) == []


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Identity)])
def test_every_field_changes_the_fingerprint(field: str) -> None:
    changed = dataclasses.replace(OLD, **{field: "p2" if field == "processor" else {}})
    assert changed.fingerprint != OLD.fingerprint
    assert OLD.differences(changed)


def test_it_survives_json() -> None:
    back = Identity.from_json(json.loads(json.dumps(OLD.to_json())))
    assert back == OLD
    assert back.fingerprint == OLD.fingerprint
    assert back.num_rows == 7


def test_what_is_no_identity_is_refused() -> None:
    """Records of neatpack 0.1 have no code."""
    old = OLD.to_json()
    del old["code"], old["versions"]
    with raises(OutputError, "output-damaged", key="identity", missing=["versions", "code"]):
        Identity.from_json(old)
    with raises(OutputError, "output-damaged", key="identity", missing=None):
        Identity.from_json([])


def test_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_code(3) == {"neatpack": __version__, "measure": measure.REVISION, "family": 3}
    monkeypatch.setattr(measure, "REVISION", 99)
    assert own_code(3)["measure"] == 99
    assert list(versions()) == list(VERSIONED)
