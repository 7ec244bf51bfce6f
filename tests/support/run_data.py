"""One dataset and what a run of it gives, for test_run.py and test_run_inside.py."""

import pytest
from support.data import TinyData, mixed_rows
from support.outputs import files_of, read_ledger
from support.packed import tiny_config

from neatpack import run_pack


def ledger_of(out):
    return read_ledger(out)


def cut(path):
    """Opens with a valid size, and fails on decode."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


# Byte-identical whatever the engine, the number of workers, or an interruption.


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return mixed_rows(TinyData(tmp_path_factory.mktemp("same") / "data"), num_images=40).write()


@pytest.fixture(scope="module")
def expected(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected") / "out"
    run_pack(tiny_config(data, out))
    files = files_of(out)
    assert sum(name.startswith("shards/") for name in files) > 3
    return files
