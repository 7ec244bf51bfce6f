"""Media that mean harm cost their own rows and nothing else: no request, no hang, no end of the job."""

from pathlib import Path

import hostile
import pytest
from processors import qwen3_omni
from support.commands import assert_verified
from support.data import TinyData, tone
from support.errors import raises
from support.outputs import read_ledger
from support.packed import tiny_config

from neatpack import UserError, run_pack

pytestmark = pytest.mark.net


TAG = {"image": "<image>", "video": "<video>", "audio": "<audio>"}


def test_a_folder_of_hostile_files(requests: tuple[str, list[str]], tmp_path: Path) -> None:
    """Each ends as `hostile.make` says, and the good rows between them are packed."""
    url, asked = requests
    data = TinyData(tmp_path / "data")
    files = hostile.make(data.folder, url)
    tone(data.folder / "good.wav")
    names = ["good.mp4", *files, "good.wav"]
    kinds = {"good.mp4": "video", "good.wav": "audio"} | {name: file.kind for name, file in files.items()}
    for name in names:
        data.row([("user", f"{TAG[kinds[name]]}What?"), ("assistant", "That.")], **{f"{kinds[name]}s": [name]}, id=name)
    data.row([("user", "word " * 2000), ("assistant", "Long.")], id="a long row")
    out, processor = tmp_path / "out", qwen3_omni.make(tmp_path / "processor")
    limits = {"max_media_seconds": 30, "max_media_bytes": 2 << 20, "max_row_bytes": 8 << 10}
    meta = data.write(media_prefixes=["/dev"])  # some are links to devices
    run_pack(tiny_config(meta, out, processor=str(processor), pack_size=4096, **limits))
    assert_verified(out)
    lines = {line["id"] or line["row"]: line for line in read_ledger(out)}
    found = {}
    for name in names:
        line = lines[name]
        found[name] = line["reason"] or line["status"]
        if name in files:
            named = (f"{name}: ", *files[name].named)
            assert [each for each in named if each not in line["detail"]] == [], line["detail"]
    expected = {"good.mp4": "packed", "good.wav": "packed"} | {name: file.reason for name, file in files.items()}
    assert found == expected
    long = lines[len(names)]
    assert long["reason"] == "bad_row"
    assert f"line {len(names) + 1}: " in long["detail"] and "--max-row-bytes 8192" in long["detail"]
    assert asked == []


def test_another_limit_is_another_output(tiny: TinyData, tmp_path: Path) -> None:
    """Nothing that a limit refused, or let through, is reused under another."""
    meta = tiny.image(40, 60).text("Hello?", "Hello.").write()
    out = tmp_path / "out"
    run_pack(tiny_config(meta, out, max_skipped=1.0, max_image_pixels=2399))
    assert [line["reason"] for line in read_ledger(out)] == ["bad_media", ""]
    with raises(UserError, "output-mismatch", changed=["config.max_image_pixels"]):
        run_pack(tiny_config(meta, out))
    run_pack(tiny_config(meta, out, overwrite=True))
    assert [line["reason"] for line in read_ledger(out)] == ["", ""]
