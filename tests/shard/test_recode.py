"""neatpack recode: the same packs with their pixels stored otherwise, and not a byte else that need not change."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import TinyData, assert_verified, clip, files_of, mixed_rows, picture, tiny_config
from support.errors import prints_code

from jobs.fuzzing.output import as_format_5
from neatpack.pipeline.cli import main
from neatpack.pipeline.manifest import Manifest
from neatpack.pipeline.media import image as image_module
from neatpack.pipeline.run import run_pack
from neatpack.pipeline.shard import recode as recode_module

CODECS = ("u8", "zstd", "source")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One for each codec, in two shards."""
    folder = tmp_path_factory.mktemp("recode")
    data = mixed_rows(TinyData(folder / "data"), 8, 6)
    for number in range(6):
        picture(data.folder / f"{number}.jpg", 300 + 50 * number, 500, seed=number, quality=80)
        data.row([("user", "<image>What?"), ("assistant", f"It is {number}.")], images=[f"{number}.jpg"])
    clip(data.folder / "film.mp4")
    data.row([("user", "<video>What?"), ("assistant", "A film.")], videos=["film.mp4"])
    meta = data.write()
    for codec in CODECS:
        run_pack(tiny_config(meta, folder / codec, pixels=codec, pack_size=600, max_pixels=250_000))
    return {codec: folder / codec for codec in CODECS}


def recode(out: Path, codec: str, new: Path) -> int:
    return main(["recode", str(out), "--pixels", codec, "--out", str(new)])


def test_there_and_back_gives_the_same_bytes(outputs: dict[str, Path], tmp_path: Path, capsys: Any) -> None:
    assert recode(outputs["u8"], "zstd", tmp_path / "zstd") == 0
    assert f"{tmp_path / 'zstd'}: " in capsys.readouterr().out
    manifest = assert_verified(tmp_path / "zstd")
    assert manifest.pixels.codec == {"image": "zstd", "video": "zstd"}
    assert manifest.identity.config["pixels"] == "zstd"
    assert manifest.fingerprint == manifest.identity.fingerprint != Manifest.read(outputs["u8"]).fingerprint
    assert recode(tmp_path / "zstd", "u8", tmp_path / "u8") == 0
    assert files_of(tmp_path / "u8") == files_of(outputs["u8"]), "as packing gives them, the manifest included"


@pytest.mark.parametrize("codec", ["u8", "zstd"])
def test_from_the_own_bytes_of_pictures_to_pixels(outputs: dict[str, Path], codec: str, tmp_path: Path) -> None:
    """The packs are those of packing; where shards are cut is as it was."""
    assert recode(outputs["source"], f"image={codec},video={codec}", tmp_path / "new") == 0
    assert_verified(tmp_path / "new")
    assert pack_bytes(tmp_path / "new") == pack_bytes(outputs[codec])


def pack_bytes(out: Path) -> list[bytes]:
    import pyarrow.parquet as pq

    lines = pq.read_table(out / "index.parquet").to_pylist()
    shards = {line["shard"]: (out / "shards" / line["shard"]).read_bytes() for line in lines}
    return [shards[line["shard"]][line["offset"] : line["offset"] + line["bytes"]] for line in lines]


def test_one_kind_alone(outputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recode(outputs["source"], "video=u8", tmp_path / "new") == 0
    assert assert_verified(tmp_path / "new").pixels.codec == {"image": "source", "video": "u8"}
    own = sorted((outputs["source"].parent / "data").glob("*.jpg"))
    content = b"".join(path.read_bytes() for path in (tmp_path / "new").glob("shards/*.tar"))
    assert own and all(path.read_bytes() in content for path in own), "pictures stay as they came"


@pytest.mark.parametrize(
    ("codec", "asked", "error"),
    [
        ("u8", "u8", "option-conflict"),
        ("u8", "source", "option-conflict"),
        ("zstd", "image=source", "option-conflict"),
        ("zstd", "jpeg", "option-invalid"),
        ("zstd", "", "option-invalid"),
    ],
)
def test_what_cannot_be_done(
    outputs: dict[str, Path], codec: str, asked: str, error: str, tmp_path: Path, capsys: Any
) -> None:
    assert recode(outputs[codec], asked, tmp_path / "new") == 2
    told = capsys.readouterr().err
    assert prints_code(told, error) and "--pixels" in told
    assert not (tmp_path / "new").exists(), "nothing is written before"


def test_other_files_are_not_touched(outputs: dict[str, Path], tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert recode(outputs["u8"], "zstd", tmp_path) == 2
    assert prints_code(capsys.readouterr().err, "out-not-empty")
    assert recode(outputs["u8"], "zstd", outputs["u8"]) == 2


def test_a_run_that_ended_goes_on(outputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is finished is not made again, and the bytes are those of a run that was not interrupted."""
    whole = tmp_path / "whole"
    assert recode(outputs["u8"], "zstd", whole) == 0
    shards, made = len(Manifest.read(whole).shards), list[int]()
    assert shards > 1
    one = recode_module.recode_shard

    def ends(job: Any, number: int) -> Any:
        made.append(number)
        if len(made) == shards:
            raise KeyboardInterrupt
        return one(job, number)

    monkeypatch.setattr(recode_module, "recode_shard", ends)
    assert recode(outputs["u8"], "zstd", tmp_path / "new") != 0
    assert not (tmp_path / "new/manifest.json").exists()
    last = made.pop()
    made.clear()
    monkeypatch.setattr(recode_module, "recode_shard", lambda job, number: (made.append(number), one(job, number))[1])
    assert recode(outputs["u8"], "zstd", tmp_path / "new") == 0
    assert made == [last]
    assert files_of(tmp_path / "new") == files_of(whole)
    made.clear()
    assert recode(outputs["u8"], "zstd", tmp_path / "new") == 0
    assert made == [], "finished already"


def test_damage_is_told_and_not_copied(outputs: dict[str, Path], tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(outputs["u8"], tmp_path / "out")
    path = sorted((tmp_path / "out/shards").iterdir())[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert recode(tmp_path / "out", "zstd", tmp_path / "new") != 0
    assert prints_code(capsys.readouterr().err, "shard-damaged")
    assert not (tmp_path / "new/manifest.json").exists()


def test_a_machine_that_decodes_otherwise_cannot(
    outputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    decode = image_module.decode_image
    monkeypatch.setattr(image_module, "decode_image", lambda ref: decode(ref) // 2 * 2)
    assert recode(outputs["source"], "zstd", tmp_path / "new") != 0
    assert prints_code(capsys.readouterr().err, "pixels-changed")


def test_an_output_of_format_5_becomes_one_of_today(outputs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(outputs["u8"], tmp_path / "old")
    as_format_5(tmp_path / "old")
    found = json.loads((tmp_path / "old/manifest.json").read_text())
    assert found["format"] == 5
    assert recode(tmp_path / "old", "zstd", tmp_path / "new") == 0
    assert json.loads((tmp_path / "new/manifest.json").read_text())["format"] == 7
    assert_verified(tmp_path / "new")
