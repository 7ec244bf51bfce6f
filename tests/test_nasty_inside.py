"""What test_nasty.py proves by internals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import assert_verified

from neatpack import PackConfig, run_pack
from neatpack.pipeline.ingest.convert import convert
from neatpack.pipeline.ingest.formats import FORMATS
from neatpack.pipeline.ingest.meta import Dataset
from neatpack.pipeline.media.image import decode_image
from neatpack.pipeline.records import Example, MediaRef

SHARED = (Path(__file__).resolve().parents[2] / "shared").resolve()
NASTY = SHARED / "data" / "nasty"

pytestmark = pytest.mark.skipif(
    not NASTY.is_dir(), reason="the collection of broken files (../shared/data/nasty) is not here"
)


def packed(meta: Path, out: Path, **overrides: Any) -> dict[str, list[dict[str, Any]]]:
    """Ledger lines by data set, of an output that was verified."""
    config = {
        "processor": str(SHARED / "processors" / "qwen2.5-vl"),
        "engine": "inline",
        "pack_size": 20480,
        "video_fps": 1.0,
        "keep_going": True,
    }
    run_pack(PackConfig(meta=str(meta), out=str(out), **config | overrides))
    manifest = assert_verified(out)
    ledger = pa.concat_tables([pq.read_table(path) for path in sorted((out / "ledger").iterdir())]).to_pylist()
    return {name: [line for line in ledger if line["dataset"] == name] for name in manifest.identity.inputs}


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Ledger lines by file: every row of nasty/meta.json has one."""
    ledger = packed(NASTY / "meta.json", tmp_path_factory.mktemp("media") / "out")
    lines = {}
    for name in ("nasty_images", "nasty_videos"):
        rows = (NASTY / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        for row, line in zip(rows, ledger[name], strict=True):
            lines[json.loads(row)["id"]] = line
    return lines


def pixels(name: str) -> np.ndarray:
    return decode_image(MediaRef(kind="image", path=str(NASTY / "images" / name))).astype(int)


def test_eight_orientations_are_one_picture(media: dict[str, dict[str, Any]]) -> None:
    upright = pixels("landscape_1.jpg")
    assert upright.shape == (450, 600, 3)
    for number in range(2, 9):
        turned = pixels(f"landscape_{number}.jpg")
        assert np.abs(turned - upright).mean() < 20  # compressed apart: 15; turned a wrong way: above 50
        assert media[f"images/landscape_{number}.jpg"]["tokens"] == media["images/landscape_1.jpg"]["tokens"]


@pytest.mark.parametrize(
    "name", ["L_16__128x128.png", "rgb_pytorch16.png", "cmyk_pytorch.jpg", "grayalpha_pytorch.png"]
)
def test_odd_modes_keep_their_contrast(name: str) -> None:
    """Neither wrapped nor clipped: not all white, not all black."""
    picture = pixels(name)
    assert picture.shape[2] == 3
    assert picture.min() >= 0
    assert picture.max() <= 255
    assert picture.std() > 20


# ---------------------------------------------------------------- data files

LLAVA = {
    "columns": {"messages": "conversations"},
    "tags": {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"},
}
DATA = {
    "mantis_video_unmodified.json": {
        "columns": {"messages": "conversation", "videos": "video"},
        "media_dir": "media/mantis",
    },
    "content_parts.jsonl": {},
    "toolcall_roles.json": LLAVA,
    "bom_crlf_blank.jsonl": {},
    "one_broken_line.jsonl": {},
    "bad_rows.jsonl": {"media_dir": "media"},
}


def write_meta(folder: Path, files: dict[str, Any]) -> Path:
    entries = {
        name: entry
        | {"file_name": str(NASTY / "data" / name), "media_dir": str(SHARED / "data" / entry.get("media_dir", ""))}
        for name, entry in files.items()
    }
    (folder / "meta.json").write_text(json.dumps(entries))
    return folder / "meta.json"


def outcomes(lines: list[dict[str, Any]]) -> list[str]:
    """ "packed", or "reason: detail", row by row."""
    assert [line["row"] for line in lines] == list(range(len(lines)))
    return [line["reason"] and f"{line['reason']}: {line['detail']}" or line["status"] for line in lines]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("strict")
    return packed(write_meta(folder, DATA), folder / "out")


def test_calls_are_turns_of_the_assistant_and_observations_of_a_tool(strict: dict[str, Any]) -> None:
    """Not of the user, and not dropped. That their text is in the tokens is tested where they are rendered."""
    rows = json.loads((NASTY / "data" / "toolcall_roles.json").read_text(encoding="utf-8"))
    names = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
    sharegpt = FORMATS["sharegpt"]
    dataset = Dataset(name="", format="sharegpt", columns=sharegpt.columns, tags=sharegpt.tags)
    for row in rows:
        example = convert(row, dataset)
        assert isinstance(example, Example)
        assert [turn.role for turn in example.turns] == [names[turn["from"]] for turn in row["conversations"]]
        calls = [call["function"] for turn in example.turns for call in turn.tool_calls]
        assert calls == [json.loads(turn["value"]) for turn in row["conversations"] if turn["from"] == "function_call"]
        assert len(example.tools) == len(json.loads(row["tools"] or "[]"))
    found = outcomes(strict["toolcall_roles.json"])
    assert len(found) == len(rows) == 40
    for row, text in zip(rows, found, strict=True):
        if json.loads(row["tools"] or "[]"):
            assert text.startswith("bad_row: ") and "tools" in text, "Qwen2.5-VL's template has no tools"
        else:
            assert text == "packed"
