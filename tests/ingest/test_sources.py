"""The named sources: what each makes of its rows, when it reads them, and that packing takes the same."""

import base64
import io
import json
import math
import pickle
import struct
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from helpers import packs_of, picture, tiny_config
from PIL import ExifTags, Image
from processors import qwen3_omni

from loaders.tokenized import tokenized_example
from pipeline.config import UserError
from pipeline.families.registry import family_for
from pipeline.ingest import sources
from pipeline.ingest.conversation import from_conversation
from pipeline.ingest.imported import lines_of
from pipeline.ingest.meta import Dataset
from pipeline.ingest.sharegpt import convert
from pipeline.ingest.sources import (
    SOURCES,
    make_cord_v2_dataset,
    make_cv17_dataset,
    make_medpix_dataset,
    make_rdr_dataset,
    make_unimm_chat_dataset,
)
from pipeline.ingest.sources.cord_v2 import json2token
from pipeline.ingest.sources.examples import BadRow
from pipeline.measure.length import measure
from pipeline.measure.probe import open_media
from pipeline.pack import run_pack
from pipeline.records import Example, Measured, MediaRef, Skip
from pipeline.shard.verify import read_ledger, read_manifest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What load_dataset prepares stays with the test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path: Path) -> list[bytes]:
    """Three pictures as files: PNG, JPEG, PNG."""
    paths = [
        picture(tmp_path / "made" / name, 40 + 20 * n, 60, seed=n) for n, name in enumerate(("0.png", "1.jpg", "2.png"))
    ]
    return [path.read_bytes() for path in paths]


def wav(seconds: float = 0.5, rate: int = 16000, channels: int = 1) -> bytes:
    """A tone of 440 Hz at half the volume."""
    samples = [round(16384 * math.sin(2 * math.pi * 440 * n / rate)) for n in range(int(seconds * rate))]
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(b"".join(struct.pack("<h", sample) * channels for sample in samples))
    return buffer.getvalue()


def with_images(columns: dict[str, list[Any]], column: str = "image") -> datasets.Dataset:
    columns = columns | {column: [{"bytes": content, "path": None} for content in columns[column]]}
    return datasets.Dataset.from_dict(columns).cast_column(column, datasets.Image())


def with_sounds(sounds: list[bytes], texts: list[str], **feature: Any) -> datasets.Dataset:
    columns = {"audio": [{"bytes": sound, "path": None} for sound in sounds], "transcription": texts}
    return datasets.Dataset.from_dict(columns).cast_column("audio", datasets.Audio(**feature))


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def without_images(example: dict[str, Any]) -> list[Any]:
    """Role and content of each turn, with every picture as its size."""
    return [
        (turn["role"], [part["image"].size if part["type"] == "image" else part["text"] for part in turn["content"]])
        for turn in example["conversation"]
    ]


TRUTHS = [
    json.dumps({"gt_parse": {"menu": [{"nm": "Tea", "price": "2"}, {"nm": "Pie"}], "total": {"cash": "5"}}}),
    json.dumps({"gt_parses": [{"a": "zero"}, {"a": "one"}]}),
    json.dumps({"gt_parses": [{"a": "zero"}, {"a": "one"}, {"a": "two"}]}),
]


# ---------------------------------------------------------------- each source


def test_rdr(files: list[bytes]) -> None:
    examples = make_rdr_dataset(with_images({"image": files, "text": ["a", "b", "c"]}), split="ignored", anything=1)
    assert len(examples) == 3
    assert examples[1]["conversation"][0]["content"][0]["type"] == "image"
    assert [without_images(example) for example in examples] == [
        [("user", [(60, height), "Describe accurately the given image."]), ("assistant", [answer])]
        for height, answer in ((40, "a"), (60, "b"), (80, "c"))
    ]


def test_cord_v2(files: list[bytes]) -> None:
    examples = make_cord_v2_dataset(with_images({"image": files, "ground_truth": TRUTHS}))
    assert [without_images(example) for example in examples] == [
        [("user", [(60, height), "Describe this image."]), ("assistant", [answer])]
        for height, answer in (
            (40, "<s_total><s_cash>5</s_cash></s_total>"
                 "<s_menu><s_price>2</s_price><s_nm>Tea</s_nm><sep/><s_nm>Pie</s_nm></s_menu>"),
            (60, "<s_a>one</s_a>"),  # row 1 of 2 choices
            (80, "<s_a>two</s_a>"),  # row 2 of 3 choices
        )
    ]  # fmt: skip


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


