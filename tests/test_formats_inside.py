"""What test_formats.py proves by internals."""

import json
from pathlib import Path

import pytest
from support.format_cases import folder as folder, meta_of, written
from support.packed import tiny_config

from neatpack.pipeline.ingest.meta import read_meta
from neatpack.pipeline.run import run_split


@pytest.mark.parametrize("name", ["llava", "cauldron", "prompt_response", "alpaca", "vsft"])
def test_what_is_split_is_read_as_it_was(name: str, folder: Path, tmp_path: Path) -> None:
    rows = [row | {"uid": number} for number, row in enumerate(written(name, folder) * 10)]
    keys = {"id_column": "uid", "ignore_keys": ["emotion"]}
    run_split(tiny_config(meta_of(folder, f"split-{name}", rows, **keys), tmp_path / "halves", holdout=0.5))
    for half in ("train", "holdout"):
        (dataset,) = read_meta(tmp_path / "halves" / half / "meta.json")
        given = json.loads((tmp_path / "halves" / half / "meta.json").read_text())["set"]
        assert dataset.format == given["format"] == name
        assert (dataset.id_column, dataset.ignore_keys) == ("uid", ("emotion",))
