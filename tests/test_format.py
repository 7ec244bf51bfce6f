"""Outputs of every format since 8 stay readable: tests/fixtures has one of each."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import assert_verified, list_problems, main
from support.outputs import read_manifest

from neatpack import PackedShards

pytestmark = pytest.mark.net

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("format-*"))


def digest_item(item: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(item.items()):
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()[:16]


def test_fixtures_are_there() -> None:
    assert [path.name for path in FIXTURES] == ["format-8"]


@pytest.mark.parametrize("out", FIXTURES, ids=lambda path: path.name)
def test_output_of_each_format_is_read(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_manifest(out).format == int(out.name.removeprefix("format-"))
    packs = PackedShards(out, rank=0, world_size=1, shuffle=False, pixels="fp32")
    found = [digest_item(item) for item in packs]
    assert found == json.loads((out.parent / "digests.json").read_text())[out.name]
    assert_verified(out)
    assert list_problems(out) == []
    for command in (["inspect", str(out)], ["show", str(out), "0"], ["skipped", str(out)]):
        assert main(command) == 0, command
    assert str(read_manifest(out).counts["packs"]) in capsys.readouterr().out
