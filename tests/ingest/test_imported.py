"""Named sources packed: their rows as JSONL, their media by their own bytes, and the same samples as online."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from helpers import packs_of, picture, tiny_config
from processors import qwen3_omni
from source_data import TRUTHS, chat, imagefolder, rdr, wav, with_images, with_sounds
from support.errors import raises

from neatpack.format.manifest import Manifest
from neatpack.loaders.online.tokenized import tokenized_example
from neatpack.pipeline.config import UserError
from neatpack.pipeline.families.registry import family_for
from neatpack.pipeline.ingest.conversation import from_conversation
from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.ingest.imported import lines_of
from neatpack.pipeline.ingest.meta import Dataset, read_meta
from neatpack.pipeline.ingest.sources import (
    SOURCES,
    make_cord_v2_dataset,
    make_cv17_dataset,
    make_rdr_dataset,
)
from neatpack.pipeline.measure.length import measure
from neatpack.pipeline.media.open import open_media
from neatpack.pipeline.records import Example, Measured, MediaRef
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard.verify import read_ledger

# ---------------------------------------------------------------- offline


def imported(name: str, place: Path, tmp_path: Path) -> tuple[Any, list[Any]]:
    dataset = Dataset(name="d", source=name, path_or_dataset=str(place), media_dir=str(tmp_path))
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

    ledger = read_ledger(out, Manifest.read(out)).to_pylist()
    assert [(line["dataset"], line["row"]) for line in ledger] == [("receipts", row) for row in range(6)]
    assert [line["reason"] for line in ledger if line["status"] == "skipped"] == ["bad_row", "bad_media"]
    assert ledger[3]["detail"].startswith("cord_v2: ") and "'ground_truth'" in ledger[3]["detail"]

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
    with raises(UserError, "output-mismatch"):
        run_pack(config)


def test_packing_sounds_for_a_family_that_takes_none(tmp_path: Path) -> None:
    with_sounds([wav(), wav()], ["bir", "iki"]).save_to_disk(tmp_path / "saved")
    (tmp_path / "meta.json").write_text(json.dumps({"voices": {"source": "cv17", "path_or_dataset": "saved"}}))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out"))
    ledger = read_ledger(tmp_path / "out", Manifest.read(tmp_path / "out")).to_pylist()
    assert [line["reason"] for line in ledger] == ["audio_unsupported"] * 2


def test_packing_sounds_for_a_family_that_hears(tmp_path: Path) -> None:
    """cv17 by Qwen3-Omni: what is packed is what the online data set gives."""
    processor = str(qwen3_omni.make(tmp_path / "processor"))
    with_sounds([wav(), wav(0.25, 8000, channels=2)], ["bir", "iki"]).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "meta.json").write_text(json.dumps({"voices": {"source": "cv17", "path_or_dataset": "saved"}}))
    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out", processor=processor))
    lines = read_ledger(tmp_path / "out", Manifest.read(tmp_path / "out")).to_pylist()
    assert [line["status"] for line in lines] == ["packed", "packed"]
    online = make_cv17_dataset(str(tmp_path / "saved"))
    lengths = [len(tokenized_example(example, family_for(processor))["input_ids"]) - 1 for example in online]
    assert [line["tokens"] for line in lines] == lengths


# ---------------------------------------------------------------- the source "hub"


def test_rows_of_any_data_set_as_they_are(files: list[bytes], tmp_path: Path) -> None:
    """By a folder that load_dataset reads: tests are offline. Columns and tags are those of the entry."""
    rows = [
        {"turns": [{"who": "me", "says": "<image><image>?"}, {"who": "it", "says": "Yes."}],
         "pictures": [{"bytes": files[0], "path": None}, {"bytes": files[1], "path": "1.jpg"}], "n": 1},
        {"turns": [{"who": "me", "says": "Why?"}, {"who": "it", "says": "So."}], "pictures": [], "n": 2},
    ]  # fmt: skip
    (tmp_path / "owner").mkdir()
    given = datasets.Dataset.from_list(rows).cast_column("pictures", datasets.List(datasets.Image()))
    given.to_parquet(tmp_path / "owner" / "train.parquet")
    entry = {
        "source": "hub",
        "path_or_dataset": "owner",
        "columns": {"messages": "turns", "images": "pictures"},
        "tags": {"role_tag": "who", "content_tag": "says", "user_tag": "me", "assistant_tag": "it"},
    }
    (tmp_path / "meta.json").write_text(json.dumps({"all": entry}))
    (dataset,) = read_meta(tmp_path / "meta.json")
    lines = lines_of(dataset, tmp_path / "imported")
    found = [json.loads(line) for line in Path(lines.file).read_bytes().splitlines()]
    assert [(row["turns"], row["n"]) for row in found] == [(row["turns"], row["n"]) for row in rows]
    examples = [convert(row, dataset) for row in found]
    assert [[bytes_of(ref) for ref in example.media] for example in examples] == [files[:2], []]

    run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out"))
    ledger = read_ledger(tmp_path / "out", Manifest.read(tmp_path / "out")).to_pylist()
    assert [line["status"] for line in ledger] == ["packed", "packed"]


def test_the_format_of_a_hub_data_set_is_told_from_its_rows(files: list[bytes], tmp_path: Path) -> None:
    """The Cauldron's rows, with nothing said but where they are."""
    rows = [
        {"images": [{"bytes": files[0], "path": None}], "texts": [{"user": "Who?", "assistant": "Tom.", "source": "x"}]}
    ]
    (tmp_path / "owner").mkdir()
    given = datasets.Dataset.from_list(rows).cast_column("images", datasets.List(datasets.Image()))
    given.to_parquet(tmp_path / "owner" / "train.parquet")
    (tmp_path / "meta.json").write_text(json.dumps({"all": {"source": "hub", "path_or_dataset": "owner"}}))
    manifest = run_pack(tiny_config(tmp_path / "meta.json", tmp_path / "out")).manifest
    assert manifest.identity.inputs["all"]["format"] == "cauldron"
    assert (manifest.counts.packed, manifest.counts.skipped) == (1, {})


def test_a_hub_data_set_that_is_not_there(tmp_path: Path) -> None:
    dataset = Dataset(name="d", source="hub", path_or_dataset="owner/absent", split="dev")
    with raises(UserError, "data-unreadable", file="owner/absent", split="dev"):
        lines_of(dataset, tmp_path / "imported")
