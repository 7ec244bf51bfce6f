"""The named sources: what each makes of its rows, when it reads them, and that packing takes the same."""

import base64
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import ExifTags, Image
from source_data import TRUTHS, chat, imagefolder, rdr, wav, with_images, with_sounds
from support.data import picture
from support.errors import raises

from neatpack import (
    UserError,
    make_cord_v2_dataset,
    make_cv17_dataset,
    make_medpix_dataset,
    make_rdr_dataset,
    make_unimm_chat_dataset,
)

pytestmark = pytest.mark.net


def without_images(example: dict[str, Any]) -> list[Any]:
    """Role and content of each turn, with every picture as its size."""
    return [
        (turn["role"], [part["image"].size if part["type"] == "image" else part["text"] for part in turn["content"]])
        for turn in example["conversation"]
    ]


# ---------------------------------------------------------------- each source


def test_rdr(files: list[bytes]) -> None:
    examples = make_rdr_dataset(with_images({"image": files, "text": ["a", "b", "c"]}), split="ignored", anything=1)
    assert len(examples) == 3
    assert examples[1]["conversation"][0]["content"][0]["type"] == "image"
    assert [without_images(example) for example in examples] == [
        [("user", [(60, height), "Describe this image."]), ("assistant", [answer])]
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


def test_they_behave_as_lists_and_make_nothing_before_it_is_asked_for() -> None:
    rows = Watched([{"image": Image.new("RGB", (8, 8)), "text": str(number)} for number in range(5)])
    other = make_rdr_dataset([{"image": Image.new("RGB", (8, 8)), "text": "other"}])
    mine = {"conversation": [{"role": "user"}, {"role": "assistant", "content": [{"text": "mine"}]}]}
    examples = make_rdr_dataset(rows)
    last, backwards = examples[-2:], examples[::-1]
    both, three, few = examples + other, [mine] + examples + other, (examples + other)[3:][1:]
    assert rows.read == [], "slices and sums read nothing"
    assert [len(each) for each in (last, backwards, both, three, few)] == [2, 5, 6, 7, 2]
    assert [answers(each) for each in (last, backwards, both, three, few)] == [
        ["3", "4"], [*"43210"], [*"01234", "other"], ["mine", *"01234", "other"], ["4", "other"],
    ]  # fmt: skip
    rows.read.clear()
    assert answers([both[-1], both[-2], three[0], few[-2]]) == ["other", "4", "mine", "4"]
    assert rows.read == [4, 4]
    for wrong in (6, -7):
        with pytest.raises(IndexError):
            both[wrong]
    with pytest.raises(TypeError):
        examples + 1  # type: ignore[operator]
    assert answers(pickle.loads(pickle.dumps(make_rdr_dataset(list(rows)) + other))) == [*"01234", "other"]


def test_medpix_is_lazy(files: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    load = Image.open
    monkeypatch.setattr(Image, "open", lambda file, **how: decoded.append(file) or load(file, **how))  # type: ignore[func-returns-value]
    columns = {"image_id": files, "question": ["x?", "y?", "z?"], "answer": ["x", "y", "z"]}
    examples = make_medpix_dataset(with_images(columns, "image_id"))
    assert len(examples) == 3
    assert decoded == []
    assert without_images(examples[-1]) == [("user", [(60, 80), "z?"]), ("assistant", ["z"])]
    assert len(decoded) == 1

    rows = Watched([{"image_id": files[0], "question": "?", "answer": "!"}] * 5)
    examples = make_medpix_dataset(rows)
    assert rows.read == []
    assert len(list(examples[1:3])) == 2
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


def test_unimm_chat(files: list[bytes]) -> None:
    conversations = [
        chat("<image>\nWho?", " Me.", "Why? ", "So."),
        chat("Look at this <Image > and say.", "<image> I do."),
        chat("No tag.", "None.", "Really?", "Yes."),
        chat("Is <image> like <image>?", "Yes. ", "<image>", "Again."),
    ]
    files = [*files, files[0]]
    examples = make_unimm_chat_dataset(with_images({"image": files, "conversation": conversations}))
    assert [without_images(example) for example in examples] == [
        [("user", [(60, 40), "Who?"]), ("assistant", ["Me."]), ("user", ["Why?"]), ("assistant", ["So."])],
        [("user", ["Look at this", (60, 60), "and say."]), ("assistant", ["<image> I do."])],
        [("user", [(60, 80), "No tag."]), ("assistant", ["None."]), ("user", ["Really?"]), ("assistant", ["Yes."])],
        [
            ("user", ["Is", (60, 40), "like", (60, 40), "?"]),
            ("assistant", ["Yes."]),
            ("user", [(60, 40)]),
            ("assistant", ["Again."]),
        ],
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
    with raises(UserError, "dataset-unknown", split="dev", known=["train", "test", "none"]):
        make_rdr_dataset(str(tmp_path / "splits"), "dev")


def test_a_saved_split_is_not_taken_for_another(files: list[bytes], tmp_path: Path) -> None:
    rdr(files).to_parquet(tmp_path / "a.parquet")
    datasets.load_dataset("parquet", data_files={"test": str(tmp_path / "a.parquet")})["test"].save_to_disk(
        tmp_path / "saved"
    )
    assert len(make_rdr_dataset(str(tmp_path / "saved"), "test")) == 3
    with raises(UserError, "dataset-unknown", split="train", known=["test"]):
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


# ---------------------------------------------------------------- errors


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with raises(UserError, "package-missing", package="datasets") as caught:
        make_rdr_dataset()
    assert "pip install 'neatpack[sources]'" in str(caught.error)
    assert len(make_rdr_dataset([{"image": b"", "text": ""}])) == 1  # not needed for what is in memory


def test_what_cannot_be_loaded(files: list[bytes], tmp_path: Path) -> None:
    rdr(files).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "a.txt").touch()
    wrong = {
        "/nowhere/data": "data-missing",
        "./nowhere": "data-missing",
        "owner/absent": "data-unreadable",  # tests are offline
        str(tmp_path / "a.parquet"): "data-unreadable",  # it has no split "dev"
        str(tmp_path / "broken.parquet"): "data-unreadable",
        str(tmp_path / "a.txt"): "data-format",
    }
    for place, code in wrong.items():
        with raises(UserError, code, file=place):
            make_rdr_dataset(place, "dev")
    with raises(UserError, "data-format", kind="generator"):
        make_rdr_dataset(row for row in [])
    with raises(UserError, "data-format", kind="IterableDataset"):
        make_rdr_dataset(rdr(files).to_iterable_dataset())
    with raises(UserError, "column-missing", source="medpix", columns=["image_id", "question", "answer"]):
        make_medpix_dataset(rdr(files))