def test_the_choice_of_a_ground_truth_is_the_same_every_time(files: list[bytes]) -> None:
    rows = [{"image": files[0], "ground_truth": TRUTHS[2]} for _ in range(7)]
    answers = [example["conversation"][1]["content"][0]["text"] for example in make_cord_v2_dataset(rows)]
    assert answers == [f"<s_a>{word}</s_a>" for word in ("zero", "one", "two", "zero", "one", "two", "zero")]
    assert [example["conversation"][1]["content"][0]["text"] for example in make_cord_v2_dataset(rows)] == answers


class Watched(list):  # type: ignore[type-arg]
    """Rows that note which of them were read."""

    def __init__(self, rows: list[Any]) -> None:
        super().__init__(rows)
        self.read: list[Any] = []

    def __getitem__(self, index: Any) -> Any:
        self.read.append(index)
        return super().__getitem__(index)


def test_medpix_is_lazy(files: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    load = Image.open
    monkeypatch.setattr(Image, "open", lambda file: decoded.append(file) or load(file))  # type: ignore[func-returns-value]
    columns = {"image_id": files, "question": ["x?", "y?", "z?"], "answer": ["x", "y", "z"]}
    examples = make_medpix_dataset(with_images(columns, "image_id"))
    assert len(examples) == 3
    assert decoded == []
    assert without_images(examples[-1]) == [("user", [(60, 80), "z?"]), ("assistant", ["z"])]
    assert len(decoded) == 1

    rows = Watched([{"image_id": files[0], "question": "?", "answer": "!"}] * 5)
    examples = make_medpix_dataset(rows)
    assert rows.read == []
    assert len(examples[1:3]) == 2
    assert rows.read == [1, 2]
    with pytest.raises(IndexError):
        examples[5]


def test_pictures_are_turned_as_displayed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    turned = picture(tmp_path / "turned.jpg", 40, 60, exif=exif).read_bytes()
    (example,) = make_rdr_dataset([{"image": turned, "text": "x"}])
    assert without_images(example)[0][1][0] == (40, 60)
    broken = picture(tmp_path / "broken.jpg", 40, 60, exif=b"Exif\0\0nonsense").read_bytes()
    (example,) = make_rdr_dataset([{"image": broken, "text": "x"}])
    assert without_images(example)[0][1][0] == (60, 40)


def test_examples_travel_to_worker_processes(files: list[bytes]) -> None:
    examples = make_rdr_dataset(with_images({"image": files, "text": ["a", "b", "c"]}))
    again = pickle.loads(pickle.dumps(examples))
    assert list(map(without_images, again)) == list(map(without_images, examples))


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


def test_cv17_at_the_rate_that_the_column_declares() -> None:
    (example,) = make_cv17_dataset(with_sounds([wav(0.5, 16000)], ["bir"], sampling_rate=8000))
    samples, rate = example["audio"]
    assert rate == 8000
    assert abs(len(samples) - 4000) <= 16


def test_cv17_decoded_already() -> None:
    rows = [
        {"audio": {"array": [0.0, 0.5], "sampling_rate": 4, "path": "x.mp3"}, "transcription": "bir"},
        {"audio": (np.zeros(3), 5), "transcription": "iki"},
    ]
    first, second = make_cv17_dataset(rows)
    assert (first["audio"][0].tolist(), first["audio"][1]) == ([0.0, 0.5], 4)
    assert (len(second["audio"][0]), second["audio"][1]) == (3, 5)


def chat(*values: str) -> str:
    roles = ["human", "gpt"] * len(values)
    return json.dumps([{"from": role, "value": value} for role, value in zip(roles, values, strict=False)])


def test_unimm_chat(files: list[bytes]) -> None:
    conversations = [
        chat("<image>\nWho?", " Me.", "Why? ", "So."),
        chat("Look at this <Image > and say.", "<image> I do."),
        chat("No tag.", "None.", "Really?", "Yes."),
    ]
    examples = make_unimm_chat_dataset(with_images({"image": files, "conversation": conversations, "idx": [0, 1, 2]}))
    assert [without_images(example) for example in examples] == [
        [("user", [(60, 40), "Who?"]), ("assistant", [" Me."]), ("user", ["Why?"]), ("assistant", ["So."])],
        [("user", ["Look at this", (60, 60), "and say."]), ("assistant", ["<image> I do."])],
        [("user", [(60, 80), "No tag."]), ("assistant", ["None."]), ("user", ["Really?"]), ("assistant", ["Yes."])],
    ]


def test_unimm_chat_in_base64(files: list[bytes], tmp_path: Path) -> None:
    coded = [base64.b64encode(content).decode() for content in files]
    rows = [{"image": image, "conversation": chat("<image>", "x")} for image in coded]
    rows.append({"image": str(tmp_path / "made" / "0.png"), "conversation": chat("<image>", "x")})
    heights = [without_images(example)[0][1][0][1] for example in make_unimm_chat_dataset(rows)]
    assert heights == [40, 60, 80, 40]


def test_a_list_of_dicts_in_every_form(files: list[bytes], tmp_path: Path) -> None:
    path = str(tmp_path / "made" / "0.png")
    forms = [files[0], {"bytes": files[0], "path": None}, {"bytes": None, "path": path}, path, Image.open(path)]
    for image in forms:
        (example,) = make_rdr_dataset([{"image": image, "text": "x"}])
        assert without_images(example)[0][1][0] == (60, 40)


# ---------------------------------------------------------------- where rows come from


def rdr(files: list[bytes]) -> datasets.Dataset:
    return with_images({"image": files, "text": [f"text {n}" for n in range(len(files))]})


def answers(examples: Any) -> list[str]:
    return [example["conversation"][1]["content"][0]["text"] for example in examples]


def test_saved_to_disk(files: list[bytes], tmp_path: Path) -> None:
    rdr(files).save_to_disk(tmp_path / "saved")
    assert answers(make_rdr_dataset(str(tmp_path / "saved"))) == ["text 0", "text 1", "text 2"]
    assert answers(make_rdr_dataset(tmp_path / "saved")) == ["text 0", "text 1", "text 2"]
    splits = datasets.DatasetDict({"train": rdr(files), "test": rdr(files[:1]), "none": rdr([])})
    splits.save_to_disk(tmp_path / "splits")
    assert answers(make_rdr_dataset(str(tmp_path / "splits"), "test")) == ["text 0"]
    assert answers(make_rdr_dataset(splits, "test")) == ["text 0"]
    assert answers(make_rdr_dataset(str(tmp_path / "splits"), "none")) == []
    with pytest.raises(UserError, match=r"splits: no split 'dev'; it has train, test, none"):
        make_rdr_dataset(str(tmp_path / "splits"), "dev")


def test_a_saved_split_is_not_taken_for_another(files: list[bytes], tmp_path: Path) -> None:
    rdr(files).to_parquet(tmp_path / "a.parquet")
    datasets.load_dataset("parquet", data_files={"test": str(tmp_path / "a.parquet")})["test"].save_to_disk(
        tmp_path / "saved"
    )
    assert len(make_rdr_dataset(str(tmp_path / "saved"), "test")) == 3
    with pytest.raises(UserError, match=r"saved: holds the split 'test' and not 'train'"):
        make_rdr_dataset(str(tmp_path / "saved"))


def test_files_and_folders(files: list[bytes], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    rdr(files).to_parquet(folder / "train-00000.parquet")
    rdr(files[:1]).to_parquet(folder / "test-00000.parquet")
    assert len(make_rdr_dataset(str(folder))) == 3
    assert len(make_rdr_dataset(str(folder), "test")) == 1
    assert answers(make_rdr_dataset(str(folder), "train[1:]")) == ["text 1", "text 2"]
    assert len(make_rdr_dataset(str(folder / "test-00000.parquet"))) == 1
    lines = [json.dumps({"image": str(tmp_path / "made" / "0.png"), "text": "x"}) for _ in range(2)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert [without_images(e)[0][1][0] for e in make_rdr_dataset(str(tmp_path / "a.jsonl"))] == [(60, 40)] * 2


def imagefolder(folder: Path) -> Path:
    for number in range(2):
        picture(folder / f"{number}.png", 40 + 20 * number, 60, seed=number)
    rows = [{"file_name": f"{number}.png", "text": f"text {number}"} for number in range(2)]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    examples = make_rdr_dataset(str(imagefolder(tmp_path / "pictures")))
    assert [without_images(example)[0][1][0] for example in examples] == [(60, 40), (60, 60)]
    assert answers(examples) == ["text 0", "text 1"]


def test_a_format_that_the_caller_set_does_not_matter(files: list[bytes]) -> None:
    for form in ("numpy", "torch"):
        assert without_images(make_rdr_dataset(rdr(files).with_format(form))[0])[0][1][0] == (60, 40)


def test_the_given_data_set_stays_as_it_was(files: list[bytes]) -> None:
    given = rdr(files)
    make_rdr_dataset(given)
    assert given.features["image"].decode
    assert isinstance(given[0]["image"], Image.Image)


@pytest.mark.parametrize("name", SOURCES)
def test_no_rows(name: str, tmp_path: Path) -> None:
    datasets.Dataset.from_dict({}).save_to_disk(tmp_path / "empty")
    for empty in ([], datasets.Dataset.from_dict({}), str(tmp_path / "empty")):
        examples = SOURCES[name](empty)
        assert (len(examples), list(examples), examples[:]) == (0, [], [])
    lines = lines_of(
        Dataset(name="d", file="", source=name, path_or_dataset=str(tmp_path / "empty")), tmp_path / "imported"
    )
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


# ---------------------------------------------------------------- errors


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError) as caught:
        make_rdr_dataset()
    assert str(caught.value) == (
        "quintend/rdr-items: reading it needs the `datasets` package, which is not installed; "
        "pip install 'neatpack[sources]'"
    )
    assert len(make_rdr_dataset([{"image": b"", "text": ""}])) == 1  # not needed for what is in memory


def test_what_cannot_be_loaded(files: list[bytes], tmp_path: Path) -> None:
    rdr(files).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "a.txt").touch()
    wrong = {
        "/nowhere/data": "no such file or folder; give a local path or a hub id",
        "./nowhere": "no such file or folder",
        "owner/absent": "owner/absent, split 'dev': cannot be loaded: ",  # tests are offline
        str(tmp_path / "a.parquet"): "split 'dev': cannot be loaded: Unknown split",
        str(tmp_path / "broken.parquet"): "split 'dev': cannot be loaded: ",
        str(tmp_path / "a.txt"): "a.txt: unknown kind of file; known: .parquet .json",
    }
    for place, words in wrong.items():
        with pytest.raises(UserError) as caught:
            make_rdr_dataset(place, "dev")
        assert words in str(caught.value)
    with pytest.raises(UserError, match="a generator, whose rows have no numbers"):
        make_rdr_dataset(row for row in [])
    with pytest.raises(UserError, match="without streaming"):
        make_rdr_dataset(rdr(files).to_iterable_dataset())
    with pytest.raises(UserError) as caught:
        make_medpix_dataset(rdr(files))
    assert str(caught.value) == (
        "medpix: no column 'image_id', 'question', 'answer'; expected image_id, question, answer, got image, text"
    )


PNG = "iVBORw0KGgo"
# Source and row -> words of the problem.
BAD_ROWS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no text": ("rdr", {"image": b"x"}, "column 'text' is absent; expected a text"),
    "text is null": ("rdr", {"image": b"x", "text": None}, "column 'text' is a JSON null; expected a text"),
    "no picture": ("rdr", {"image": None, "text": "x"}, "column 'image' is a JSON null; expected a picture"),
    "empty picture": ("rdr", {"image": {"bytes": None, "path": None}, "text": ""}, "column 'image' is a JSON object"),
    "broken truth": ("cord_v2", {"image": b"x", "ground_truth": "{"}, "column 'ground_truth': broken JSON: Expecting"),
    "truth is a list": ("cord_v2", {"image": b"x", "ground_truth": "[]"}, "expected an object with gt_parse"),
    "truth is another": ("cord_v2", {"image": b"x", "ground_truth": '{"gt": {}}'}, "expected an object with gt_parse"),
    "no truths": ("cord_v2", {"image": b"x", "ground_truth": '{"gt_parses": []}'}, "gt_parses is not a list of at"),
    "truths": ("cord_v2", {"image": b"x", "ground_truth": '{"gt_parses": ["a"]}'}, "gt_parses is not a list of at"),
    "deep truth": (
        "cord_v2",
        {"image": b"x", "ground_truth": '{"gt_parse": {"a": ' + "[" * 900 + "]" * 900 + "}}"},
        "column 'ground_truth': ",
    ),
    "answer": ("medpix", {"image_id": b"x", "question": "?", "answer": 4}, "column 'answer' is a JSON number"),
    "no sound": ("cv17", {"audio": None, "transcription": "x"}, "column 'audio' is a JSON null"),
    "turns": ("unimm_chat", {"image": b"x", "conversation": "{}"}, "expected a JSON list of turns"),
    "broken turns": ("unimm_chat", {"image": b"x", "conversation": "["}, "column 'conversation': broken JSON"),
    "a turn": ("unimm_chat", {"image": b"x", "conversation": "[7]"}, "turn 0: expected from (human or gpt) and value"),
    "a role": (
        "unimm_chat",
        {"image": b"x", "conversation": '[{"from": ["gpt"], "value": "x"}]'},
        "turn 0: expected from (human or gpt)",
    ),
    "two tags": ("unimm_chat", {"image": b"x", "conversation": chat("<image><image>", "x")}, "2 <image> tags but 1"),
    "no question": (
        "unimm_chat",
        {"image": b"x", "conversation": '[{"from": "gpt", "value": "x"}]'},
        "no turn from 'human' to put the image in",
    ),
    "no turns": ("unimm_chat", {"image": b"x", "conversation": "[]"}, "no turn from 'human'"),
    "base64": ("unimm_chat", {"image": PNG + "?", "conversation": chat("<image>", "x")}, "broken base64"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "row", "words"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_raise_online_and_are_rows_offline(name: str, row: dict[str, Any], words: str) -> None:
    examples = SOURCES[name]([row])
    with pytest.raises(BadRow) as caught:
        examples[0]
    assert str(caught.value).startswith(f"{name} row 0: ")
    assert words in str(caught.value)
    (stored,) = examples.stored()
    assert stored.keys() == {"problem"}
    skip = convert(stored, Dataset(name="d", file="", source=name))
    assert isinstance(skip, Skip)
    assert (skip.reason, words in skip.detail) == ("bad_row", True)


def test_media_that_cannot_be_read_name_their_row(tmp_path: Path) -> None:
    whole = picture(tmp_path / "a.png", 40, 60).read_bytes()
    for image in (b"no picture", str(tmp_path / "absent.png"), "a\0.png", {"path": "/a\0.png"}, whole[:-200]):
        with pytest.raises(BadRow, match="rdr row 0: "):
            make_rdr_dataset([{"image": image, "text": "x"}])[0]
    for sound in (b"no sound", str(tmp_path / "absent.wav")):
        with pytest.raises(BadRow, match="cv17 row 0: "):
            make_cv17_dataset([{"audio": {"bytes": sound} if isinstance(sound, bytes) else sound,
                                "transcription": "x"}])[0]  # fmt: skip


# ---------------------------------------------------------------- offline


def imported(name: str, place: Path, tmp_path: Path) -> tuple[Any, list[Any]]:
    dataset = Dataset(name="d", file="", source=name, path_or_dataset=str(place), media_dir=str(tmp_path))
    lines = lines_of(dataset, tmp_path / "imported")
    return lines, [convert(json.loads(line), dataset) for line in Path(lines.file).read_bytes().splitlines()]


def bytes_of(ref: MediaRef) -> bytes:
    with open_media(ref) as file:
        return file.read()


@pytest.mark.parametrize("name", ["rdr", "cord_v2", "medpix", "unimm_chat"])
def test_an_import_keeps_the_very_bytes(name: str, files: list[bytes], tmp_path: Path) -> None:
    column = "image_id" if name == "medpix" else "image"
    others = {
        "rdr": {"text": ["a", "b", "c"]},
        "cord_v2": {"ground_truth": TRUTHS},
        "medpix": {"question": ["?"] * 3, "answer": ["a", "b", "c"]},
        "unimm_chat": {"conversation": [chat("<image>?", answer) for answer in "abc"]},
    }
    given = with_images({column: files} | others[name], column)
    given.save_to_disk(tmp_path / "saved")
    lines, converted = imported(name, tmp_path / "saved", tmp_path)
    assert [bytes_of(ref) for example in converted for ref in example.media] == files
    assert (Path(lines.file).parent / "media.bin").read_bytes() == b"".join(files)
    for example, online in zip(converted, map(from_conversation, SOURCES[name](given)), strict=True):
        assert isinstance(online, Example)
        assert [[p if isinstance(p, str) else p.kind for p in turn.parts] for turn in example.turns] == [
            [p if isinstance(p, str) else p.kind for p in turn.parts] for turn in online.turns
        ]


def test_an_import_of_sounds(tmp_path: Path) -> None:
    sounds = [wav(), wav(0.25)]
    with_sounds(sounds, ["bir", "iki"]).save_to_disk(tmp_path / "saved")
    _, converted = imported("cv17", tmp_path / "saved", tmp_path)
    assert [bytes_of(ref) for example in converted for ref in example.media] == sounds
    assert [[ref.kind for ref in example.media] for example in converted] == [["audio"], ["audio"]]


def test_an_import_of_a_folder_of_pictures_holds_them(tmp_path: Path) -> None:
    """`datasets` only names such files; their content counts as the data set's."""
    folder = imagefolder(tmp_path / "pictures")
    first, converted = imported("rdr", folder, tmp_path)
    assert [bytes_of(ref) for example in converted for ref in example.media] == [
        (folder / f"{number}.png").read_bytes() for number in range(2)
    ]
    picture(folder / "1.png", 60, 60, seed=9)
    assert imported("rdr", folder, tmp_path)[0].rewritten_from != first.rewritten_from


def test_paths_in_rows_start_at_the_media_dir(files: list[bytes], tmp_path: Path) -> None:
    rows = [{"image": "made/0.png", "text": "x"}, {"image": "made/absent.png", "text": "y"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    _, (first, second) = imported("rdr", tmp_path / "a.jsonl", tmp_path)
    assert bytes_of(first.media[0]) == files[0]
    assert second.media[0].path == str(tmp_path / "made" / "absent.png")


def test_media_that_are_not_there_are_left_to_the_ledger() -> None:
    rows = [{"image": {"bytes": None, "path": path}, "text": "x"} for path in ("/absent.png", "/a\0.png")]
    kept = [example["conversation"][0]["content"][0]["image"]["path"] for example in make_rdr_dataset(rows).stored()]
    assert kept == ["/absent.png", "/a\0.png"]


def test_an_import_is_named_by_the_content(files: list[bytes], tmp_path: Path) -> None:
    def digest(name: str, given: datasets.Dataset) -> str:
        given.save_to_disk(tmp_path / name)
        lines, _ = imported("rdr", tmp_path / name, tmp_path)
        assert Path(lines.file) == tmp_path / "imported" / lines.rewritten_from / "rows.jsonl"
        return str(lines.rewritten_from)

    same = digest("one", rdr(files))
    written = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "imported").rglob("*.*"))
    assert digest("two", rdr(files)) == same
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "imported").rglob("*.*")) == written
    assert digest("other picture", rdr([files[0], files[1], files[0]])) != same
    assert digest("other text", with_images({"image": files, "text": ["text 0", "text 1", "text"]})) != same
    assert digest("fewer", rdr(files[:2])) != same


