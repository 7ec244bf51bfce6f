"""What test_sources.py proves by internals."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from source_data import chat, text, wav, with_sounds
from support.data import picture
from support.errors import raises

from neatpack import make_cv17_dataset, make_rdr_dataset
from neatpack.pipeline.ingest import sources
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.ingest.convert import parse_row
from neatpack.pipeline.ingest.imported import lines_of
from neatpack.pipeline.ingest.lines import dumped
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.ingest.sources import SOURCES
from neatpack.pipeline.ingest.sources.cord_v2 import json2token
from neatpack.pipeline.ingest.sources.examples import BadRow
from neatpack.pipeline.records import Example, Skip


def test_json2token() -> None:
    assert json2token({}) == json2token([]) == ""
    assert json2token({"b": 1, "a": None, "c": [True, "x"]}) == "<s_c>True<sep/>x</s_c><s_b>1</s_b><s_a>None</s_a>"
    assert json2token({"b": 1, "a": {"d": 2, "e": 3}}, sort_json_key=False) == (
        "<s_b>1</s_b><s_a><s_d>2</s_d><s_e>3</s_e></s_a>"
    )
    assert json2token([{"a": [{"b": 1}, {"b": 2}]}, {"a": []}]) == (
        "<s_a><s_b>1</s_b><sep/><s_b>2</s_b></s_a><sep/><s_a></s_a>"
    )
    assert json2token({"text_sequence": "as it is"}) == "as it is"


def test_cv17() -> None:
    examples = make_cv17_dataset(with_sounds([wav(), wav(0.25, 8000, channels=2)], ["bir", "iki"]))
    assert [example["conversation"] for example in examples] == [
        [
            {"role": "user", "content": [{"type": "audio"}, text("Transcribe the Turkish audio clip.")]},
            {"role": "assistant", "content": [text(answer)]},
        ]
        for answer in ("bir", "iki")
    ]
    (first, first_rate), (second, second_rate) = (example["audio"] for example in examples)
    assert (first.dtype, first.shape, first_rate) == (np.float32, (8000,), 16000)
    assert (second.shape, second_rate) == ((2000,), 8000)
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(8000) / 16000)
    np.testing.assert_allclose(first, tone, atol=1e-4)
    converted = from_conversation(examples[0])
    assert isinstance(converted, Example)
    assert [ref.kind for ref in converted.media] == ["audio"]
    assert converted.media[0].held[1] == 16000


@pytest.mark.parametrize("name", SOURCES)
def test_no_rows(name: str, tmp_path: Path) -> None:
    datasets.Dataset.from_dict({}).save_to_disk(tmp_path / "empty")
    for empty in ([], datasets.Dataset.from_dict({}), str(tmp_path / "empty")):
        examples = SOURCES[name](empty)
        assert (len(examples), list(examples), list(examples[:])) == (0, [], [])
    lines = lines_of(Dataset(name="d", source=name, path_or_dataset=str(tmp_path / "empty")), tmp_path / "imported")
    assert Path(lines.file).read_bytes() == b""


def test_the_documented_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: asked.append((name, split)) or [])  # type: ignore[func-returns-value]
    for make in SOURCES.values():
        make(limit=3)
    assert asked == [
        ("quintend/rdr-items", "train"),
        ("naver-clova-ix/cord-v2", "train"),
        ("medpix-dataset/medpix-dataset", "train"),
        ("ysdede/commonvoice_17_tr_fixed", "train"),
        ("Yirany/UniMM-Chat", "train"),
    ]


PNG = "iVBORw0KGgo"
# Source and row -> the column that is named.
BAD_ROWS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no text": ("rdr", {"image": b"x"}, "text"),
    "text is null": ("rdr", {"image": b"x", "text": None}, "text"),
    "no picture": ("rdr", {"image": None, "text": "x"}, "image"),
    "empty picture": ("rdr", {"image": {"bytes": None, "path": None}, "text": ""}, "image"),
    "broken truth": ("cord_v2", {"image": b"x", "ground_truth": "{"}, "ground_truth"),
    "truth is a list": ("cord_v2", {"image": b"x", "ground_truth": "[]"}, "ground_truth"),
    "truth is another": ("cord_v2", {"image": b"x", "ground_truth": '{"gt": {}}'}, "ground_truth"),
    "no truths": ("cord_v2", {"image": b"x", "ground_truth": '{"gt_parses": []}'}, "ground_truth"),
    "truths": ("cord_v2", {"image": b"x", "ground_truth": '{"gt_parses": ["a"]}'}, "ground_truth"),
    "deep truth": (
        "cord_v2",
        {"image": b"x", "ground_truth": '{"gt_parse": {"a": ' + "[" * 900 + "]" * 900 + "}}"},
        "ground_truth",
    ),
    "answer": ("medpix", {"image_id": b"x", "question": "?", "answer": 4}, "answer"),
    "no sound": ("cv17", {"audio": None, "transcription": "x"}, "audio"),
    "turns": ("unimm_chat", {"image": b"x", "conversation": "{}"}, "conversation"),
    "broken turns": ("unimm_chat", {"image": b"x", "conversation": "["}, "conversation"),
    "a turn": ("unimm_chat", {"image": b"x", "conversation": "[7]"}, "conversation"),
    "a role": ("unimm_chat", {"image": b"x", "conversation": '[{"from": ["gpt"], "value": "x"}]'}, "conversation"),
    "no question": ("unimm_chat", {"image": b"x", "conversation": '[{"from": "gpt", "value": "x"}]'}, "conversation"),
    "no turns": ("unimm_chat", {"image": b"x", "conversation": "[]"}, "conversation"),
    "base64": ("unimm_chat", {"image": PNG + "?", "conversation": chat("<image>", "x")}, "image"),
}


@pytest.mark.parametrize(("name", "row", "column"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_raise_online_and_are_rows_offline(name: str, row: dict[str, Any], column: str) -> None:
    examples = SOURCES[name]([row])
    with raises(BadRow, "row-invalid", source=name, row=0, column=column):
        examples[0]
    (stored,) = examples.stored()
    skip = parse_row(dumped(stored), 1)
    assert isinstance(skip, Skip)
    assert (skip.reason, f"{column!r}" in skip.detail) == ("bad_row", True)


def test_media_that_cannot_be_read_name_their_row(tmp_path: Path) -> None:
    whole = picture(tmp_path / "a.png", 40, 60).read_bytes()
    for image in (b"no picture", str(tmp_path / "absent.png"), "a\0.png", {"path": "/a\0.png"}, whole[:-200]):
        with raises(BadRow, "row-invalid", source="rdr", row=0):
            make_rdr_dataset([{"image": image, "text": "x"}])[0]
    for sound in (b"no sound", str(tmp_path / "absent.wav")):
        with raises(BadRow, "row-invalid", source="cv17", row=0):
            make_cv17_dataset([{"audio": {"bytes": sound} if isinstance(sound, bytes) else sound,
                                "transcription": "x"}])[0]  # fmt: skip


def test_the_registry_names_the_makers() -> None:
    assert {f"make_{name}_dataset" for name in SOURCES} == {make.__name__ for make in SOURCES.values()}
    assert all(getattr(sources, make.__name__) is make for make in SOURCES.values())
