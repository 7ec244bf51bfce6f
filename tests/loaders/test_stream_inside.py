"""What test_stream.py proves by internals."""

import shutil

import pytest
from support.errors import raises
from support.packed import many_packs

from neatpack import OutputError, PackedShards
from neatpack.format.manifest import FORMAT


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return many_packs(tmp_path_factory.mktemp("stream"))


# What is refused


@pytest.fixture
def damaged(out, tmp_path):
    shutil.copytree(out, tmp_path / "copy", ignore=shutil.ignore_patterns("work"))
    return tmp_path / "copy"


def test_unknown_format(damaged):
    text = (damaged / "manifest.json").read_text()
    (damaged / "manifest.json").write_text(text.replace(f'"format": {FORMAT},', '"format": 99,'))
    with raises(OutputError, "output-format", out=str(damaged), got=99):
        PackedShards(damaged)