# ---------------------------------------------------------------- the whole path


def documents(out: Path) -> Iterator[tuple[int, list[int]]]:
    """Row and input ids of every document, with each run of media tokens as one: what the pack expanded, taken back."""
    for pack in packs_of(out):
        ids, is_media = pack.arrays["input_ids"], pack.arrays["mm_token_type_ids"] > 0
        ends = np.cumsum(pack.arrays["seq_lens"]).tolist()
        for document, end in zip(pack.documents, ends, strict=True):
            start = end - document.tokens
            kept = [n for n in range(start, end) if n == start or not (is_media[n] and is_media[n - 1])]
            if document.row >= 0:
                yield document.row, ids[kept].tolist()


def test_packing_a_source(files: list[bytes], tmp_path: Path) -> None:
    truths = [*TRUTHS, "{broken", TRUTHS[0], TRUTHS[0]]
    pictures = [*files, files[0], b"no picture", files[1]]
    (tmp_path / "data").mkdir()
    with_images({"image": pictures, "ground_truth": truths}).save_to_disk(tmp_path / "data" / "saved")
    meta = tmp_path / "data" / "meta.json"
    meta.write_text(json.dumps({"receipts": {"source": "cord_v2", "path_or_dataset": "saved", "sample_ratio": 1.0}}))
    out = tmp_path / "out"
    config = tiny_config(meta, out)
    run_pack(config)

    ledger = read_ledger(out, read_manifest(out)).to_pylist()
    assert [(line["dataset"], line["row"]) for line in ledger] == [("receipts", row) for row in range(6)]
    assert [line["reason"] for line in ledger if line["status"] == "skipped"] == ["bad_row", "bad_media"]
    assert ledger[3]["detail"].startswith("cord_v2: column 'ground_truth': broken JSON: ")

    online = make_cord_v2_dataset(str(tmp_path / "data" / "saved"))
    family = family_for(config.processor)
    packed = dict(documents(out))
    assert sorted(packed) == [0, 1, 2, 5]
    for row, ids in packed.items():
        example = from_conversation(online[row])
        assert isinstance(example, Example)
        (expected,) = measure([example], family)
        assert isinstance(expected, Measured)
        assert ids == expected.ids[:-1].tolist()  # the shift takes the last
        assert ledger[row]["tokens"] == expected.tokens

    assert run_pack(config).already_done
    with_images({"image": files, "ground_truth": TRUTHS}).save_to_disk(tmp_path / "data" / "changed")
    meta.write_text(json.dumps({"receipts": {"source": "cord_v2", "path_or_dataset": "changed"}}))
    with pytest.raises(UserError, match="receipts"):
        run_pack(config)


