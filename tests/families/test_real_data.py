"""The real data by every family: no row is unsupported that the family supports, and nasty files end as documented."""

import json
from importlib import import_module
from typing import Any

import pytest
from places import ROOT, SHARED
from support.commands import assert_verified
from support.outputs import read_ledger
from support.packed import tiny_config

from neatpack import run_pack

REAL = {"qwen2_vl": "qwen2-vl", "qwen3_omni": "qwen3-omni", "llava_onevision": "llava-onevision"}
# Some processors take every frame of a video unless they are told a rate, as transformers' do.
CHOSEN: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"video_fps": 1.0},
    "qwen2_5_omni": {"video_fps": 1.0},
    "qwen3_omni": {"video_fps": 1.0},
    "llava_onevision": {"video_fps": 1.0},
    "default": {"family": "default"},
}
# In qwen3_vl's place: tests/test_run.py packs all of it with two real processors.
UNUSED = ("__init__", "common", "nemotron_parse", "qwen3_vl")
NAMES = [path.stem for path in sorted((ROOT / "tests/processors").glob("*.py")) if path.stem not in UNUSED]
pytestmark = [
    pytest.mark.net,
    pytest.mark.slow,
    pytest.mark.skipif(not SHARED.is_dir(), reason="../shared (real data and processors) is not here"),
]


@pytest.fixture(scope="module", params=NAMES)
def named(request, tmp_path_factory) -> tuple[str, str]:
    """(family, processor): a real one where there is one, else the family's on the demo's vocabulary."""
    if request.param in REAL:
        return request.param, str(SHARED / "processors" / REAL[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, str(import_module(f"processors.{request.param}").make(folder / "processor"))


def packed(named, meta, out) -> tuple[set[str], list[dict[str, Any]]]:
    """The kinds of media that the family takes, and the ledger of a verified output."""
    name, processor = named
    more = CHOSEN.get(name, {})
    run_pack(tiny_config(meta, out, processor=processor, pack_size=24_576, shard_mb=64, **more))
    arrays = assert_verified(out).family.media.values()
    return {kind for array in arrays for kind in array.kinds}, read_ledger(out)


def some_rows(meta, folder):
    """A third of those of data sets with media, and a twelfth of texts: each family goes through them."""
    entries, kinds = json.loads((SHARED / "data" / meta).read_text()), kinds_of(meta)
    for name, entry in entries.items():
        entry["sample_ratio"] = entry.get("sample_ratio", 1.0) / (3 if any(kinds[name]) else 12)
        for key in ("file_name", "media_dir"):
            entry[key] = str(SHARED / "data" / entry.get(key, ""))
    (folder / "meta.json").write_text(json.dumps(entries))
    return folder / "meta.json"


def kinds_of(meta) -> dict[str, list[set[str]]]:
    """Which media each row of each data set has."""
    result = {}
    for name, entry in json.loads((SHARED / "data" / meta).read_text()).items():
        text = (SHARED / "data" / meta).parent.joinpath(entry["file_name"]).read_text(encoding="utf-8")
        lines = text.split("\n")
        rows = (
            json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in lines if line.strip()]
        )
        columns = {kind: entry["columns"].get(f"{kind}s", f"{kind}s") for kind in ("image", "video", "audio")}
        result[name] = [{kind for kind, column in columns.items() if row.get(column)} for row in rows]
    return result


@pytest.mark.parametrize("meta", ["meta.json", "meta_audio.json"])
def test_what_a_family_supports_is_packed(named, meta, tmp_path):
    takes, ledger = packed(named, some_rows(meta, tmp_path), tmp_path / "out")
    kinds = kinds_of(meta)
    for line in ledger:
        if line["reason"] == "sampled_out":
            continue
        missing = kinds[line["dataset"]][line["row"]] - takes
        expected = {f"{kind}_unsupported" for kind in missing} or {""}
        assert line["reason"] in expected, line


@pytest.mark.parametrize("meta", ["nasty/meta.json", "nasty/meta_audio.json"])
def test_nasty_files_end_as_documented(named, meta, tmp_path):
    takes, ledger = packed(named, SHARED / "data" / meta, tmp_path / "out")
    lines = (SHARED / "data/nasty/expected.jsonl").read_text(encoding="utf-8").split("\n")
    documented = {entry["file"]: entry["expected"] for entry in map(json.loads, filter(None, lines))}
    rows = {
        name: [
            json.loads(line) for line in (SHARED / "data/nasty" / entry["file_name"]).read_text().split("\n") if line
        ]
        for name, entry in json.loads((SHARED / "data" / meta).read_text()).items()
    }
    allowed = {
        "decode": {""},
        "decode_policy": {"", "bad_media"},
        "reject_or_partial": {"", "bad_media"},
        "reject": {"bad_media"},
        "reject_unless_plugin": {"", "bad_media"},
    }
    for line in ledger:
        kind = line["dataset"].removeprefix("nasty_").removesuffix("s")
        expected = allowed[documented[rows[line["dataset"]][line["row"]]["id"]]]
        if kind not in takes:
            expected = {f"{kind}_unsupported"}
        assert line["reason"] in expected, line
        assert line["reason"] == "" or line["detail"], "a reason has words"