def test_packing_sounds_for_a_family_that_takes_none(tmp_path: Path) -> None:
    with_sounds([wav(), wav()], ["bir", "iki"]).save_to_disk(tmp_path / "saved")
    (tmp_path / "meta.json").write_text(json.dumps({"voices": {"source": "cv17", "path_or_dataset": "saved"}}))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out"))
    ledger = read_ledger(tmp_path / "out", read_manifest(tmp_path / "out")).to_pylist()
    assert [line["reason"] for line in ledger] == ["audio_unsupported"] * 2


def test_the_registry_names_the_makers() -> None:
    assert {f"make_{name}_dataset" for name in SOURCES} == {make.__name__ for make in SOURCES.values()}
    assert all(getattr(sources, make.__name__) is make for make in SOURCES.values())


def test_packing_sounds_for_a_family_that_hears(tmp_path: Path) -> None:
    """cv17 by Qwen3-Omni: what is packed is what the online data set gives."""
    processor = str(qwen3_omni.make(tmp_path / "processor"))
    with_sounds([wav(), wav(0.25, 8000, channels=2)], ["bir", "iki"]).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "meta.json").write_text(json.dumps({"voices": {"source": "cv17", "path_or_dataset": "saved"}}))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", processor=processor))
    lines = read_ledger(tmp_path / "out", read_manifest(tmp_path / "out")).to_pylist()
    assert [line["status"] for line in lines] == ["packed", "packed"]
    online = make_cv17_dataset(str(tmp_path / "saved"))
    lengths = [len(tokenized_example(example, family_for(processor))["input_ids"]) - 1 for example in online]
    assert [line["tokens"] for line in lines] == lengths
